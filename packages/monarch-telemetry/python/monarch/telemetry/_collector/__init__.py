"""The program of each host that keeps the rows of its processes, and answers for them."""
