"""Real, writable files on every host, from a directory of the client.

The client scans the source, and starts the service of pushes on each host meanwhile. Each host gets the table by one cast, asks its parent
in the tree of hosts, or at last the client, for the chunks that neither its target nor its store has, and writes its files by itself: no
step waits for all hosts. So a push is atomic for each file, and not for the tree; a mount is. A host that fails does not keep
the others from the new content.
"""

from __future__ import annotations

import contextvars
import logging
import os
import secrets
import threading
from collections.abc import Sequence
from time import monotonic

from monarch.actor import Future, HostMesh, MonarchError
from monarch.extension import Promise, promise, service
from monarch.fs._index.index import Index, removed
from monarch.fs._push.directory_identity import DirectoryIdentity
from monarch.fs._push.environment import relocation_of
from monarch.fs._push.push_counts import PushCounts, PushReport
from monarch.fs._push.push_host import PushOrder
from monarch.fs._push.relocation import PlainRelocation
from monarch.fs._push.service import NAME
from monarch.fs._relay.origin import Origin
from monarch.fs.errors import FsError, StaleSourceError

_LOG = logging.getLogger("monarch.fs")
# The most hosts in the text of an error.
_HOSTS = 16
# The most seconds for hosts to forget a tree; a host that hangs does not delay the end of a push.
_END_SECONDS = 10.0


def push(
    hosts: HostMesh,
    source: str | os.PathLike[str],
    target: str,
    *,
    delete: bool = False,
    relocate: bool = False,
    exclude: Sequence[str] = (".monarch",),
    gitignore: bool = True,
    set_id: bool = False,
) -> Future[PushReport]:
    """Writes the files of a directory of the client into `target` on every host. Only files that differ are written.

    A file appears whole, by a rename, with mode and mtime; links and holes are kept. No file outside of `target` is written or removed,
    whatever links are in it.

    Args:
        hosts: the hosts.
        source: the directory.
        target: the absolute path on the hosts.
        delete: also removes files that `source` lacks, or that `exclude` and `.gitignore` leave out; `.monarch` stays.
        relocate: the source is a conda environment or a venv, whose files get the prefix `target`; its `.gitignore` is not considered.
        exclude: glob patterns of files that are left out.
        gitignore: leaves out the files that git ignores.
        set_id: keeps the set-user-id and set-group-id bits of files.

    Returns:
        A Future of the numbers of files and bytes.

    Raises:
        ValueError: `target` is relative or overlaps with `source`, or a source to relocate is no environment.
        StaleSourceError: from the Future: files changed or were removed during the push.
        FsError: from the Future, with a table of the hosts that failed; the others have the new content.

    ```python
    from pathlib import Path

    from monarch.actor import this_host
    from monarch.fs import push

    Path("source").mkdir()
    Path("source/model.py").write_text("layers = 12")
    target = Path("copy").resolve()
    assert push(this_host(), "source", str(target)).get().files_written == 1
    assert (target / "model.py").read_text() == "layers = 12"
    ```
    """
    place = os.fspath(source)
    if not os.path.isabs(target) or "\0" in target:
        raise ValueError(f"target {target!r} is no absolute path")
    target = os.path.normpath(target)
    if target in ("/", "//"):
        raise ValueError("target '/': a push does not replace the root of a host; name a directory")
    if not os.path.exists(place):
        raise FileNotFoundError(f"source {place!r} does not exist")
    if not os.path.isdir(place):
        raise NotADirectoryError(f"source {place!r} is no directory")
    moved = relocation_of(place, target) if relocate else None
    relocation = None if moved is None else PlainRelocation(moved.old, moved.new, moved.rooms)
    index = Index(place, exclude=exclude, gitignore=gitignore and not relocate, pyc="as-is")
    return RunningPush(hosts, index, place, (target,), delete, relocation, set_id=set_id).start()


class RunningPush:
    """A push, on a thread of its own. `targets` has the path on each host, or one for all of them."""

    def __init__(
        self,
        hosts: HostMesh,
        index: Index,
        source: str,
        targets: tuple[str, ...],
        delete: bool,
        relocation: PlainRelocation | None,
        *,
        set_id: bool = False,
    ) -> None:
        self._hosts, self._index, self._source, self._targets = hosts, index, source, targets
        self._delete, self._set_id, self._relocation = delete, set_id, relocation

    def start(self) -> Future[PushReport]:
        done: Promise[PushReport] = promise(f"the push of {self._source} to {self._targets[0]}")
        # The services belong to the caller: an actor, or the client.
        threading.Thread(target=contextvars.copy_context().run, args=(self._fulfil, done), name="monarch push", daemon=True).start()
        return done.future

    def _fulfil(self, done: Promise[PushReport]) -> None:
        try:
            done.set_result(self._run())
        except BaseException as e:
            done.set_exception(e)

    def _run(self) -> PushReport:
        began = monotonic()
        scan = self._index.scan()
        for warning in scan.warnings:
            _LOG.warning("%s", warning)
        there = service(self._hosts, NAME)
        found = there.begin.call(self._targets, DirectoryIdentity.of(self._source)).get().values()
        overlapping = sorted(host.name for host in found if host.overlaps)
        if overlapping:
            raise ValueError(f"target {self._targets[0]!r} overlaps with the source {self._source!r} on {overlapping[0]}")
        tree = secrets.token_hex(32)
        origin = Origin()
        try:
            origin.serve(tree, lambda ids: list(self._index.read(ids)))
            peers = tuple(host.peer for host in found)
            order = PushOrder(tree, scan.table.encode(), self._targets, self._delete, self._set_id, self._relocation, peers, origin.peer())
            counts: list[PushCounts] = []
            lost: list[str] = []
            for answer in there.apply.stream(order):
                try:
                    counts.append(answer.get())
                except MonarchError as e:
                    lost.append(str(e).splitlines()[0])
            there.end.call(tree).exception(_END_SECONDS)
            self._check(counts, lost, len(found))
            return _report(counts, origin.bytes_sent(tree), monotonic() - began)
        finally:
            origin.close()
            self._index.close()

    def _check(self, counts: Sequence[PushCounts], lost: Sequence[str], total: int) -> None:
        """Raises the error that stands for all failures."""
        failed = [count for count in counts if count.failure_count]
        if not failed and not lost:
            return
        failures = [failure for count in failed for failure in count.failures]
        if failures and not lost and all(failure.stale for failure in failures):
            paths = sorted({os.path.relpath(failure.path, count.target) for count in failed for failure in count.failures})
            gone = removed(self._source, paths)
            raise StaleSourceError(paths, removed=gone, path=self._source, hint="push again when the source is at rest")
        lines = [f"  {line}" for line in lost]
        for count in failed:
            first = count.failures[0]
            more = f", and {count.failure_count - 1} more" if count.failure_count > 1 else ""
            lines.append(f"  {count.host}: {first.path}: {first.reason}{more}")
        if len(lines) > _HOSTS:
            lines[_HOSTS:] = [f"  and {len(lines) - _HOSTS} more hosts"]
        bad = len(failed) + len(lost)
        text = "\n".join([f"{bad} of {total} host{'s' if total != 1 else ''} could not be pushed to", *lines])
        number = failures[0].errno if failures else 5
        host = failed[0].host if failed else ""
        raise FsError(text, path=failures[0].path if failures else self._targets[0], host=host, errno=number)


def _report(counts: Sequence[PushCounts], sent: int, seconds: float) -> PushReport:
    return PushReport(
        len(counts),
        max((count.files for count in counts), default=0),
        sum(count.written for count in counts),
        sum(count.bytes_written for count in counts),
        sent,
        sum(count.deleted for count in counts),
        seconds,
        sorted({path for count in counts for path in count.left}),
        sorted({path for count in counts for path in count.unreadable}),
    )
