"""Jobs: what every job can do, and what jobs whose machines come from a launcher have in common."""
