"""The worker of each rank of an activated mesh: its table of tensors, and the execution of commands.

The actor (`actor.py`) receives batches of commands, and `executor.py` executes each command on the thread of its stream. A command that
fails puts a failure into the table in the place of its results; later commands that need the results pass the failure on. A worker
executes no batch twice.
"""
