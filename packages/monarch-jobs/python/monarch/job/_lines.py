"""Cuts a stream of bytes into whole lines."""

from __future__ import annotations

# A longer line is cut: one without an end must not be kept.
LONGEST = 64 << 10


class Lines:
    """What it has been fed comes out in order, in pieces that end with a line feed, except for a piece of a line that is too long."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The lines that are complete now, together; nothing if there is none."""
        end = data.rfind(b"\n") + 1
        if end == 0 and len(self._rest) + len(data) <= LONGEST:
            self._rest += data
            return b""
        if end == 0:
            end = len(data)
        whole = bytes(self._rest) + data[:end]
        self._rest[:] = data[end:]
        return whole

    def end(self) -> bytes:
        """What is left: a line without an end."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def prefixed(data: bytes, prefix: bytes) -> bytes:
    """Each line of it begins with the prefix, and the last one has an end."""
    if not prefix or not data:
        return data
    body = data[:-1] if data.endswith(b"\n") else data
    return prefix + body.replace(b"\n", b"\n" + prefix) + b"\n"
