"""The entry points of processes: client, worker, zygote, proc, and their ends."""
