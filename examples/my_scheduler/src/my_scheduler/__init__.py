"""A queue for tasks on one machine, and jobs whose hosts are its tasks."""
