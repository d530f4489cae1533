"""The site of the documentation: `python -m tools.site`."""
