"""The HTTP service of a job: the parts of the application, over the engine of this process."""
