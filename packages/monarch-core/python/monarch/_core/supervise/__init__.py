"""Supervision: the owners of meshes, and the route of a failure to its owner."""
