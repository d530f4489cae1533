"""A socket on which the actor of a rank takes connections of the rank's program: for breakpoints, and for requests about snapshots.

Its name is abstract: the kernel removes it with the actor's process. It admits this user only. Each connection is a channel of
`monarch.extension.channel`, whose other end is in `program_debugger.py` or a `ProgramLink`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from monarch.extension.channel import Channel, ChannelError

# Seconds until the next attempt, where this process has no free descriptor.
_PAUSE_S = 0.5


class ProgramSocket:
    """`connected` gets the channel of each connection of this user, on the loop of `listen`. Blobs have at most `max_blob` bytes."""

    def __init__(self, connected: Callable[[Channel], None], max_blob: int = 0) -> None:
        self._connected = connected
        self._max_blob = max_blob
        self._socket: socket.socket | None = None
        self._later: asyncio.TimerHandle | None = None
        self.address = f"monarch-spmd-{os.getpid()}-{os.urandom(8).hex()}"

    def listen(self) -> None:
        """Takes connections from now on; `OSError` where this process has no free descriptor."""
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind("\0" + self.address)
            listening.listen()
        except BaseException:
            listening.close()
            raise
        listening.setblocking(False)
        self._socket = listening
        self._resume()

    def close(self) -> None:
        """Takes no more connections. The connections so far stay open."""
        listening, self._socket = self._socket, None
        if self._later is not None:
            self._later.cancel()
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening.fileno())
            listening.close()

    def _resume(self) -> None:
        self._later = None
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:
            # The connection stays in the queue of the socket, which would be readable all the time.
            loop.remove_reader(self._socket.fileno())
            self._later = loop.call_later(_PAUSE_S, self._resume)
            return
        channel = Channel(connection, max_blob=self._max_blob)
        try:
            channel.check_peer()
        except ChannelError:  # another user
            channel.close()
            return
        self._connected(channel)
