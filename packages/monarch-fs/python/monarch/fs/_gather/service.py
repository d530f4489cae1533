"""The service of a host that answers for directories of it: one process for each host and job, by its entry point of `monarch.service`.

A subscription is a root that one gather mount shows. It begins with an "open" request, and ends with a "close" request or with the process
that opened it. Requests come to the extension thread of the process and are answered on threads, so a slow disk delays its own
requests. A "ping" is answered at once: a host with a slow disk is not a lost host.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from monarch.actor import Actor, endpoint
from monarch.extension import Request, Service, serve
from monarch.fs._gather.bridge import Bridge
from monarch.fs._gather.bridge_request import BridgeRequest, Refusal
from monarch.fs._gather.file_server import FileServer
from monarch.fs._gather.host_request import REQUESTS, answer, decode, encode, encode_changes, peer_from
from monarch.fs._gather.peer_end import when_peer_ends
from monarch.fs._gather.slots import Slots
from monarch.fs._gather.watcher import Changed
from monarch.fs._kernel.machine import place_here
from monarch.fs._relay.peer import Peer, PeerEnded, ask_peer, peer_here
from monarch.fs.errors import FsError, MountBusyError

# Its name in the entry point.
NAME = "gather"
_THREADS = 16
_log = logging.getLogger("monarch.fs")


class GatherHost(Actor):
    """The actor of the service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[str, tuple[FileServer, Slots]] = {}
        # By the name of the requests to their clients: another mount may have replaced one that was unmounted by hand.
        self._bridges: dict[str, Bridge] = {}
        self._pool = ThreadPoolExecutor(_THREADS, "monarch-gather")
        serve(REQUESTS, self._asked)

    @endpoint
    async def peer(self) -> Peer:
        """Where the requests go."""
        return peer_here(REQUESTS)

    @endpoint
    async def place(self) -> str:
        """The machine of the host, and its mount namespace."""
        return place_here()

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def is_file(self, root: str) -> bool:
        """Whether a root is a file."""
        return await asyncio.to_thread(os.path.isfile, root)

    # Gather mounts of a client on this machine. A service, not a proc of the client: the client survives its end.

    @endpoint
    async def open_mount(self, request: BridgeRequest) -> Refusal | None:
        """Returns when it is mounted; an error of an endpoint would lose its type on the way."""
        bridge = Bridge(request)
        try:
            await asyncio.to_thread(bridge.open)
        except FsError as e:
            return Refusal(isinstance(e, MountBusyError), e.reason, e.errno or errno.EIO)
        self._bridges[request.finder.name] = bridge
        return None

    @endpoint
    async def close_mount(self, finder: str, deadline: float) -> str:
        """What held the mount when the deadline had passed, else empty."""
        bridge = self._bridges.pop(finder, None)
        return "" if bridge is None else await asyncio.to_thread(bridge.close, deadline)

    @endpoint
    async def mount_counters(self, finder: str) -> dict[str, int]:
        """Requests to the hosts and bytes of their answers."""
        bridge = self._bridges.get(finder)
        return {} if bridge is None else dict(bridge.counts)

    @endpoint
    async def server_pid(self, finder: str) -> int:
        bridge = self._bridges.get(finder)
        return -1 if bridge is None else bridge.server_pid

    def _asked(self, request: Request) -> bytes | None:
        try:
            body = decode(request.body).body
            operation, token = body["op"], body["token"]
        except (ValueError, KeyError) as e:
            return encode({"errno": errno.EINVAL, "reason": f"malformed request: {e!r}"})
        if operation == "ping":
            return encode({})
        if operation == "open":
            return self._open(token, body["root"], peer_from(body["peer"]))
        if operation == "close":
            self._close(token)
            return encode({})
        with self._lock:
            found = self._servers.get(token)
        if found is None:
            return encode({"errno": errno.ESTALE, "reason": "no such subscription"})
        request.defer()
        server, slots = found
        self._pool.submit(lambda: request.answer(answer(server, body, slots)))
        return None

    def _open(self, token: str, root: str, client: Peer) -> bytes:
        def report(changes: list[Changed] | None) -> None:
            # The end of a client closes its subscription.
            with suppress(PeerEnded):
                ask_peer(client, encode_changes(changes), _ignored)

        try:
            server = FileServer(root, report)
        except ValueError as e:
            return encode({"errno": errno.EINVAL, "reason": str(e)})
        with self._lock:
            before, self._servers[token] = self._servers.get(token), (server, Slots())
        if before is not None:
            self._end(before)
        else:
            when_peer_ends(client, lambda: self._close(token))
        return encode({"file": os.path.isfile(root)})

    def _close(self, token: str) -> None:
        with self._lock:
            found = self._servers.pop(token, None)
        if found is not None:
            self._end(found)

    def _end(self, found: tuple[FileServer, Slots]) -> None:
        for part in found:
            self._pool.submit(part.close)


def _ignored(_: object) -> None:
    """The answer to a report has nothing in it."""


SERVICE = Service(GatherHost)
