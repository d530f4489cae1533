"""A run whose ranks evaluate what a test sends them. Free of imports of the test framework."""

from __future__ import annotations

import json
import os
from pathlib import Path

from monarch.actor import this_host
from monarch.spmd import run

PROGRAM = Path(__file__).with_name("weights_program.py")


class Refused(Exception):
    """A program has raised: the name of the type and the text."""


class Ranks:
    """`name` is the `run_id`. `close` ends the programs in good order."""

    def __init__(self, folder, name, count, hosts=None, **options):
        self.count = count
        self._paths = [f"{folder}/{name}.{rank}" for rank in range(count)]
        for path in self._paths:
            os.mkfifo(f"{path}.to")
            os.mkfifo(f"{path}.from")
        command = ["torchrun", f"--nproc-per-node={count}", str(PROGRAM), str(folder), name]
        self.run = run(hosts or this_host(), command, run_id=name, log_dir=str(folder / "logs"), **options)
        self._open()

    def send(self, text, ranks=None):
        for rank in range(self.count) if ranks is None else ranks:
            self._to[rank].write(text + "\n")
            self._to[rank].flush()

    def answers(self, ranks=None):
        found = []
        for rank in range(self.count) if ranks is None else ranks:
            value, kind, error = json.loads(self._from[rank].readline())
            if kind is not None:
                raise Refused(kind, error)
            found.append(value)
        return found

    def ask(self, text, ranks=None):
        self.send(text, ranks)
        return self.answers(ranks)

    def kill(self, rank, signal):
        [pid] = self.ask("os.getpid()", [rank])
        os.kill(pid, signal)

    def reopen(self):
        """The pipes of a new attempt, after the end of the programs."""
        for file in self._from:
            assert file.read() == ""
        self._close()
        self._open()

    def close(self):
        self._close()
        self.run.__exit__()

    def _open(self):
        self._to = [open(f"{path}.to", "w") for path in self._paths]
        self._from = [open(f"{path}.from") for path in self._paths]

    def _close(self):
        for file in (*self._to, *self._from):
            file.close()
