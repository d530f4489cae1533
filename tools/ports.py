"""Blocks of TCP ports for daemons whose ports are fixed by their configuration, without conflicts between two instances."""

from __future__ import annotations

import socket

# The blocks are below the kernel's ephemeral range, so that no connection takes one meanwhile, and above the ports of services.
_FIRST, _LAST, _BLOCK = 18000, 31000, 100


class PortBlock:
    """`count` free ports, from `first` on. A bound socket beside them keeps other instances away until `close()`."""

    def __init__(self, count: int) -> None:
        if not 0 < count < _BLOCK:
            raise ValueError(f"1 to {_BLOCK - 1} ports, not {count}")
        for base in range(_FIRST, _LAST, _BLOCK):
            mark = socket.socket()
            try:
                mark.bind(("127.0.0.1", base))
            except OSError:
                mark.close()
                continue
            if all(_free(base + 1 + index) for index in range(count)):
                self._mark = mark
                self.first = base + 1
                return
            mark.close()
        raise OSError(f"no {count} free ports between {_FIRST} and {_LAST}")

    def close(self) -> None:
        self._mark.close()


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as daemons do: a port in TIME_WAIT is free
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
