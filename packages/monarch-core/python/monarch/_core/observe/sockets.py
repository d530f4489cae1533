"""The TCP and Unix sockets of this machine's network namespace, as the kernel lists them."""

from __future__ import annotations

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# States of a connection, and the timer that sends again (include/net/tcp_states.h, net/ipv4/tcp_ipv4.c).
_ESTABLISHED, _CONNECTING, _LISTENS = 1, 2, 10
_SENDS_AGAIN = 1
# The most lines of a table that are read.
_MOST = 20_000


class Sockets:
    """One look at the tables."""

    def __init__(self) -> None:
        self._by_inode: dict[str, dict[str, Any]] = {}
        self._by_ends: dict[tuple[str, str], dict[str, Any]] = {}
        self._listening: dict[int, dict[str, Any]] = {}
        for name in ("tcp", "tcp6"):
            for line in _lines(f"/proc/net/{name}"):
                self._add(line.split())

    def _add(self, words: list[str]) -> None:
        here, there, inode = _address(words[1]), _address(words[2]), words[9]
        state, (timer, _, _) = int(words[3], 16), words[5].partition(":")
        # The table gives the number of retries in hexadecimal figures.
        again = int(words[6], 16) if int(timer, 16) == _SENDS_AGAIN else 0
        one = {"here": here, "there": there, "state": state, "again": again, "inode": inode}
        if state == _LISTENS:
            self._listening[int(words[1].rpartition(":")[2], 16)] = one
            return
        if inode != "0":
            self._by_inode[f"socket:[{inode}]"] = one
        self._by_ends[here, there] = one

    def described(self, target: str) -> dict[str, Any]:
        """The ends of a connection; `peer_target` is the socket of its other end, or that which has not accepted it, of this machine."""
        one = self._by_inode.get(target)
        if one is None:
            return {}
        found = {"here": one["here"], "there": one["there"], "connects": one["state"] == _CONNECTING, "again": one["again"]}
        port = int(one["there"].rpartition(":")[2])
        peer = self._by_ends.get((one["there"], one["here"]))
        is_local = one["there"].rpartition(":")[0] in ("127.0.0.1", "::1", one["here"].rpartition(":")[0])
        listening = self._listening.get(port)
        if peer is not None and peer["inode"] != "0":
            return {**found, "accepted": True, "peer_target": f"socket:[{peer['inode']}]"}
        if is_local and listening is not None and one["state"] in (_ESTABLISHED, _CONNECTING):
            return {**found, "accepted": False, "peer_target": f"socket:[{listening['inode']}]"}
        return found


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().splitlines()[1:_MOST]
    except OSError:  # the kernel has no such table
        return []


def _address(word: str) -> str:
    """`10.0.0.1:443` of the hexadecimal words of the kernel, each in the order of bytes of the machine."""
    address, _, port = word.partition(":")
    words = [int(address[index : index + 8], 16) for index in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if packed.startswith(b"\0" * 10 + b"\xff\xff") and len(packed) == 16:
        packed = packed[12:]
    return f"{socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)}:{int(port, 16)}"
