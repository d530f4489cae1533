"""Labelled n-dimensional shapes and what is sliced by them."""
