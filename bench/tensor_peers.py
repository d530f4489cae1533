"""Two processes of torch.distributed, beside which bench/tensor.py measures."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


class Peers:
    """Two processes of torch.distributed. They wait idle until a measurement is requested."""

    def __init__(self, program: str, device: str, what: str, *numbers: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        argv = [sys.executable, program, "--device", device, "--store", str(Path(self._folder.name, "store")), "--peer", what]
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        self._ranks = [
            subprocess.Popen(
                [*argv, str(rank), *map(str, numbers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=env
            )
            for rank in range(2)
        ]
        self.measure()

    def measure(self) -> float:
        """Seconds of one step or reduction, of the slower process."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
        return max(float(rank.stdout.readline()) for rank in self._ranks if rank.stdout is not None)

    def end(self) -> None:
        # Both start before either is awaited: they begin together.
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self._ranks:
            rank.wait(timeout=60)
            assert rank.stdout is not None
            rank.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
