"""The process of a job's keeper; its clients are in `_client/keeper.py`."""
