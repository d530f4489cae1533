"""A TCP proxy in front of a port of this machine. On command it ends, half-closes, resets, refuses or pauses connections."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable

# Bytes of one read, and the most bytes that wait for a peer that does not read.
CHUNK = 256 << 10


class Direction:
    """The bytes of one direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.waiting = b""
        # The sink has got its FIN: later bytes are dropped.
        self.ended = False
        # The source has sent its FIN.
        self.over = False


class Pair:
    """The two connections of one client: `near` is the dialler's, `far` leads to the port."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far
        self.directions = (Direction(near, far), Direction(far, near))
        # Whether the dialler's bytes are held back now, and whether they ever were: nothing else is forwarded then.
        self.held = False
        self.late = False

    def is_over(self) -> bool:
        return all(d.over and not d.waiting for d in self.directions)


class ConnectionProxy:
    """Forwards to `address` until the block is left. Commands have taken effect when they return; connections may be made at any time."""

    def __init__(self, address: str) -> None:
        self.lead_to(address)
        self._pairs: list[Pair] = []
        self._paused = False
        self._holds = False
        self._commands: list[Callable[[], None]] = []
        self._done = threading.Condition()
        self._closing = False
        self._threshold: int | None = None
        self._action: Callable[[], None] | None = None
        self.acted = threading.Event()
        # The number of forwarded connections, and of bytes.
        self.count = 0
        self.passed = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self.port = 0
        self._listen()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def lead_to(self, address: str) -> None:
        """Forwards new connections to this address."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._to = (host, int(port))

    # ---- commands

    def finish(self) -> None:
        """Sends a FIN to both ends of each connection; later bytes from them are dropped."""
        self._do(self._finish)

    def finish_near(self) -> None:
        """Sends a FIN to the dialler of each connection; its bytes are still forwarded."""
        self._do(lambda: self._end([p.directions[1] for p in self._pairs]))

    def finish_far(self) -> None:
        """Sends a FIN to the listener of each connection; its bytes are still forwarded."""
        self._do(lambda: self._end([p.directions[0] for p in self._pairs]))

    def reset(self) -> None:
        """Sends a reset to both ends of each connection."""
        self._do(self._reset)

    def pause(self) -> None:
        """Forwards nothing until `resume`; connections stay open."""
        self._do(lambda: self._set_paused(True))

    def resume(self) -> None:
        self._do(lambda: self._set_paused(False))

    def hold_new(self, holds: bool = True) -> None:
        """Holds the bytes of the diallers of new connections back until `release`; `hold_new(False)` ends this for later connections."""
        self._do(lambda: setattr(self, "_holds", holds))

    def abandon(self) -> None:
        """Sends a reset to the dialler of each connection with bytes held back."""
        self._do(self._abandon)

    def release(self) -> None:
        """Forwards the bytes held back, though their diallers may have gone."""
        self._do(self._release)

    def held(self) -> int:
        """The number of connections with bytes held back."""
        return sum(pair.held and bool(pair.directions[0].waiting) for pair in list(self._pairs))

    def refuse(self) -> None:
        """Makes the kernel refuse new connections."""
        self._do(self._close_listener)

    def redirect(self, address: str) -> None:
        """Leads new connections to another port."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        to = (host, int(port))
        self._do(lambda: setattr(self, "_to", to))

    def when(self, nbytes: int, action: Callable[[], None]) -> None:
        """Runs `action`, a command, when `nbytes` more bytes have been forwarded, and then sets `acted`."""

        def set_it() -> None:
            self._threshold, self._action = self.passed + nbytes, action
            self.acted.clear()

        self._do(set_it)

    # ---- the thread

    def _do(self, command: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:
            return command()
        with self._done:
            self._commands.append(command)
            self._wake.send(b".")
            self._done.wait_for(lambda: command not in self._commands or not self._thread.is_alive())

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._move(key.data)
            with self._done:
                for command in self._commands:
                    command()
                self._commands.clear()
                self._done.notify_all()
            if self._threshold is not None and self.passed >= self._threshold and self._action is not None:
                action, self._threshold, self._action = self._action, None, None
                action()
                self.acted.set()
            self._watch()

    def _watch(self) -> None:
        """Registers the sockets that can make progress with the selector."""
        for pair in [p for p in self._pairs if p.is_over()]:
            self._drop(pair)
        for pair in self._pairs:
            for end, reads, writes in ((pair.near, 0, 1), (pair.far, 1, 0)):
                if end.fileno() < 0:
                    continue
                read, write = pair.directions[reads], pair.directions[writes]
                events = 0
                if pair.held:
                    events |= selectors.EVENT_READ * (end is pair.near and not read.waiting)
                elif pair.late:
                    events |= selectors.EVENT_WRITE * (end is pair.far and bool(write.waiting))
                elif not self._paused:
                    events |= selectors.EVENT_READ * (not read.over and not read.waiting)
                    events |= selectors.EVENT_WRITE * bool(write.waiting)
                self._register(end, events, pair)

    def _register(self, end: socket.socket, events: int, pair: Pair) -> None:
        known = end.fileno() in self._selector.get_map()
        if events and known:
            self._selector.modify(end, events, pair)
        elif events:
            self._selector.register(end, events, pair)
        elif known:
            self._selector.unregister(end)

    def _accept(self) -> None:
        assert self._listener is not None
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._to)
        except OSError:
            # A proxy whose server is gone behaves like this: it has accepted before it knows.
            near.close()
            return
        for end in (near, far):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.count += 1
        pair = Pair(near, far)
        pair.held = self._holds
        self._pairs.append(pair)

    def _move(self, pair: Pair) -> None:
        if pair not in self._pairs:
            return
        if pair.held:
            pair.directions[0].waiting = pair.near.recv(CHUNK)
            return
        if pair.late:
            late = pair.directions[0]
            late.waiting = late.waiting[late.sink.send(late.waiting) :]
            return
        for direction in pair.directions:
            try:
                self._move_one(direction)
            except BlockingIOError:
                continue
            except OSError:
                # A reset of one end resets the other end too.
                return self._drop(pair, reset=True)

    def _move_one(self, d: Direction) -> None:
        if not d.waiting and not d.over:
            data = d.source.recv(CHUNK)
            if not data:
                d.over = True
                if not d.ended:
                    d.ended = True
                    d.sink.shutdown(socket.SHUT_WR)
                return
            self.passed += len(data)
            d.waiting = b"" if d.ended else data
        if d.waiting:
            d.waiting = d.waiting[d.sink.send(d.waiting) :]

    def _abandon(self) -> None:
        for pair in self._pairs:
            if pair.held:
                self._reset_end(pair.near)

    def _release(self) -> None:
        for pair in self._pairs:
            if pair.held:
                pair.held, pair.late = False, True

    def _finish(self) -> None:
        self._end([d for pair in self._pairs for d in pair.directions])

    def _end(self, directions: list[Direction]) -> None:
        for d in directions:
            d.waiting = b""
            if not d.ended:
                d.ended = True
                with contextlib.suppress(OSError):
                    d.sink.shutdown(socket.SHUT_WR)

    def _reset(self) -> None:
        for pair in list(self._pairs):
            self._drop(pair, reset=True)

    def _drop(self, pair: Pair, reset: bool = False) -> None:
        self._pairs.remove(pair)
        for end in (pair.near, pair.far):
            if reset:
                self._reset_end(end)
            elif end.fileno() >= 0 and end.fileno() in self._selector.get_map():
                self._selector.unregister(end)
            end.close()

    def _reset_end(self, end: socket.socket) -> None:
        if end.fileno() < 0:
            return
        if end.fileno() in self._selector.get_map():
            self._selector.unregister(end)
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
            self.port = self._listener.getsockname()[1]
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _close(self) -> None:
        self._close_listener()
        self._reset()
        self._closing = True

    def __enter__(self) -> ConnectionProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close)
        self._thread.join()
        self._selector.close()
        self._wake.close()
        self._woken.close()
