"""Copies between this machine and hosts: an actor on each host that reads or writes a tree, asked batch by batch."""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

from monarch.actor import Actor, Point, endpoint
from monarch.job._files import audit
from monarch.job._host import tree
from monarch.job.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monarch.actor import Future, HostMesh

    # The result, and the error as a text, which the copying user reads.
    Answer = tuple[Any, str | None]

# Batches in flight: the next one is read while the last one is written.
_AHEAD = 2


class Source(Actor):
    """Reads a tree of its host."""

    _is_system_actor = True

    def __init__(self, path: str) -> None:
        self.stream: Iterator[list[tree.Entry]] = tree.batches(tree.entries(os.path.expanduser(path)))

    @endpoint
    def take(self) -> Answer:
        """The next batch; None after the last one."""
        try:
            return next(self.stream, None), None
        except OSError as e:
            return None, _error_text(e)


class Sink(Actor):
    """Writes a tree on its host."""

    _is_system_actor = True

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self.writer: tree.TreeWriter | None = None

    @endpoint
    def put(self, batch: list[tree.Entry]) -> str | None:
        """What went wrong, if something did."""
        try:
            if self.writer is None:
                self.writer = tree.TreeWriter(tree.destination(self.path, self.name))
            self.writer.put(batch)
        except OSError as e:
            return _error_text(e)
        return None

    @endpoint
    def finish(self) -> str | None:
        try:
            if self.writer is not None:
                self.writer.finish()
        except OSError as e:
            return _error_text(e)
        return None

    def __cleanup__(self, exc: Exception | None) -> None:
        if self.writer is not None:
            self.writer.close()


def upload(source: str, hosts: HostMesh, path: str) -> list[tuple[str, str]]:
    """From here to each of the hosts; what had to be left out, and why. `JobError` if it cannot be done."""
    source = os.path.expanduser(source)
    name = os.path.basename(os.path.abspath(source))
    with audit.recorded("cp", f"{len(hosts)} hosts", source=source, destination=f":{path}"), hosts.spawn_procs(name="cp") as procs:
        sink: Any = procs.spawn("sink", Sink, path, name)
        skipped: list[tuple[str, str]] = []
        sent: deque[Future[Any]] = deque()
        try:
            for batch in tree.batches(tree.entries(source)):
                skipped += [(entry[1], entry[2]) for entry in batch if entry[0] == tree.SKIPPED]
                sent.append(sink.put.call(batch))
                while len(sent) > _AHEAD:
                    _check(sent.popleft())
        except OSError as e:
            raise JobError(f"cannot copy: {_error_text(e)}") from e
        while sent:
            _check(sent.popleft())
        _check(sink.finish.call())
    return skipped


def _check(answers: Future[Any]) -> None:
    for _, wrong in answers.get().items():
        if wrong is not None:
            raise JobError(f"cannot copy: {wrong}")


def download(hosts: HostMesh, path: str, target: str) -> list[tuple[str, str]]:
    """From the hosts to here, into a folder per host if there are several."""
    name = os.path.basename(os.path.normpath(path))
    skipped: list[tuple[str, str]] = []
    with audit.recorded("cp", f"{len(hosts)} hosts", source=f":{path}", destination=target), hosts.spawn_procs(name="cp") as procs:
        sources: Any = procs.spawn("source", Source, path)
        extent = procs.extent
        for rank in range(extent.nelements):
            point = Point(rank, extent)
            source = sources.slice(**point) if point else sources
            place = target
            if extent.nelements > 1:
                place = os.path.join(os.path.expanduser(target), "_".join(f"{label}_{index}" for label, index in point.items()), "")
            try:
                skipped += _receive(source, place, name)
            except OSError as e:
                raise JobError(f"cannot copy: {_error_text(e)}") from e
    return skipped


def _receive(source: Any, place: str, name: str) -> list[tuple[str, str]]:
    coming = source.take.call_one()
    writer: tree.TreeWriter | None = None
    try:
        while True:
            batch, wrong = coming.get()
            if wrong is not None:
                raise JobError(f"cannot copy: {wrong}")
            if batch is None:
                break
            coming = source.take.call_one()
            if writer is None:
                # The writer starts only now: a missing source leaves no folder behind.
                writer = tree.TreeWriter(tree.destination(place, name))
            writer.put(batch)
        assert writer is not None
        writer.finish()
        return writer.skipped
    finally:
        if writer is not None:
            writer.close()


def _error_text(error: OSError) -> str:
    return f"{socket.gethostname()}:{error.filename or ''}: {error.strerror or error}"
