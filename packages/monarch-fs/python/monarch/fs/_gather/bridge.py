"""The bridge between the server of a gather mount and the hosts: in the service on the machine of the client.

The bridge is apart from the client, because a page fault on a mapped file of the mount holds the interpreter lock of the client's
process, and apart from the server, because the server must answer the kernel while the bridge waits for a host. It passes answers on
without reading them. One thread has the state of all hosts; whatever happens elsewhere comes to it as an event.

When a host is lost (`host_health`), what waits for it fails, and so does what comes, at once. Its service is looked for, and the view of
the host works again when the service has been found. Requests of the time between are sent to the next service.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import select
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from monarch.extension import Request, python_command, serve
from monarch.extension.channel import Channel, ChannelError
from monarch.fs._gather.bridge_request import MOUNT_NAME, BridgeRequest, Point
from monarch.fs._gather.host_health import TICK_SECONDS, Action, HostHealth
from monarch.fs._gather.host_request import LARGEST_ANSWER, REQUESTS, Answer, attr_from, decode, encode, peer_from
from monarch.fs._gather.slots import SLOTS, SMALLEST, read_slot
from monarch.fs._kernel import connection
from monarch.fs._kernel.mount_table import mount_row
from monarch.fs._kernel.preflight import chosen_backend
from monarch.fs._relay.peer import Peer, PeerEnded, ask_peer, peer_here
from monarch.fs.errors import FsError, MountBusyError

_START_SECONDS = 30.0
_END_SECONDS = 5.0
# The most restarts of servers that were killed or failed.
_RESTARTS = 16
# The most seconds for an answer: a host that has to be found again may start a service for it.
_ANSWER_SECONDS = 20.0
_SERVER = "monarch.fs._gather.gather_server"
_log = logging.getLogger("monarch.fs")


class _Host:
    """A point, and the service that answers for it."""

    def __init__(self, number: int, point: Point, *, is_file: bool) -> None:
        self.number, self.point, self.is_file = number, point, is_file
        self.token = secrets.token_hex(16)
        self.peer = Peer(*point.peer)
        self.health = HostHealth(time.monotonic())
        # Requests without an answer, with the time of each; an answer of an earlier service has a lower epoch.
        self.pending: dict[int, tuple[float, bytes]] = {}
        self.epoch = 0
        # Free slots, and slots that are named in a call without an answer.
        self.slots = list(range(SLOTS))
        self.taken: dict[int, int] = {}

    def open(self) -> None:
        """Begins the subscription. `OSError`, `TimeoutError`, `RequestError`."""
        own = peer_here(_changes_of(self.token))
        body = {"op": "open", "token": self.token, "root": self.point.root, "peer": [own.proc, own.name, own.places]}
        failed = decode(_ask(self.peer, encode(body))).body
        if "errno" in failed:
            raise FsError(failed["reason"], path=self.point.root, errno=failed["errno"])
        if not self.point.directory and bool(failed.get("file")) != self.is_file:
            raise FsError("it is a file now, or is none any more", path=self.point.root, errno=errno.ESTALE)

    def find(self, finder: Peer) -> None:
        """Begins the subscription at the service that the host has now. Errors as of `open`."""
        self.peer = peer_from(decode(_ask(finder, encode({"point": self.number}))).body["peer"])
        self.open()


def _ask(peer: Peer, body: bytes) -> bytes:
    done = threading.Event()
    answers: list[bytes | Exception] = []

    def then(found: bytes | Exception) -> None:
        answers.append(found)
        done.set()

    ask_peer(peer, body, then)
    if not done.wait(_ANSWER_SECONDS):
        raise TimeoutError("no answer")
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def _with_handle(found: bytes) -> Answer | None:
    """An answer whose bytes are in a slot; None for one that has its bytes, or an error."""
    if len(found) >= SMALLEST:
        return None
    try:
        body, handle = decode(found)
        return Answer({"attr": attr_from(body["attr"]), "size": body["size"]}, handle)
    except (KeyError, TypeError, ValueError):
        # The server of the mount accepts it, or refuses it.
        return None


def _reported(bridge: weakref.ref[Bridge], number: int, request: Request) -> bytes:
    found = bridge()
    if found is not None:
        found.reported(number, request.body)
    return b""


def _changes_of(token: str) -> str:
    return f"{REQUESTS}.{token}"


class Bridge:
    """Serves one mount; `close` ends it."""

    def __init__(self, request: BridgeRequest) -> None:
        self.target = request.target
        self._request = request
        self._hosts = [_Host(number, point, is_file=request.is_file) for number, point in enumerate(request.points)]
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: deque[Callable[[], object]] = deque()
        self._event_lock = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        self._started = threading.Event()
        self._failure: dict[str, Any] = {"reason": "the server of the mount has ended"}
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._restarts = 0
        # The mount, by the minor number of its device.
        self._device = -1
        self.counts = {"requests": 0, "bytes": 0}

    def open(self) -> None:
        """Finds the hosts, and mounts. `FsError`, `MonarchError`."""
        # A handler remains registered after the bridge is dropped.
        bridge: weakref.ref[Bridge] = weakref.ref(self)
        for host in self._hosts:
            serve(_changes_of(host.token), lambda change, number=host.number: _reported(bridge, number, change))
        failed: dict[str, BaseException] = {}

        def begin(host: _Host) -> None:
            try:
                host.open()
            except Exception as e:  # also for a malformed answer
                failed[host.point.directory] = e

        threads = [threading.Thread(target=begin, args=(host,), daemon=True) for host in self._hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            self.close(0.0)
            self._end_events()
            rows = "\n".join(f"  {key or 'the host'}: {(str(e) or repr(e)).splitlines()[0]}" for key, e in failed.items())
            raise FsError(f"{len(failed)} of {len(self._hosts)} hosts cannot be gathered\n{rows}", path=self.target)
        self._start_server()
        threading.Thread(target=self._run, name="monarch-gather-bridge", daemon=True).start()
        if not self._started.wait(_START_SECONDS):
            self.close(0.0)
            raise FsError("the server of the mount does not start", path=self.target)
        if self._failure:
            self.close(0.0)
            kind = MountBusyError if self._failure.get("busy") else FsError
            raise kind(self._failure["reason"], path=self.target)

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = python_command(_SERVER, str(theirs.fileno()))
            self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
        self._channel = Channel(ours)
        config = {
            "target": self.target,
            "points": [host.point.directory for host in self._hosts],
            "file": self._request.is_file,
            "cache_bytes": self._request.cache_bytes,
            "read_timeout": self._request.read_timeout,
            "backend": chosen_backend(),
        }
        self._channel.queue(config)

    @property
    def server_pid(self) -> int:
        return -1 if self._process is None else self._process.pid

    def _server_ended(self) -> bool:
        """Mounts anew where the server has failed; False where the mount was unmounted, or servers fail again and again."""
        assert self._process is not None
        assert self._channel is not None
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        with self._lock:
            if code == 0 or self._closed or self._failure or self._restarts == _RESTARTS:
                return False
            kind = connection.mount_point(self.target).kind
            if kind == "live":
                # It is another file system.
                return False
            self._restarts += 1
            _log.warning("%s: its server has ended with the code %s; mounted anew", self.target, code)
            for host in self._hosts:
                host.epoch += 1
                host.pending.clear()
                # The host may still write to the named slots: they are free again with the next subscription.
                host.taken.clear()
                host.health.forgotten()
            self._channel.close()
            if kind == "dead":
                with suppress(FsError):
                    connection.detach(self.target, lazy=True)
            self._start_server()
        return True

    def close(self, deadline: float) -> str:
        """Unmounts within this time in seconds, lazily in the end; what held the mount then, else empty."""
        busy = ""
        with self._lock:
            # No server is started from here on.
            self._restarts = _RESTARTS
        for attempt in range(4):
            if not self._is_mounted():
                break
            try:
                connection.detach(self.target, lazy=False)
                busy = ""
                break
            except FsError as e:
                busy = e.reason
                if attempt < 3:
                    time.sleep(deadline / 3)
        if busy and self._is_mounted():
            with suppress(FsError):
                connection.detach(self.target, lazy=True)
        with self._lock:
            self._closed = True
        self._post(lambda: None)
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait(_END_SECONDS)
        for host in self._hosts:
            with suppress(PeerEnded):
                ask_peer(host.peer, encode({"op": "close", "token": host.token}), lambda _: None)
        return busy

    def _is_mounted(self) -> bool:
        """Whether the mount of this bridge is there, and not one that was made in its place."""
        row = mount_row(self.target) if self._device >= 0 else None
        # The kernel reuses the numbers of devices.
        return row is not None and row.source == MOUNT_NAME and (row.major, row.minor) == (0, self._device)

    # Events, on any thread.

    def _post(self, event: Callable[[], object]) -> None:
        with self._event_lock:
            if self._event >= 0:
                self._events.append(event)
                os.eventfd_write(self._event, 1)

    def reported(self, number: int, changes: bytes) -> None:
        """Passes a report of a host on."""
        self._post(lambda: self._channel.queue({"changed": number}, changes) if self._channel else None)

    def _end_events(self) -> None:
        with self._event_lock:
            if self._event >= 0:
                os.close(self._event)
            self._event = -1

    # The thread of the bridge.

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._turn()
                except ChannelError:
                    if not self._server_ended():
                        raise
        except ChannelError as e:
            _log.debug("%s: %s", self.target, e)
        finally:
            self._started.set()
            assert self._channel is not None
            self._channel.close()
            self._channel = None
            self._device = -1
            self._end_events()
            if not self._closed:
                # Unmounted by hand, or the servers failed: the client must not mount it again.
                with suppress(PeerEnded):
                    ask_peer(self._request.finder, encode({"ended": True}), lambda _: None)

    def _turn(self) -> None:
        channel = self._channel
        assert channel is not None
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.register(channel, select.POLLIN if channel.flush() else select.POLLIN | select.POLLOUT)
        busy = any(host.pending or not host.health.is_settled for host in self._hosts)
        ready = {fd for fd, _ in poll.poll(TICK_SECONDS * 1000 if busy else None)}
        if self._event in ready:
            os.eventfd_read(self._event)
        while self._events:
            self._events.popleft()()
        if channel.fileno() in ready:
            for message in channel.receive():
                self._take(message.head, message.blob)
        for host in self._hosts:
            self._look_at(host, time.monotonic())

    def _take(self, head: dict[str, Any], blob: bytes) -> None:
        if "call" in head:
            host = self._hosts[int(head["host"])]
            self.counts["requests"] += 1
            if host.health.lost:
                self._fail(head["call"], host)
                return
            # The token is the secret of the bridge: the server does not need it.
            body: dict[str, Any] = decode(blob).body | {"token": host.token}
            if body["op"] == "read" and body["size"] >= SMALLEST and host.slots:
                body["slot"] = host.taken[head["call"]] = host.slots.pop()
            host.pending[head["call"]] = (time.monotonic(), encode(body))
            if host.health.is_served:
                self._send(host, head["call"])
        elif "mounted" in head:
            self._failure, self._device = {}, int(head["mounted"])
            self._started.set()
        elif "failed" in head:
            self._failure = head["failed"]
            self._started.set()

    def _send(self, host: _Host, call: int) -> None:
        epoch = host.epoch
        try:
            ask_peer(host.peer, host.pending[call][1], lambda found: self._post(lambda: self._answered(host, epoch, call, found)))
        except PeerEnded as e:
            self._answered(host, epoch, call, e)

    def _answered(self, host: _Host, epoch: int, call: int, found: bytes | Exception) -> None:
        if epoch != host.epoch or call not in host.pending:
            return
        if isinstance(found, PeerEnded):
            self._no_service(host)
            return
        if isinstance(found, Exception):
            found = encode({"errno": errno.EIO, "reason": str(found)})
        elif len(found) > LARGEST_ANSWER:
            _log.warning("%s: %s: an answer of %d bytes is refused", self.target, host.point.directory or "the host", len(found))
            found = encode({"errno": errno.EIO, "reason": f"an answer of {len(found)} bytes"})
        host.health.answered(time.monotonic())
        _, asked = host.pending.pop(call)
        self.counts["bytes"] += len(found)
        slot = host.taken.pop(call, -1)
        answer = _with_handle(found) if slot >= 0 else None
        if answer is not None:
            server = self._restarts

            def pulled(data: memoryview | None) -> None:
                self._post(lambda: self._pulled(host, epoch, server, call, asked, slot, answer.body, data))

            read_slot(answer.blob, answer.body["size"], pulled)
            return
        if slot >= 0:
            host.slots.append(slot)
        assert self._channel is not None
        self._channel.queue({"call": call}, found)

    def _pulled(
        self, host: _Host, epoch: int, server: int, call: int, asked: bytes, slot: int, body: dict[str, Any], data: memoryview | None
    ) -> None:
        """The bytes of a slot are here, or could not be read: the host is asked for them in an answer then, and the slot stays unused."""
        if server != self._restarts:
            # The calls of an earlier server have the same numbers as others.
            return
        if data is not None:
            if epoch == host.epoch:
                host.slots.append(slot)
            self.counts["bytes"] += len(data)
            del body["size"]
            assert self._channel is not None
            self._channel.queue({"call": call, "answer": body}, data)
        elif host.health.lost:
            self._fail(call, host)
        else:
            again = decode(asked).body
            del again["slot"]
            host.pending[call] = (time.monotonic(), encode(again))
            if host.health.is_served:
                self._send(host, call)

    def _look_at(self, host: _Host, now: float) -> None:
        actions = host.health.look(now, min((at for at, _ in host.pending.values()), default=None))
        if not host.health.is_served and Action.LOSE in actions:
            # Answers that arrive later belong to an earlier service.
            host.epoch += 1
        for action in actions:
            {Action.PING: self._ping, Action.LOSE: self._lose, Action.SEARCH: self._search}[action](host)

    def _ping(self, host: _Host) -> None:
        epoch = host.epoch

        def answered(found: bytes | Exception) -> None:
            if epoch != host.epoch:
                return
            if isinstance(found, PeerEnded):
                self._no_service(host)
            else:
                host.health.answered(time.monotonic())

        try:
            ask_peer(host.peer, encode({"op": "ping", "token": host.token}), lambda found: self._post(lambda: answered(found)))
        except PeerEnded as e:
            answered(e)

    def _no_service(self, host: _Host) -> None:
        if host.health.is_served:
            host.health.ended(time.monotonic())
            host.epoch += 1

    def _lose(self, host: _Host) -> None:
        _log.warning("%s: %s is lost: %s", self.target, host.point.directory or "the host", host.health.lost)
        host.taken.clear()
        for call in list(host.pending):
            del host.pending[call]
            self._fail(call, host)

    def _fail(self, call: int, host: _Host) -> None:
        assert self._channel is not None
        self._channel.queue({"call": call}, encode({"errno": errno.EIO, "reason": host.health.lost}))

    def _search(self, host: _Host) -> None:
        def search() -> None:
            found = False
            try:
                host.find(self._request.finder)
                found = True
            except Exception as e:  # also for a malformed answer
                _log.debug("%s: %s: %s", self.target, host.point.directory, e)
            self._post(lambda: self._found(host, found=found))

        threading.Thread(target=search, name="monarch-gather-search", daemon=True).start()

    def _found(self, host: _Host, *, found: bool) -> None:
        host.health.found(time.monotonic(), found=found)
        if not found:
            return
        # A subscription has its own slots.
        host.slots = [slot for slot in range(SLOTS) if slot not in host.taken.values()]
        assert self._channel is not None
        self._channel.queue({"changed": host.number}, encode({"changes": None}))
        for call in list(host.pending):
            self._send(host, call)
