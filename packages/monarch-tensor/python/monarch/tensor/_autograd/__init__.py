"""Gradients of mesh tensors."""
