"""A directory of the client as a read-only mount on every host of a mesh: the client's side.

`mount` returns at once. One thread of the mount does what changes it, in order: it opens, refreshes, brings hosts back that were lost, and
closes. The agreement of the hosts on a generation is `_daemon/generation.py`; this file sends its steps and gives it the answers. Bytes are
read by the hosts when they need them (`Origin`), from the index of the source.
"""

from __future__ import annotations

import contextvars
import errno
import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from monarch.actor import ActorMesh, Future, HostMesh, MonarchError, SupervisionError
from monarch.extension import HostId, ProcId, Promise, places, promise, service, watch, when_done
from monarch.fs._daemon.generation import Do, Outcome, Rollout, Step
from monarch.fs._hosts.host_answer import (
    FetchReport,
    HostFacts,
    HostFailure,
    HostMountStatus,
    MountStatus,
    OpenRequest,
    RefreshReport,
)
from monarch.fs._hosts.observation import recorded_refresh
from monarch.fs._index.chunk_selection import bytes_of, chunks_of
from monarch.fs._index.index import Index, Scan, removed
from monarch.fs._index.pattern import Exclusion
from monarch.fs._kernel.machine import place_here
from monarch.fs._relay.origin import Origin
from monarch.fs._tree.changed import changed_paths, new_chunks
from monarch.fs._tree.difference import difference
from monarch.fs._tree.point_key import keys_of, path_on
from monarch.fs._tree.table import Table
from monarch.fs.errors import FsError, MountBusyError, PreflightError, SourceGoneError, StaleSourceError

SERVICE = "fs"
_log = logging.getLogger("monarch.fs")
_T = TypeVar("_T")
# Seconds after which a host that did not answer a step of a refresh is lost to the refresh. Its daemon answers within 60.
_STEP_SECONDS = 90.0
# Seconds for finding the service of a host again.
_RETURN_SECONDS = 20.0
_CLOSE_SECONDS = 30.0


def mount(
    hosts: HostMesh,
    source: str | os.PathLike[str],
    target: str | None = None,
    *,
    exclude: Sequence[str] = (".monarch",),
    gitignore: bool = False,
    pyc: Literal["as-is", "compile"] = "compile",
    fetch: Literal["hot", "all", "demand"] = "hot",
    allow_other: bool = False,
    read_timeout: float = 60,
) -> Mount:
    """Shows a directory of the client on every host, read-only. The mount is pending at once.

    Contents follow as they are read. A read that cannot be served within `read_timeout` fails with EIO.

    Args:
        hosts: the hosts.
        source: the directory.
        target: the absolute path on the hosts, by default that of `source`; `$SUBDIR` in it is the key of each host (`hosts_0`), so that
            hosts of one machine have mount points of their own.
        exclude: glob patterns of files that are left out.
        gitignore: leaves out the files that git ignores.
        pyc: "compile" adds compiled modules.
        fetch: the files that are sent before they are read: "hot", up to 256 KiB each, "all", or none for "demand".
        allow_other: shows the mount to other users of the hosts.
        read_timeout: seconds.

    Returns:
        The mount; its `ready` is done when every host shows all names, and its `with` statement unmounts.

    Raises:
        ValueError: the target is relative or the source, or a pattern is malformed.
        OSError: the source does not exist, is no directory, or cannot be read.
        PreflightError: from `ready`: a host lacks what a mount needs; no host has the mount.
        MountBusyError: from `ready`: another file system is mounted at the target.
        FsError: from `ready`, with a table of the hosts.

    ```python
    from pathlib import Path

    from monarch.actor import this_host
    from monarch.fs import mount

    Path("source").mkdir()
    Path("source/model.py").write_text("layers = 12")
    target = str(Path("mounted").resolve())
    with mount(this_host(), "source", target) as project:
        project.ready.get()
        assert Path(target, "model.py").read_text() == "layers = 12"
    ```
    """
    text = os.fsdecode(source)
    if not text:
        raise ValueError("the source is empty: name a directory")
    place: str = os.path.abspath(text)
    found = os.stat(place)
    if not os.path.isdir(place):
        raise NotADirectoryError(20, os.strerror(20), place)
    if not found.st_mode or not os.access(place, os.R_OK | os.X_OK):
        raise PermissionError(13, os.strerror(13), place)
    path = place if target is None else os.fspath(target)
    if not os.path.isabs(path) or "\0" in path:
        raise ValueError(f"target {path!r} is no absolute path")
    if fetch not in ("hot", "all", "demand"):
        raise ValueError(f"fetch is {fetch!r}: it is 'hot', 'all' or 'demand'")
    if not isinstance(read_timeout, (int, float)) or not read_timeout > 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"read_timeout is {read_timeout!r}: it is a number of seconds above 0")
    index = Index(place, exclude=exclude, gitignore=gitignore, pyc=pyc)
    return Mount(hosts, index, os.path.normpath(path), fetch, allow_other, float(read_timeout))


class _Host:
    """A host of the mesh, and its service."""

    def __init__(self, rank: int, actor: ActorMesh, facts: HostFacts) -> None:
        self.rank, self.actor, self.facts = rank, actor, facts
        # Names of machines may be equal; a host is identified by its rank.
        self.key = f"{rank:08d}"


class Mount:
    """A mount on a mesh of hosts. A context manager, with and without `async`; leaving it unmounts."""

    __module__ = "monarch.fs"

    def __init__(self, hosts: HostMesh, index: Index, target: str, fetch: str, allow_other: bool, read_timeout: float) -> None:
        self.source, self.target = index.source, target
        self._pid = os.getpid()
        self._mesh, self._index = hosts, index
        self._fetch, self._allow_other, self._read_timeout = fetch, allow_other, read_timeout
        self._tree = secrets.token_hex(16)
        self._origin = Origin()
        self._hosts: list[_Host] = []
        self._table: Table | None = None
        # Chunks of the last refresh that hosts fetch at once.
        self._eager: list[bytes] = []
        self._rollout = Rollout("")
        self._warned: set[str] = set()
        self._closing: Future[None] | None = None
        # No request is queued after the end of the queue.
        self._queueing = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.ready: Future[None] = self._ordered(f"the mount of {self.source} at {target}", self._open)
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name=f"monarch mount {target}", daemon=True).start()

    @property
    def generation(self) -> str:
        """The digest of what the hosts show, in hex; waits until the mount is ready."""
        self.ready.get()
        return self._rollout.generation

    def refresh(self) -> Future[RefreshReport]:
        """Shows the source as it is now, on all hosts or on none: a host that cannot prepare fails it for all, with `FsError`.

        A host that is lost after the decision shows the new generation when it returns.
        """
        return self._ordered(f"the refresh of {self.target}", lambda: recorded_refresh(self.target, self._refresh))

    def prefetch(self, *patterns: str) -> Future[None]:
        """Brings the files that match one of these patterns to every host; all files without patterns. Patterns are those of `exclude`.

        `ValueError` for a malformed pattern; the future raises `FileNotFoundError` for one that matches nothing in the tree.
        """
        wanted = [Exclusion((pattern,)) for pattern in patterns]
        return self._beside(f"the prefetch of {self.target}", lambda: self._bring(wanted))

    def complete(self) -> Future[None]:
        """Done when every byte is on every host: from then on the mount does not need the client.

        Where the service of a host ends meanwhile, its next one goes on; `FsError` names a host that is lost.
        `StaleSourceError` if files changed or were removed since the index, `SourceGoneError` with the bytes that are missing on each host.
        """
        return self._beside(f"all bytes of {self.target}", lambda: self._bring(()))

    def status(self) -> Future[MountStatus]:
        """The state of the mount on each host; a host that cannot be reached is "lost"."""
        return self._beside(f"the status of {self.target}", self._status)

    def close(self) -> Future[None]:
        """Unmounts on all hosts, for this user of the mount. Again: the same future."""
        with self._queueing:
            if self._closing is None:
                self._closing = self._queued(f"the end of the mount at {self.target}", self._close)
                self._work.put(None)
            return self._closing

    def __enter__(self) -> Self:
        self.ready.get()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # In a forked child the mount belongs to the parent.
        if self._pid == os.getpid():
            self.close().get()

    async def __aenter__(self) -> Self:
        await self.ready
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pid == os.getpid():
            await self.close()

    def __repr__(self) -> str:
        return f"Mount({self.source!r} at {self.target!r})"

    # Threads.

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _ordered(self, name: str, action: Callable[[], _T]) -> Future[_T]:
        with self._queueing:
            if self._closing is not None:
                raise FsError("the mount is closed", path=self.target)
            return self._queued(name, action)

    def _queued(self, name: str, action: Callable[[], _T]) -> Future[_T]:
        made: Promise[_T] = promise(name)
        self._work.put(lambda: _fulfil(made, action))
        return made.future

    def _beside(self, name: str, action: Callable[[], _T]) -> Future[_T]:
        if self._closing is not None:
            raise FsError("the mount is closed", path=self.target)
        made: Promise[_T] = promise(name)

        def run() -> None:
            def after() -> _T:
                self.ready.get()
                return action()

            _fulfil(made, after)

        threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True).start()
        return made.future

    # Opening and closing.

    def _open(self) -> None:
        # The services of the hosts start while the source is scanned.
        looking: Promise[Scan] = promise(f"the look at {self.source}")
        threading.Thread(target=_fulfil, args=(looking, self._scanned), name=f"monarch look {self.source}", daemon=True).start()
        try:
            actors = service(self._mesh, SERVICE)
            facts = actors.facts.call(self._allow_other).get().values()
            missing = {f"{fact.name} (rank {rank})": fact.missing for rank, fact in enumerate(facts) if fact.missing}
            if missing:
                raise PreflightError(missing, path=self.target)
            here, source = place_here(), os.path.realpath(self.source)
            for fact, key in zip(facts, keys_of(self._mesh.sizes), strict=True):
                if fact.place == here and source == os.path.realpath(path_on(self.target, key)):
                    raise ValueError(f"the target {self.target} is the source itself on {fact.name}: name another mount point")
            scan = looking.future.get()
            self._origin.serve(self._tree, self._index.read)
            self._hosts = [_Host(rank, _single(actors, rank, len(facts)), fact) for rank, fact in enumerate(facts)]
            self._keep(scan)
            try:
                answers = actors.open.call(self._request()).get().values()
            except MonarchError as e:
                self._unmount()
                raise FsError(str(e), path=self.target) from e
            failed = {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, HostFailure)}
            if failed:
                self._unmount()
                raise self._refused(failed)
        except BaseException:
            self._origin.close()
            raise
        self._rollout = Rollout(scan.table.generation, [host.key for host in self._hosts])
        for host in self._hosts:
            self._watch(host)

    def _refused(self, failed: dict[int, HostFailure]) -> Exception:
        first = next(iter(failed.values()))
        host = self._hosts[next(iter(failed))].facts.name
        rows = "\n".join(f"  {self._hosts[rank].facts.name} (rank {rank}): {failure.reason}" for rank, failure in failed.items())
        text = first.reason if len(failed) == 1 else f"{len(failed)} of {len(self._hosts)} hosts refused\n{rows}"
        if all(failure.kind == "busy" for failure in failed.values()):
            return MountBusyError(text, path=self.target, host=host)
        if all(failure.kind == "value" for failure in failed.values()):
            return ValueError(f"{self.target} on {host}: {text}")
        return FsError(text, path=self.target, host=host, errno=first.errno)

    def _request(self) -> OpenRequest:
        return OpenRequest(
            self._tree,
            f"{self.source} of {socket.gethostname()} ({blake2b(place_here().encode(), digest_size=4).hexdigest()})",
            self.target,
            self._shown_table().encode(),
            [host.facts.peer for host in self._hosts],
            keys_of(self._mesh.sizes),
            self._origin.peer(),
            self._fetch,
            self._allow_other,
            self._read_timeout,
        )

    def _shown_table(self) -> Table:
        assert self._table is not None
        return self._table

    def _close(self) -> None:
        if self._table is not None:
            self._unmount()
        self._origin.close()
        self._index.close()

    def _unmount(self) -> None:
        """On every host that can be reached; what holds a mount is logged."""
        ends: list[tuple[_Host, Future[Any]]] = []
        for host in self._hosts:
            with suppress(MonarchError):
                ends.append((host, host.actor.close.call_one(self._tree)))
        until = time.monotonic() + _CLOSE_SECONDS
        for host, end in ends:
            try:
                found = end.get(timeout=max(0.1, until - time.monotonic()))
            except (MonarchError, TimeoutError) as e:
                _log.warning("%s on %s: not unmounted: %s", self.target, host.facts.name, str(e).splitlines()[0])
                continue
            if isinstance(found, HostFailure):
                _log.warning("%s on %s: not unmounted: %s", self.target, host.facts.name, found.reason)
            elif found:
                held = ", ".join(f"{pid} ({command})" for pid, command in found[:5])
                _log.warning("%s on %s was in use and is detached; held by %s", self.target, host.facts.name, held)

    # Generations.

    def _scanned(self) -> Scan:
        scan = self._index.scan()
        for warning in scan.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                _log.warning("%s", warning)
        return scan

    def _keep(self, scan: Scan) -> None:
        """The table of the scan is that of this mount from now on."""
        old, self._table = self._table, scan.table
        if old is None or self._fetch == "demand":
            self._eager = []
        else:
            self._eager = new_chunks(old, scan.table)
            if self._fetch == "hot":
                large = scan.table.large_chunk_ids()
                self._eager = [id for id in self._eager if id not in large]

    def _refresh(self) -> RefreshReport:
        began = time.monotonic()
        self.ready.get()
        self._return_lost()
        scan = self._scanned()
        old = self._shown_table()
        if scan.table.generation == self._rollout.generation:
            self._confirm()
            return RefreshReport(self._rollout.generation, 0, 0, time.monotonic() - began)
        sent = self._origin.bytes_sent(self._tree)
        delta = difference(old, scan.table)
        self._keep(scan)
        outcome = self._round(self._rollout.start(scan.table.generation), delta)
        if not outcome.committed:
            self._table = old
            rows = "\n".join(f"  {self._named(key)}: {reason}" for key, reason in outcome.failures.items())
            text = f"the refresh has changed nothing: {len(outcome.failures)} hosts cannot show it\n{rows}"
            raise FsError(text, path=self.target, host=self._named(next(iter(outcome.failures), "")))
        for key, reason in outcome.failures.items():
            _log.warning("%s on %s: %s; it shows the new generation when it returns", self.target, self._named(key), reason)
        changed = sum(1 for _ in changed_paths(old, scan.table))
        sent = self._origin.bytes_sent(self._tree) - sent + len(delta) * len(self._hosts)
        return RefreshReport(scan.table.generation, changed, sent, time.monotonic() - began)

    def _confirm(self) -> None:
        """`FsError` where a host that can be reached shows the mount no more, as when another process has unmounted it."""
        asked: dict[int, Future[Any]] = {}
        for host in self._hosts:
            with suppress(MonarchError):
                if host.key not in self._rollout.behind():
                    asked[host.rank] = host.actor.confirm.call_one(self._tree, self._rollout.generation)
        answers = [(rank, _answer(future, _STEP_SECONDS)) for rank, future in asked.items()]
        if failed := {rank: answer for rank, answer in answers if isinstance(answer, HostFailure)}:
            raise self._refused(failed)

    def _named(self, key: str) -> str:
        return f"{self._hosts[int(key)].facts.name} (rank {int(key)})" if key else ""

    def _round(self, steps: Sequence[Step], delta: bytes = b"") -> Outcome:
        """Sends the steps and takes the answers until the agreement is reached."""
        answers: queue.SimpleQueue[tuple[Step, object]] = queue.SimpleQueue()
        waiting: set[str] = set()
        pending = deque(steps)
        outcome = Outcome(self._rollout.generation, True, {})
        while pending or waiting:
            while pending:
                step = pending.popleft()
                if step.outcome is not None:
                    outcome = step.outcome
                    if not outcome.committed:
                        waiting.clear()
                else:
                    self._send(step, delta, answers, waiting)
            if not waiting:
                break
            try:
                step, answer = answers.get(timeout=_STEP_SECONDS)
            except queue.Empty:
                silent, reason = sorted(waiting), f"no answer for {_STEP_SECONDS:g} s"
                waiting.clear()
                pending.extend(self._rollout.cancel(reason))
                for key in silent:
                    pending.extend(self._rollout.lost(key))
                continue
            waiting.discard(step.host)
            pending.extend(self._taken(step, answer))
        return outcome

    def _send(self, step: Step, delta: bytes, answers: queue.SimpleQueue[tuple[Step, object]], waiting: set[str]) -> None:
        actor = self._hosts[int(step.host)].actor
        try:
            match step.do:
                case Do.STAGE:
                    future = actor.stage.call_one(self._tree, delta)
                case Do.COMMIT:
                    future = actor.commit.call_one(self._tree, step.generation, self._eager)
                case Do.OPEN:
                    future = actor.open.call_one(self._request())
                case Do.ABORT:
                    actor.abort.call_one(self._tree, step.generation)
                    return
                case _:
                    actor.close.call_one(self._tree)
                    return
        except MonarchError as e:
            if step.do in (Do.STAGE, Do.COMMIT, Do.OPEN):
                waiting.add(step.host)
                answers.put((step, e))
            return
        waiting.add(step.host)
        when_done(future, lambda done: answers.put((step, _answer(done))))

    def _taken(self, step: Step, answer: object) -> list[Step]:
        if isinstance(answer, HostFailure):
            return self._rollout.failed(step.host, step.round, answer.reason)
        if isinstance(answer, BaseException):
            return self._rollout.lost(step.host)
        return self._rollout.staged(step.host, step.round) if step.do is Do.STAGE else self._rollout.shown(step.host, step.round)

    # Lost and returned hosts.

    def _watch(self, host: _Host) -> None:
        """When the service of the host ends, the mount goes on there with the next one."""
        own = {int(job) for job, _ in places()}
        known = next((at for job, at in host.facts.peer.places if job in own), 0)

        def ended(_: object) -> None:
            if self._closing is None:
                self._work.put(lambda: self._lost(host))

        with suppress(MonarchError, LookupError, RuntimeError):
            when_done(watch(ProcId(host.facts.peer.proc), HostId(known)), ended)

    def _lost(self, host: _Host) -> None:
        if self._hosts[host.rank] is host:
            self._rollout.lost(host.key)
            self._return_lost()

    def _return_lost(self) -> None:
        """Opens the mount on hosts that have a service again."""
        for key in self._rollout.behind():
            rank = int(key)
            try:
                actor = service(_single(self._mesh, rank, len(self._hosts)), SERVICE, timeout=_RETURN_SECONDS)
                facts = actor.facts.call(self._allow_other).get(timeout=_RETURN_SECONDS).values()[0]
            except (MonarchError, TimeoutError) as e:
                _log.info("%s on %s: still lost: %s", self.target, self._named(key), str(e).splitlines()[0])
                continue
            self._hosts[rank] = _Host(rank, _single(actor, 0, 1), facts)
            self._round(self._rollout.returned(key))
            self._watch(self._hosts[rank])

    # Contents.

    def _bring(self, patterns: Sequence[Exclusion]) -> None:
        table = self._shown_table()
        ids: list[bytes] | None = None
        if patterns:
            ids = chunks_of(table, patterns, self.source)
        ends = [(host, self._asked_to_bring(host, ids)) for host in self._hosts]
        missing: dict[str, int] = {}
        stale = False
        lost: set[bytes] = set()
        for host, end in ends:
            report = self._brought(host, ids, end)
            name = self._named(host.key)
            if isinstance(report, FetchReport):
                if report.missing:
                    missing[name] = bytes_of(table, set(report.missing))
                    if report.unstored:
                        text = f"{missing[name]} bytes have no room in the store of the host"
                        hint = "raise `fs_store_bytes`, or free the disk of `fs_store_dir`"
                        raise FsError(text, path=self.target, host=name, hint=hint, errno=errno.ENOSPC)
                    stale |= report.stale
                    lost.update(report.missing)
            elif isinstance(report, HostFailure):
                raise FsError(report.reason, path=self.target, host=name, errno=report.errno)
            else:
                raise FsError(str(report), path=self.target, host=name)
        if stale:
            paths = [os.fsdecode(path) for path in table.paths_with(lost, len(table))]
            raise StaleSourceError(paths, removed=removed(self.source, paths), path=self.source)
        if missing:
            raise SourceGoneError(missing, path=self.source)

    def _asked_to_bring(self, host: _Host, ids: list[bytes] | None) -> Future[Any] | MonarchError:
        try:
            return host.actor.bring.call_one(self._tree, ids)
        except MonarchError as e:
            return e

    def _brought(self, host: _Host, ids: list[bytes] | None, end: Future[Any] | MonarchError) -> object:
        """The answer of a host; where its service ends, the next service is asked for what is missing still."""
        opened = False
        while True:
            answer = end if isinstance(end, MonarchError) else _answer(end)
            if isinstance(answer, SupervisionError):
                self._ordered(f"the return of {self._named(host.key)}", partial(self._lost, host)).get()
                if self._hosts[host.rank] is host:
                    return answer
                host, opened = self._hosts[host.rank], True
            elif isinstance(answer, HostFailure) and answer.errno == errno.ENOTCONN and not opened:
                # The service has just returned: the mount is being opened there.
                self._ordered(f"the mount on {self._named(host.key)}", lambda: None).get()
                opened = True
            else:
                return answer
            end = self._asked_to_bring(host, ids)

    def _status(self) -> MountStatus:
        asked: list[tuple[_Host, Future[Any] | None]] = []
        for host in self._hosts:
            try:
                asked.append((host, host.actor.status.call_one(self._tree, host.rank)))
            except MonarchError:
                asked.append((host, None))
        found: list[HostMountStatus] = []
        total = sum(self._shown_table().chunk_sizes().values())
        for host, future in asked:
            answer = _answer(future, 10.0) if future is not None else None
            if not isinstance(answer, HostMountStatus):
                why = str(answer).splitlines()[0] if answer is not None else "it cannot be reached"
                answer = HostMountStatus(host.facts.name, host.rank, "lost", "", 0, total, 0, [], why, False, "")
            found.append(answer)
        return MountStatus(self._rollout.generation, found)


def _fulfil(made: Promise[_T], action: Callable[[], _T]) -> None:
    try:
        made.set_result(action())
    except BaseException as e:
        made.set_exception(e if isinstance(e, Exception) else FsError(f"{type(e).__name__}: {e}"))


def _answer(future: Future[Any], timeout: float | None = None) -> object:
    """The result, or the error as a value."""
    try:
        return future.get(timeout=timeout)
    except Exception as e:
        return e


def _single(mesh: Any, rank: int, size: int) -> Any:
    """The part of a mesh with one member."""
    return mesh.flatten("rank").slice(rank=rank) if size > 1 or mesh.sizes else mesh
