"""The process that serves a gather mount. Its argument: SOCKET.

The main thread answers the kernel; one thread exchanges messages with the bridge; one sends the kernel what has changed. When the bridge
ends, with the client or without it, the server unmounts and ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, cast

from monarch.extension.channel import Channel, ChannelError
from monarch.fs._gather.bridge_request import MOUNT_NAME
from monarch.fs._gather.gathered_tree import GatheredTree
from monarch.fs._gather.host_request import Answer, Body, decode, decode_changes, encode
from monarch.fs._kernel import connection, poll_loop
from monarch.fs._kernel.mount_table import mount_row
from monarch.fs._tree.operations import MountOptions, TreeOperations
from monarch.fs.backends.choice import make_backend
from monarch.fs.backends.serving import ServingBackend
from monarch.fs.errors import FsError

_READ_AHEAD = 128 << 10


class GatherServer:
    """Serves one mount until it is unmounted or the bridge ends."""

    def __init__(self, channel: Channel, config: dict[str, Any]) -> None:
        self.target: str = config["target"]
        self._is_file: bool = config["file"]
        self._channel = channel
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls = 0
        self._waiting: dict[int, Callable[[Answer], object]] = {}
        self._notices: queue.SimpleQueue[tuple[list[tuple[int, bytes]], list[int]]] = queue.SimpleQueue()
        self.options = MountOptions(
            name=MOUNT_NAME, immutable=False, read_ahead=_READ_AHEAD, read_timeout=config["read_timeout"], backend=config["backend"]
        )
        self.tree = GatheredTree(
            config["points"], self, config["cache_bytes"], lambda names, inodes: self._notices.put((names, inodes)), is_file=self._is_file
        )
        self._connection: connection.Connection | None = None
        self._backend: ServingBackend | None = None

    def run(self) -> None:
        self._connection = connection.open_connection(self.target, self.options, is_file=self._is_file)
        try:
            self._backend = make_backend(self.options.backend, self._connection.fd)
            self._backend.negotiated = self._negotiated
            poll_loop.run(self._backend.run(cast("TreeOperations", self.tree), self.target, self.options))
        except BaseException:
            connection.detach(self.target, lazy=True)
            raise

    def _negotiated(self) -> None:
        threading.Thread(target=self._exchange, name="messages", daemon=True).start()
        threading.Thread(target=self._notify, name="notices", daemon=True).start()
        assert self._connection is not None
        self._send({"mounted": self._connection.device})

    def ask(self, host: int, body: Body, then: Callable[[Answer], object]) -> None:
        self._calls += 1
        self._waiting[self._calls] = then
        self._send({"call": self._calls, "host": host}, encode(body))

    def _send(self, head: dict[str, Any], blob: bytes = b"") -> None:
        with contextlib.suppress(ChannelError):
            self._channel.queue(head, blob)
            os.eventfd_write(self._event, 1)

    def _exchange(self) -> None:
        try:
            while True:
                poll = select.poll()
                poll.register(self._event, select.POLLIN)
                poll.register(self._channel, select.POLLIN if self._channel.flush() else select.POLLIN | select.POLLOUT)
                ready = {fd for fd, _ in poll.poll()}
                if self._event in ready:
                    os.eventfd_read(self._event)
                if self._channel.fileno() in ready:
                    for message in self._channel.receive():
                        self._take(message.head, message.blob)
        except ChannelError:
            self._leave()
        except BaseException:
            traceback.print_exc()
            self._leave()

    def _take(self, head: dict[str, Any], blob: bytes) -> None:
        try:
            found = Answer(head["answer"], blob) if "answer" in head else decode(blob)
        except ValueError as e:
            found = Answer({"errno": errno.EIO, "reason": f"malformed answer: {e}", "changes": None})
        if "call" in head:
            poll_loop.call_soon_threadsafe(lambda: self._waiting.pop(head["call"])(found))
        elif "changed" in head:
            changes = decode_changes(found.body)
            poll_loop.call_soon_threadsafe(lambda: self.tree.changed(head["changed"], changes))

    def _notify(self) -> None:
        while True:
            names, inodes = self._notices.get()
            assert self._backend is not None
            # The mount has ended.
            with contextlib.suppress(OSError):
                self._backend.invalidate(names, inodes)

    def _leave(self) -> None:
        """Unmounts, unless another mount is there already; requests in flight fail."""
        assert self._connection is not None
        with contextlib.suppress(FsError):
            row = mount_row(self.target)
            # The kernel reuses the numbers of devices; the connection of an unmounted mount has failed.
            if row is not None and row.source == MOUNT_NAME and not connection.descriptor_failed(self._connection.fd):
                connection.detach(self.target, lazy=True)
        with contextlib.suppress(FsError):
            connection.abort(self._connection.device)
        os._exit(0)


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    code = 1
    try:
        messages = []
        while not messages:
            poll.poll()
            messages = channel.receive()
        try:
            GatherServer(channel, messages[0].head).run()
            code = 0
        except OSError as e:
            channel.queue({"failed": {"reason": str(e), "busy": isinstance(e, FsError) and e.code == "fs_busy"}})
            channel.flush()
    except ChannelError:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
