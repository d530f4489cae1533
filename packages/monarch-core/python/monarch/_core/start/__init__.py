"""The main functions of processes: client, worker, zygote, proc, and their ends.

`composition_root.py` provides the functions of higher layers that lower layers call (`process/provided.py`). The zygote
imports everything that procs need before its first fork, and imports the rest in short steps between requests. It has one thread.
"""
