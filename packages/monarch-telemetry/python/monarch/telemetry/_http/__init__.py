"""The HTTP API of a job: the admin API, the dashboard API, metrics, and the client of both."""
