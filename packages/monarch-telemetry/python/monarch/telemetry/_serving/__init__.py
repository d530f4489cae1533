"""What serves a job over HTTP: the parts of the application, over the engine of this process."""
