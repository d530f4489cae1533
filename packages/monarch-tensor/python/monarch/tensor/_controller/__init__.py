"""The controller of the workers of one mesh: what it knows of tensors and streams, what it has sent, and what it may send."""
