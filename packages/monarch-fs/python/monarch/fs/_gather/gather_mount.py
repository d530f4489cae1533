"""`monarch.fs.gather`: directories of hosts as one live, read-only directory of the client.

The client only starts and ends the mount: the bridge to the hosts is in the service on this machine, and the server of the mount is a child
of it. So a thread of the client that waits for the mount, also in a page fault, waits for no other thread of the client. When the client
ends, in whatever way, its services end, and the server unmounts.
"""

from __future__ import annotations

import atexit
import contextvars
import errno
import logging
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from monarch.actor import HostMesh, MonarchError, this_host
from monarch.extension import Request, serve, service
from monarch.fs._daemon.mount_record import mount_key, remove_made
from monarch.fs._gather.bridge_request import BridgeRequest, Point
from monarch.fs._gather.host_request import REQUESTS, decode, encode
from monarch.fs._gather.point_key import point_key, points, remote_path
from monarch.fs._gather.service import NAME
from monarch.fs._kernel import connection, preflight
from monarch.fs._relay.peer import Peer, peer_here
from monarch.fs.errors import FsError, MountBusyError, PreflightError

CACHE_BYTES = 256 << 20
_READ_TIMEOUT = 60.0
# Seconds that the bridge may need beyond the deadline of a close.
_END_SECONDS = 15.0
# To find the service of a host that has lost it.
_FIND_SECONDS = 10.0
_log = logging.getLogger("monarch.fs")
# Kept until they are closed, also where the caller drops them.
_open: set[GatherMount] = set()


def gather(
    hosts: HostMesh | Mapping[str, HostMesh], remote: str, local: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES
) -> GatherMount:
    """Shows `remote` of each host, live and read-only, at `local`/<key>; waits until it is mounted.

    The key of a host is its coordinates (`hosts_0`); a mesh without dimensions is shown at `local` itself. `$SUBDIR` in `remote` is the
    key. Several meshes by their names are shown at `local`/<name>/<key>. `cache_bytes` bounds the contents that are kept.

    `ValueError` for paths that are not absolute; `MountBusyError` where something is mounted at `local`; `PreflightError` where this
    machine cannot mount; `FsError` with a table of the hosts that do not answer.
    """
    if not isinstance(cache_bytes, int) or cache_bytes <= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"cache_bytes is {cache_bytes!r}: it is a number of bytes above 0")
    target = mount_key(os.fspath(local))
    named = {"": hosts} if not isinstance(hosts, Mapping) else dict(hosts)
    chosen: list[_Place] = []
    for name, mesh in named.items():
        if isinstance(hosts, Mapping) and (name in ("", ".", "..") or "/" in name or "\0" in name):
            raise ValueError(f"the mesh {name!r} cannot be the name of a directory")
        for rank, at in enumerate(points(mesh.sizes)):
            key = point_key(at)
            chosen.append(_Place(mesh, rank, "/".join(filter(None, (name, key))), remote_path(remote, key)))
    if not chosen:
        raise ValueError("no mesh to gather from")
    return GatherMount(target, chosen, cache_bytes)


class _Place(NamedTuple):
    """A host and what it shows."""

    mesh: HostMesh
    rank: int
    directory: str
    root: str

    def find(self, timeout: float | None = None) -> Peer:
        """The service of the host. `MonarchError`, `TimeoutError`."""
        one = self.mesh.flatten("rank").slice(rank=self.rank) if self.mesh.sizes else self.mesh
        return Peer(*service(one, NAME, timeout=timeout).peer.call().get(timeout=timeout).values()[0])


class GatherMount:
    """A view of hosts on the client; a context manager. It is closed when the interpreter exits."""

    __module__ = "monarch.fs"

    def __init__(self, target: str, places: Sequence[_Place], cache_bytes: int) -> None:
        self.target = target
        self.pid = os.getpid()
        self._closed = False
        missing = preflight.problems()
        if missing:
            raise PreflightError({"this machine": missing}, path=target)
        found = connection.mount_point(target)
        if found.kind == "live":
            what = " ".join(found.what or ())
            raise MountBusyError(f"{what} is mounted there", path=target, hint="unmount it, or name another directory")
        if found.kind == "dead":
            connection.detach(target, lazy=True)
        self._made = _make(target)
        try:
            self._bridge: Any = service(this_host(), NAME)
            chosen = [Point(place.directory, place.root, peer) for place, peer in zip(places, _services(places, target), strict=True)]
            request = BridgeRequest(target, chosen, _finder(places, target), cache_bytes, _READ_TIMEOUT)
            refusal = self._bridge.open_mount.call_one(request).get()
            if refusal is not None:
                if refusal.busy:
                    raise MountBusyError(refusal.reason, path=target)
                raise FsError(refusal.reason, path=target, errno=refusal.errno)
        except BaseException:
            remove_made(self._made)
            raise
        _open.add(self)

    def close(self, *, deadline: float = 3.0) -> None:
        """Unmounts. A mount in use is tried three times more within `deadline` seconds; then it is detached, and reads of files that are
        still open fail. Again: nothing happens. `ValueError` for a deadline below 0.
        """
        if not deadline >= 0:
            raise ValueError(f"deadline is {deadline!r}: it is a number of seconds, 0 or above")
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        try:
            busy = self._bridge.close_mount.call_one(self.target, deadline).get(timeout=deadline + _END_SECONDS)
            if busy:
                _log.warning("%s: detached while it was in use: %s", self.target, busy)
        except (MonarchError, TimeoutError) as e:
            # The server unmounts when the bridge has ended.
            _log.warning("%s: closed without an answer of its bridge: %s", self.target, str(e).splitlines()[0])
        remove_made(self._made)

    def counters(self) -> dict[str, int]:
        """Requests to hosts, and bytes of their answers."""
        return self._bridge.mount_counters.call_one(self.target).get()

    def server_pid(self) -> int:
        """The process that answers the kernel."""
        return self._bridge.server_pid.call_one(self.target).get()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GatherMount({self.target!r}{', closed' if self._closed else ''})"


def _services(places: Sequence[_Place], target: str) -> list[Peer]:
    """The services of all hosts; those of a mesh start at the same time."""
    found: dict[int, list[Peer]] = {}
    for place in places:
        if id(place.mesh) not in found:
            try:
                found[id(place.mesh)] = [Peer(*peer) for peer in service(place.mesh, NAME).peer.call().get().values()]
            except MonarchError as e:
                raise FsError(f"the hosts cannot be gathered: {e}", path=target) from e
    return [found[id(place.mesh)][place.rank] for place in places]


def _finder(places: Sequence[_Place], target: str) -> Peer:
    """Answers the bridge where the service of a host is that has lost its service: only the client reaches the agents of all hosts."""
    name = f"{REQUESTS}.find.{secrets.token_hex(16)}"

    def asked(request: Request) -> None:
        request.defer()
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(find, request), name=f"monarch gather {target}", daemon=True).start()

    def find(request: Request) -> None:
        try:
            found = places[int(decode(request.body).body["point"])].find(_FIND_SECONDS)
        except (MonarchError, TimeoutError, RuntimeError) as e:
            request.fail(str(e).encode())
        else:
            request.answer(encode({"peer": [found.proc, found.name, found.places]}))

    serve(name, asked)
    return peer_here(name)


def _make(target: str) -> list[str]:
    """Makes the mount point; the directories that were missing, outermost first."""
    made: list[str] = []
    path = target
    while not os.path.lexists(path):
        made.insert(0, path)
        path = os.path.dirname(path)
    os.makedirs(target, exist_ok=True)
    if not os.path.isdir(target):
        raise FsError("the mount point is no directory", path=target, errno=errno.ENOTDIR)
    return made


@atexit.register
def _close_all() -> None:
    for mount in list(_open):
        if mount.pid != os.getpid():
            # A forked child: the mount is its parent's.
            continue
        try:
            mount.close(deadline=0.3)
        except Exception as e:
            _log.warning("%s: not closed: %s", mount.target, e)
