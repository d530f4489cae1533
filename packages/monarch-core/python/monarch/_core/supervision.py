"""Who owns what in this process, and what happens when some of it fails or is stopped.

Detection is native (a link's end, an exit status, a failed actor's report); this file decides. It runs on the housekeeping thread, apart
from what users call.
"""

from __future__ import annotations

from monarch._core import config
from monarch._core.answer import proc_ended_failure
from monarch._core.errors import ExitReason, MeshFailure, SupervisionError
from monarch._core.future import Future
from monarch._core.process import ERROR, GATHER, WATCH_STOP
from monarch._core.runtime_log import WARN, failure_event

# How long lines that were printed may take to reach the console, seconds.
OUTPUT_TIMEOUT = 3.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core._native import CallCell
    from monarch._core.mesh_info import MeshInfo
    from monarch._core.owner import Owner
    from monarch._core.process import LocalProcess


# The reason of a stop at the end of the program, about which nothing is printed.
CLIENT_EXITS = "the client exits"


class OwnedMesh:
    """A mesh that an actor of this process, or the process itself, has created and answers for."""

    __slots__ = ("future", "info", "is_actors", "owner", "process", "told")

    def __init__(self, process: LocalProcess, owner: Owner, info: MeshInfo, is_actors: bool) -> None:
        self.process = process
        self.owner = owner
        self.info = info
        self.is_actors = is_actors
        self.future: Future[None] | None = None
        self.told: set[int] = set()
        owner.owned[info.uid] = self
        process.owned[info.uid] = self

    def stop(self, reason: str, bounds: tuple[float, float] | None = None) -> Future[None]:
        """Begins to stop it, once; `bounds` are of one message and of the whole drain, seconds."""
        if self.future is None:
            self.info.stopped = reason
            self.future = self._stop_actors(reason, bounds) if self.is_actors else self._stop_procs(reason, bounds)
        return self.future

    def forget(self) -> None:
        self.owner.owned.pop(self.info.uid, None)
        self.process.owned.pop(self.info.uid, None)

    def _stop_actors(self, reason: str, bounds: tuple[float, float] | None) -> Future[None]:
        from monarch._core._native import Targets

        info, native = self.info, self.process.native
        each, whole = bounds or drain_bounds()
        body = stop_body(reason, each, whole)
        ranks = [r for r in range(len(info.procs)) if r not in info.failed]
        cell = native.stop_actors(Targets(native, [info.procs[r] for r in ranks], info.uid), body)
        for rank in ranks:
            native.request(info.procs[rank], WATCH_STOP, info.uid.to_bytes(8, "little") + body)
        return Future._of(cell, lambda c: self._stopped(c, ranks))

    def _stopped(self, cell: CallCell, ranks: list[int]) -> None:
        self.forget()
        for result in cell.results():
            if result is not None and result.status == ERROR:
                failure = MeshFailure.from_wire(result.raw())
                from monarch._core.root_fault import failure_seen

                failure_seen(self.info.uid, failure)
                cell.set_retrieved()
                raise SupervisionError(failure.report(), f"{self.info.name}.stop()", failure=failure)
        cell.set_retrieved()

    def _stop_procs(self, reason: str, bounds: tuple[float, float] | None) -> Future[None]:
        native, info = self.process.native, self.info
        for mesh in list(self.process.owned.values()):
            if mesh.is_actors and set(mesh.info.procs) & set(info.procs):
                # Actors spawned there by this process go with their procs, and that is no failure.
                mesh.info.stopped = mesh.info.stopped or reason
        cell = native.cell(GATHER, len(info.procs), list(info.procs))
        each, whole = bounds or drain_bounds()
        end = config.seconds("process_exit_timeout") or 0.0
        for proc in info.procs:
            native.stop_proc(proc, whole + end if bounds is None else each, stop_reason(reason, each, whole))
        return Future._of(cell, self._procs_stopped)

    def _procs_stopped(self, cell: CallCell) -> None:
        self.forget()
        for mesh in list(self.process.owned.values()):
            if mesh.is_actors and set(mesh.info.procs) <= set(self.info.procs):
                mesh.forget()
        self.process.native.flush_output(OUTPUT_TIMEOUT)
        cell.set_retrieved()


def drain_bounds() -> tuple[float, float]:
    return config.seconds("stop_grace_period") or 0.0, config.seconds("stop_actor_timeout") or 0.0


def stop_body(reason: str, each: float, whole: float) -> bytes:
    import marshal

    return marshal.dumps((reason, each, whole))


def stop_reason(reason: str, each: float, whole: float) -> str:
    """The reason as it goes to a proc, with the bounds of its actors' drains."""
    return f"{each}\n{whole}\n{reason}"


def parse_stop_reason(text: str) -> tuple[str, float, float]:
    parts = text.split("\n", 2)
    if len(parts) < 3:  # from the agent itself
        return text, *drain_bounds()
    return parts[2], float(parts[0]), float(parts[1])


def stopped_failure(process: LocalProcess, info: MeshInfo, rank: int, reason: str) -> MeshFailure:
    """Not a failure: what a stopped mesh answers with."""
    return MeshFailure(
        actor=info.display(rank),
        reason=ExitReason("stopped", detail=reason),
        mesh_name=info.unique_name,
        name=info.name,
        crashed_ranks=[rank],
        host=process.host,
        pid=process.pid,
    )


def actor_failed(process: LocalProcess, body: bytes) -> None:
    """An actor reports its failure to this process, which owns its mesh."""
    uid, rank = int.from_bytes(body[:8], "little"), int.from_bytes(body[8:12], "little")
    mesh = process.owned.get(uid)
    if mesh is None:
        return
    failure = MeshFailure.from_wire(body[12:])
    deliver(mesh, rank, failure)


def deliver(mesh: OwnedMesh, rank: int, failure: MeshFailure) -> None:
    """At most once per mesh and rank, the owner is told."""
    # A caller of this process may have learned of it first; that does not count as telling the owner.
    mesh.info.failed[rank] = failure
    if rank not in mesh.told:
        mesh.told.add(rank)
        failure_event("failure.delivered", WARN, failure, mesh.owner.display)
        mesh.owner.failed(failure)


def proc_ended(process: LocalProcess, uid: int, end: tuple[Any, ...]) -> None:
    """A process that this one knows has ended: marks all that was in it, then tells the owners."""
    process.ended[uid] = end
    hit: list[tuple[OwnedMesh, int, MeshFailure]] = []
    told: set[int] = set()
    stopped = end[3] == "stopped"
    meshes = [m for m in list(process.owned.values()) if uid in m.info.procs]
    for mesh in sorted(meshes, key=lambda m: not m.is_actors):
        for rank, proc in enumerate(mesh.info.procs):
            if proc != uid or rank in mesh.told:
                continue
            failure = proc_ended_failure(mesh.info, rank, end)
            if stopped or mesh.info.stopped is not None:
                mesh.info.failed.setdefault(rank, failure)
                continue
            if mesh.is_actors:
                told.add(id(mesh.owner))
            elif id(mesh.owner) in told:
                mesh.info.failed[rank] = failure
                continue
            hit.append((mesh, rank, failure))
    for mesh, rank, failure in hit:
        mesh.info.failed[rank] = failure
    for mesh, rank, failure in hit:
        deliver(mesh, rank, failure)
    for actor in list(process.actors.values()):
        if actor.owner_proc == uid:
            actor.orphaned(actor.info)
