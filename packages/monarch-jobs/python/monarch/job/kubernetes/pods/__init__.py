"""The state of workers by their pods: pure functions over the objects of the API server."""
