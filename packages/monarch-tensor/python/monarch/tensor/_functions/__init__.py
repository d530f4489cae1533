"""Functions of the program on the workers: remote functions, arguments of endpoints, and recorded calls."""
