"""`monarch.fs.gather`: directories of hosts as one live, read-only directory of the client.

The client only starts and ends the mount: the bridge to the hosts is in the service on this machine, and the server of the mount is a child
of it. So a thread of the client that waits for the mount, also in a page fault, waits for no other thread of the client. When the client
ends, in whatever way, its services end, and the server unmounts. When the bridge is killed, the server unmounts too, and the client mounts
anew.
"""

from __future__ import annotations

import atexit
import contextvars
import errno
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from monarch.actor import HostMesh, MonarchError, this_host
from monarch.extension import Request, is_ending, serve, service
from monarch.fs._daemon.mount_record import mount_key, remove_made
from monarch.fs._gather.bridge_request import MOUNT_NAME, BridgeRequest, Point
from monarch.fs._gather.host_request import REQUESTS, decode, encode
from monarch.fs._gather.peer_end import when_peer_ends
from monarch.fs._gather.service import NAME
from monarch.fs._kernel import connection, preflight
from monarch.fs._kernel.machine import place_here
from monarch.fs._kernel.mount_table import mount_row
from monarch.fs._kernel.user_entry import entry_problem
from monarch.fs._relay.peer import Peer, peer_here
from monarch.fs._tree.point_key import point_key, points, remote_path
from monarch.fs.errors import FsError, MountBusyError, PreflightError

CACHE_BYTES = 256 << 20
_READ_TIMEOUT = 60.0
# Seconds that the bridge may need after the deadline of a close.
_END_SECONDS = 12.0
# Seconds for attempts to unmount a mount in use, unless `close` is called with a deadline.
_DEADLINE_SECONDS = 3.0
# The most attempts to reopen a mount whose bridge was killed, each one second later than the last.
_REOPENS = 5
# Seconds to find the service of a lost host.
_FIND_SECONDS = 10.0
_log = logging.getLogger("monarch.fs")
# Open mounts, kept until they are closed even if the caller drops them.
_open: set[GatherMount] = set()


def gather(
    hosts: HostMesh | Mapping[str, HostMesh], remote: str, local: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES
) -> GatherMount:
    """Shows `remote` of each host, live and read-only, at `local`/<key>; waits until it is mounted.

    The key of a host is its coordinates (`hosts_0`); a mesh without dimensions is shown at `local` itself. `$SUBDIR` in `remote` is the
    key. Several meshes by their names are shown at `local`/<name>/<key>. `cache_bytes` bounds the contents that are kept.

    `ValueError` for paths that are not absolute, and for a mount point in what a host of this machine shows; `MountBusyError` where
    something is mounted at `local`; `PreflightError` where this machine cannot mount; `FsError` with a table of the hosts that do not
    answer.
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
        missing = [*preflight.problems(), *filter(None, (entry_problem(),))]
        if missing:
            raise PreflightError({"this machine": missing}, path=target)
        found = connection.mount_point(target)
        if found.kind == "live":
            what = " ".join(found.what or ())
            raise MountBusyError(f"{what} is mounted there", path=target, hint="unmount it, or name another directory")
        if found.kind == "dead":
            connection.detach(target, lazy=True)
        self._places, self._cache_bytes = places, cache_bytes
        self._lock = threading.Lock()
        # Set if the mount must not be reopened: closed, unmounted by hand, or given up.
        self._over = threading.Event()
        self._finder = self._serve_finder()
        self._is_file = _is_file(places, target)
        self._made = _make(target, is_file=self._is_file)
        try:
            self._open()
        except BaseException:
            self._remove_made()
            raise
        _open.add(self)

    def _open(self) -> None:
        """Mounts. `FsError`, `MonarchError`."""
        self._bridge: Any = service(this_host(), NAME)
        peers = _services(self._places, self.target)
        _refuse_own_root(self._places, self.target)
        chosen = [Point(place.directory, place.root, peer) for place, peer in zip(self._places, peers, strict=True)]
        refusal = self._bridge.open_mount.call_one(
            BridgeRequest(self.target, chosen, self._finder, self._cache_bytes, self._is_file, _READ_TIMEOUT)
        ).get()
        if refusal is not None:
            if refusal.busy:
                raise MountBusyError(refusal.reason, path=self.target)
            raise FsError(refusal.reason, path=self.target, errno=refusal.errno)
        when_peer_ends(Peer(*self._bridge.peer.call_one().get()), self._bridge_ended)

    def _bridge_ended(self) -> None:
        if not self._over.is_set() and not is_ending():
            threading.Thread(target=self._open_again, name="monarch-gather-open", daemon=True).start()

    def _open_again(self) -> None:
        """The server unmounts when its bridge has ended, unless it was killed too."""
        for attempt in range(_REOPENS):
            if self._over.wait(attempt):
                return
            with self._lock:
                try:
                    self._detach()
                    self._open()
                except (MonarchError, OSError) as e:
                    _log.warning("%s: its bridge has ended, and it cannot be mounted anew: %s", self.target, str(e).splitlines()[0])
                    continue
            if self._over.is_set():
                # Closed in the meantime.
                self._end(0.0)
            return
        self._over.set()

    def _detach(self) -> None:
        """Unmounts without the bridge. `FsError`."""
        row = mount_row(self.target)
        if row is not None and row.source == MOUNT_NAME:
            connection.detach(self.target, lazy=True)

    def _serve_finder(self) -> Peer:
        """Answers the bridge where the service of a host is that has lost its service: only the client reaches the agents of all hosts."""
        name = f"{REQUESTS}.find.{secrets.token_hex(16)}"
        # A handler remains registered after the mount is dropped.
        mount: weakref.ref[GatherMount] = weakref.ref(self)

        def asked(request: Request) -> bytes | None:
            body, found = decode(request.body).body, mount()
            if found is None or "point" not in body:
                if found is not None:
                    found._over.set()
                return encode({})
            request.defer()
            context = contextvars.copy_context()
            place = found._places[int(body["point"])]
            threading.Thread(target=context.run, args=(_find, request, place), name="monarch-gather-find", daemon=True).start()
            return None

        serve(name, asked)
        return peer_here(name)

    def close(self, *, deadline: float | None = None) -> None:
        """Unmounts. A mount in use is tried three times more within `deadline` seconds, by default 3; then it is detached, and reads of
        files that are still open fail. Again: nothing happens. `ValueError` for a deadline below 0.
        """
        deadline = _DEADLINE_SECONDS if deadline is None else deadline
        if not 0 <= deadline < float("inf"):
            raise ValueError(f"deadline is {deadline!r}: it is a number of seconds, 0 or above")
        if self._closed:
            return
        self._closed = True
        self._over.set()
        _open.discard(self)
        # The mount may be reopened at this moment, and then ends on its own.
        is_free = self._lock.acquire(timeout=_END_SECONDS)
        try:
            self._end(deadline)
        finally:
            if is_free:
                self._lock.release()
        self._remove_made()

    def _remove_made(self) -> None:
        with suppress(OSError):
            if self._is_file and self._made and mount_row(self.target) is None and not os.lstat(self.target).st_size:
                os.unlink(self.target)
        remove_made(self._made)

    def _end(self, deadline: float) -> None:
        try:
            busy = self._bridge.close_mount.call_one(self._finder.name, deadline).get(timeout=deadline + _END_SECONDS)
            if busy:
                _log.warning("%s: detached while it was in use: %s", self.target, busy)
        except (MonarchError, TimeoutError) as e:
            # At the end of the program its services may end first, and the server unmounts on its own.
            if not is_ending():
                _log.warning("%s: closed without an answer of its bridge: %s", self.target, str(e).splitlines()[0])
            with suppress(FsError):
                self._detach()

    @property
    def is_mounted(self) -> bool:
        """Whether a view is mounted there: false after `close`, after an unmount by hand, and when the mount has ended for good."""
        row = None if self._over.is_set() else mount_row(self.target)
        return row is not None and row.source == MOUNT_NAME

    def counters(self) -> dict[str, int]:
        """Requests to hosts, and bytes of their answers."""
        return self._bridge.mount_counters.call_one(self._finder.name).get()

    def server_pid(self) -> int:
        """The process that answers the kernel."""
        return self._bridge.server_pid.call_one(self._finder.name).get()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # In a forked child the mount belongs to the parent.
        if self.pid == os.getpid():
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


def _refuse_own_root(places: Sequence[_Place], target: str) -> None:
    """`ValueError` where the view would be a part of what it shows: each look at it would wait for itself."""
    here, top = place_here(), os.path.realpath(target)
    for mesh in {id(place.mesh): place.mesh for place in places}.values():
        own = [place for place in places if place.mesh is mesh]
        for place, found in zip(own, service(mesh, NAME).place.call().get().values(), strict=True):
            root = os.path.realpath(place.root)
            if found == here and os.path.commonpath((root, top)) == root:
                raise ValueError(f"the mount point {target} is in {place.root}, which this host shows: name another directory")


def _find(request: Request, place: _Place) -> None:
    try:
        found = place.find(_FIND_SECONDS)
    except (MonarchError, TimeoutError, RuntimeError) as e:
        request.fail(str(e).encode())
    else:
        request.answer(encode({"peer": [found.proc, found.name, found.places]}))


def _is_file(places: Sequence[_Place], target: str) -> bool:
    """Whether the mount point is to be a file: the root of the only host is one. `FsError` where the host does not answer."""
    if places[0].directory:
        return False
    try:
        return service(places[0].mesh, NAME).is_file.call(places[0].root).get().values()[0]
    except MonarchError as e:
        raise FsError(f"the hosts cannot be gathered: {e}", path=target) from e


def _make(target: str, *, is_file: bool) -> list[str]:
    """Makes the mount point; what was missing, outermost first."""
    made: list[str] = []
    path = target
    while not os.path.lexists(path):
        made.insert(0, path)
        path = os.path.dirname(path)
    with suppress(FileExistsError):
        os.makedirs(os.path.dirname(target) if is_file else target, exist_ok=True)
    if is_file and target in made:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    if is_file and not os.path.isfile(target):
        raise FsError("the mount point is no file, and the path on the host is one", path=target, errno=errno.EISDIR)
    if not is_file and not os.path.isdir(target):
        raise FsError("the mount point is no directory", path=target, errno=errno.ENOTDIR)
    return made


@atexit.register
def _close_all() -> None:
    for mount in list(_open):
        if mount.pid != os.getpid():
            # In a forked child the mount belongs to the parent.
            continue
        try:
            mount.close(deadline=0.3)
        except Exception as e:
            _log.warning("%s: not closed: %s", mount.target, e)
