"""Back ends that mount a tree, one a file."""
