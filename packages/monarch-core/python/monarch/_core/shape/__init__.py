"""Labelled n-dimensional shapes and the meshes that they slice."""
