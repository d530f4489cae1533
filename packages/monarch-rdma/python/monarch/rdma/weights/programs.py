"""The weights of programs that this proc runs: it is the source of what they publish, and pulls what they attach to.

A program sends requests (`program_handler`); memory that both share has the weights and the words of versions.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch import extension
from monarch.actor import Extent
from monarch.extension import Rank
from monarch.extension.mesh import MeshView, mesh_view
from monarch.extension.program import RunEnded
from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma.errors import RDMAAccessError, RDMAPeerLostError
from monarch.rdma.weights.announcements import Announcements
from monarch.rdma.weights.attaching import Wanted, attached
from monarch.rdma.weights.errors import NotPublishedError
from monarch.rdma.weights.program_source import Control
from monarch.rdma.weights.published import Published, add, check_free
from monarch.rdma.weights.puller import Feed, Puller
from monarch.rdma.weights.shared_file import SharedFile
from monarch.rdma.weights.table import Table
from monarch.rdma.weights.target import Target
from monarch.rdma.weights.waiting import version_of_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monarch.extension import ProcId
    from monarch.extension.channel import Head, Message
    from monarch.extension.program import Program
    from monarch.rdma.weights.planner import Pieces

# Seconds between two looks for the procs of a run that has none.
_LOOK = 0.1


class _Attached(NamedTuple):
    """A target of a program; its bytes arrive in `staging`, which is open for the program."""

    target: Target
    pieces: Pieces
    staging: SharedFile


class ProgramWeights:
    """The sources and targets of one connection, by number."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._numbers = count(1)
        self._sources: dict[int, Published] = {}
        # Files of a source that the program has not opened yet.
        self._files: dict[int, list[SharedFile]] = {}
        # Sources that were closed before they were made.
        self._withdrawn = set[int]()
        self._targets: dict[int, _Attached] = {}
        # Waits for versions, by the numbers that the program has given them.
        self._waits: dict[int, asyncio.Future[int]] = {}
        self._is_closed = False

    async def answer(self, request: Message) -> tuple[Head, bytes]:
        """The answer to a request of the program."""
        head = request.head
        match head["do"]:
            case "make":
                return await asyncio.to_thread(self._make, head, Table.unpacked(request.blob)), b""
            case "publish":
                self._publish(head["source"])
            case "arrived":
                self._sources[head["source"]].arrived()
            case "close":
                # A program closes what it could not publish, too.
                source = self._taken(head["source"])
                for future in [] if source is None else source.close():
                    await future
            case "attach":
                return await self._attach(head, Table.unpacked(request.blob))
            case "pull":
                target = self._target(head)
                version = await target.pull(timeout=float(head["timeout"]))
                return {"version": version, "from_sources": target.from_sources, "from_targets": target.from_targets}, b""
            case "wait":
                return await self._wait(head), b""
            case "forget":
                self._forget([head["wait"]])
            case other:
                raise ValueError(f"an unknown request of a program: {other!r}")
        return {}, b""

    def close(self) -> None:
        """The program has ended: its sources are lost."""
        self._is_closed = True
        self._forget(list(self._waits))
        self._targets.clear()
        self._files.clear()
        for source in self._sources.values():
            source.lose()
        self._sources.clear()

    def _taken(self, number: int) -> Published | None:
        """The source, which ends; None if it is made at the moment, and ends then, or if it has ended."""
        self._withdrawn.add(number)
        self._files.pop(number, None)
        source = self._sources.pop(number, None)
        if source is not None:
            self._withdrawn.discard(number)
        return source

    def _target(self, head: Head) -> Target:
        return self._targets[head["target"]].target

    async def _wait(self, head: Head) -> Head:
        waiting = self._waits[head["wait"]] = self._target(head).wait(int(head["version"])).as_asyncio()
        try:
            return {"version": await waiting}
        except asyncio.CancelledError:
            if not waiting.cancelled():
                raise
            return {"version": None}
        finally:
            del self._waits[head["wait"]]

    def _forget(self, waits: Iterable[int]) -> None:
        """Ends waits whose answers the program does not read."""
        for number in waits:
            waiting = self._waits.get(number)
            if waiting is not None:
                waiting.cancel()

    def _make(self, head: Head, table: Table) -> dict[str, Any]:
        """Makes the memory of a source."""
        name, size, copies, wait = str(head["name"]), int(head["size"]), int(head["count"]), float(head["wait"])
        check_free(name)
        files = [SharedFile.of(nbytes) for nbytes in (Control.size(), *[size] * copies)]
        control = Control(files[0].memory, copies)
        slots = [[RDMABuffer(file.memory, readonly=True)] for file in files[1:]]
        made = Published(
            name, table, control.words, slots, Announcements(control.readers, control.used), wait, control.newest, control.awaits
        )
        number = int(head["source"])
        self._sources[number], self._files[number] = made, files
        if self._is_closed or number in self._withdrawn:  # meanwhile
            source = self._taken(number)
            if source is not None:
                source.close()
        return {"control": files[0].path, "weights": [file.path for file in files[1:]]}

    def _publish(self, number: int) -> None:
        del self._files[number]
        try:
            add(self._sources[number])
        except ValueError:
            self._sources.pop(number).close()
            raise

    async def _attach(self, head: Head, table: Table) -> tuple[Head, bytes]:
        for number in head["collected"]:
            self._targets.pop(number, None)
        wanted = Wanted(*head["wanted"])
        until = wanted.until()
        members = head.get("mesh")
        ended, lost = None, None
        while True:
            mesh = _reached(wanted, *members) if members else await self._mesh(wanted, until, head["run"], head["ranks"], ended, lost)
            try:
                made = await asyncio.to_thread(_attached, wanted, until, mesh, table)
                break
            except RDMAPeerLostError as e:
                if members:
                    raise
                ended, lost = mesh.procs, e  # an attempt of the run has ended
        number = next(self._numbers)
        if not self._is_closed:
            self._targets[number] = made
        answer = {"target": number, "nbytes": made.target.nbytes, "staging": made.staging.path}
        return answer, pickle.dumps(made.pieces)

    async def _mesh(
        self,
        wanted: Wanted,
        until: float,
        run_id: str | None,
        ranks: Sequence[int] | None,
        ended: Sequence[ProcId] | None,
        lost: RDMAPeerLostError | None,
    ) -> MeshView:
        """The procs of a run, but for procs that have `ended`. There are none before the run has begun, and between two attempts.

        `RDMAPeerLostError` if the run has ended for good.
        """
        which = "the run of this program" if run_id is None else f"the run '{run_id}'"
        while True:
            try:
                found = await self._program.procs(run_id)
            except RunEnded as e:
                raise RDMAPeerLostError(f"attach to weights '{wanted.name}': {which} has ended", cause=str(e)) from None
            if found:
                mesh = _chosen([mesh_view(part) for part in found], ranks)
                if mesh.procs != ended:
                    return mesh
            if time.monotonic() + _LOOK >= until:
                if lost is not None:
                    raise lost
                raise NotPublishedError(
                    f"attach to weights '{wanted.name}': time-out of {wanted.timeout:g} s: {which} has no procs",
                    hint="`run_mesh` takes the `run_id` of a run of the same client that is active",
                )
            await asyncio.sleep(_LOOK)


def _reached(wanted: Wanted, name: str, job: int, procs: Sequence[int], hosts: Sequence[int], ranks: Sequence[int]) -> MeshView:
    """The mesh of these members; `RDMAAccessError` if it is of another client."""
    try:
        for proc, host in zip(procs, hosts, strict=True):
            extension.reach(proc, host, job)
    except LookupError:
        what = f"attach to weights '{wanted.name}': '{name}' is a mesh of another client"
        raise RDMAAccessError(what, hint="in the program of a run, of= takes meshes of the client of the run") from None
    extent = Extent(["members"], [len(procs)])
    members = tuple(map(extension.ProcId, procs))
    return MeshView(name, extension.JobId(job), extent, members, tuple(map(extension.HostId, hosts)), tuple(map(Rank, ranks)))


def _chosen(views: Sequence[MeshView], ranks: Sequence[int] | None) -> MeshView:
    """The meshes, one behind the other, or some of their ranks; `ValueError` for a rank that is not there."""
    procs = [proc for view in views for proc in view.procs]
    hosts = [host for view in views for host in view.hosts]
    numbers = range(len(procs)) if ranks is None else [int(rank) for rank in ranks]
    missing = [rank for rank in numbers if rank >= len(procs)]
    if missing:
        raise ValueError(f"ranks={list(numbers)}: '{views[0].name}' has {len(procs)} ranks, and no rank {missing[0]}")
    return views[0]._replace(
        procs=tuple([procs[rank] for rank in numbers]),
        hosts=tuple([hosts[rank] for rank in numbers]),
        ranks=tuple([Rank(rank) for rank in numbers]),
    )


def _attached(wanted: Wanted, until: float, mesh: MeshView, table: Table) -> _Attached:
    """Plans the reads of a target. Without tensors its bytes stay in the staging memory, which the program has mapped."""
    files: list[SharedFile] = []
    found: list[Pieces] = []

    def room(nbytes: int) -> memoryview:
        files.append(SharedFile.of(nbytes))
        return files[0].memory

    def make(pieces: Pieces, feeds: dict[int, Feed]) -> Puller:
        found.append(pieces)
        return Puller(wanted.name, None, pieces, feeds, room)

    puller = attached(wanted, until, mesh, table, make)
    return _Attached(Target(puller, lambda version: version_of_all(wanted.name, mesh, version)), found[0], files[0])
