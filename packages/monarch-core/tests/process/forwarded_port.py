"""A port that leads to another one, like a port forwarded by ssh: its connections can be cut."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

# Bytes kept of each connection.
KEPT = 1 << 20


class ForwardedPort:
    """Leads to an address of this machine until the block is left; `heard` has the received bytes, by connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._to = (host, int(port))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self.count = 0
        self.heard: list[bytearray] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def _start(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # pyright: ignore
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._to)
            except OSError:
                near.close()
                continue
            with self._lock:
                self.count += 1
                self._pairs.append((near, far))
                self.heard.append(heard := bytearray())
            self._start(self._copy, near, far, heard)
            self._start(self._copy, far, near, None)

    def _copy(self, source: socket.socket, sink: socket.socket, heard: bytearray | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if heard is not None:
                    heard += data[: max(0, KEPT - len(heard))]
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # A reset of one end resets the other end too.
            self._reset(source, sink)

    @staticmethod
    def _reset(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # The thread that reads the socket sees an end, and the other side gets a reset when the last reference closes.
                end.shutdown(socket.SHUT_RD)
            end.close()

    def cut(self) -> None:
        """Resets all connections; new ones can be made."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for near, far in pairs:
            self._reset(near, far)

    def __enter__(self) -> ForwardedPort:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
