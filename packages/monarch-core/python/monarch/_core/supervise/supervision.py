"""The meshes that this process owns, and the handling of their failures and stops.

Native code detects failures (the end of a link, an exit status, a report of a failed actor) and decides which owner is notified
(`rust/runtime/src/supervision.rs`). This module carries out its decisions, on the housekeeping thread, independent of the calls of users.
"""

from __future__ import annotations

from monarch._core._native import Process as NativeProcess
from monarch._core._native.events import frame_refused, mesh_gone, supervision_delivered
from monarch._core._native.protocol import ERROR, GATHER, PROC_ENDED
from monarch._core._native.system import Ask, Mark, Notify, Orphan
from monarch._core.call.answer import proc_ended_failure
from monarch._core.call.future import Future, new_future
from monarch._core.call.orphan import owner_ended
from monarch._core.config import config
from monarch._core.errors.errors import SupervisionError
from monarch._core.errors.failure import MeshFailure
from monarch._core.process.process import WATCH_STOP
from monarch._core.process.request_fields import MalformedRequest, fields
from monarch._core.process.root_fault import root_failed
from monarch._core.process.runtime_log import WARN, failure_event
from monarch._core.shape.shape import whole_shape

# Seconds that a cancelled coroutine may take to end.
CANCEL_TIME = 2.0

# Seconds for printed lines to reach the console.
OUTPUT_TIMEOUT = 3.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from monarch._core._native import Call, PendingCall, Result
    from monarch._core._native.system import ActorFailed, Fail, ProcsEnded
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.owner import Owner
    from monarch._core.process.parts import Owned
    from monarch._core.process.process import LocalProcess

    Action: TypeAlias = Mark | Notify | Ask | Fail | Orphan


# The reason of a stop at the end of the program, for which nothing is printed.
CLIENT_EXITS = "the client exits"


class OwnedMesh:
    """A mesh that an actor of this process, or the process itself, has created and owns."""

    __slots__ = ("call", "decode", "future", "info", "is_actors", "owner", "process", "since")

    def __init__(self, process: LocalProcess, owner: Owner, info: MeshInfo, is_actors: bool) -> None:
        self.process = process
        self.owner = owner
        self.info = info
        self.is_actors = is_actors
        self.since = process.execution.now()
        self.future: Future[None] | None = None
        # The call of the stop. A stop goes on after its deadline, and may be awaited again.
        self.call: PendingCall | None = None
        self.decode: Callable[[PendingCall], None] | None = None
        process.meshes.owned[info.uid] = self
        process.meshes.supervision.created(info.uid, owner.mailbox, is_actors, list(info.procs))
        if owner.spawned is not None:
            owner.spawned.append(info)

    def stop(self, reason: str, bounds: tuple[float, float] | None = None) -> Future[None]:
        """Begins to stop the mesh, once. `bounds` are the times for one message and for the whole drain, in seconds."""
        if self.future is None:
            for uid in self.process.meshes.supervision.stopping(self.info.uid):
                # Actors on stopped procs end with them, which is no failure.
                ending = self.process.meshes.owned.get(uid)
                if ending is not None:
                    ending.info.stopped = ending.info.stopped or reason
            self.future = self._stop_actors(reason, bounds) if self.is_actors else self._stop_procs(reason, bounds)
        elif self.call is not None and self.decode is not None and self.call.unanswered() is not None:
            self.call.limit(True)
            self.future = new_future(self.call, self.decode)
        return self.future

    def _begun(self, call: PendingCall, decode: Callable[[PendingCall], None]) -> Future[None]:
        self.call, self.decode = call, decode
        return new_future(call, decode)

    def is_owned(self) -> bool:
        return self.info.uid in self.process.meshes.owned

    def is_over(self) -> bool:
        """Whether no part of the mesh can fail or be stopped any more, and the owner has received everything. Called on the housekeeping
        thread.
        """
        # The answer to the stop is not enough: a failure of a clean-up may still be on its way.
        received, gone = self.process.meshes.supervision.progress(self.info.uid)
        if self.owner.actor is None:
            # The root may be queried later for the failures that were seen.
            return gone and self.info.stopped is not None
        return gone or received

    def forget(self) -> None:
        self.process.meshes.owned.pop(self.info.uid, None)
        mesh_gone(self.info.uid)
        if self.info.failed:
            self.process.meshes.remember_failed(self.info)
        self.process.meshes.supervision.gone(self.info.uid)

    def _stop_actors(self, reason: str, bounds: tuple[float, float] | None) -> Future[None]:
        from monarch._core._native import Targets

        info, native = self.info, self.process.native
        each, whole = bounds or drain_bounds()
        body = stop_body(reason, each, whole)
        ranks = [r for r in range(len(info.procs)) if r not in info.failed]
        cell = Targets(native, [info.procs[r] for r in ranks], info.uid).stop(body)
        for rank in ranks:
            native.request(info.procs[rank], WATCH_STOP, info.uid.to_bytes(8, "little") + body)
        return self._begun(cell, lambda c: self._stopped(c, ranks))

    def _stopped(self, cell: PendingCall, ranks: list[int]) -> None:
        self._check_deadline(cell, ranks)
        failures = [self._cleanup_failure(rank, result) for rank, result in zip(ranks, cell.results(), strict=True)]
        failure = next((f for f in failures if f is not None), None)
        if failure is not None:
            # The owner is notified too, and only of meshes that it still owns.
            self.process.native.settle()
        self.forget()
        if failure is not None:
            from monarch._core.process.root_fault import failure_seen

            if self.info.stopped != CLIENT_EXITS:  # otherwise no code reads this exception
                failure_seen(self.info.uid, failure)
            cell.set_retrieved()
            raise SupervisionError(failure.report(), f"{self.info.name}.stop()", failure=failure)
        cell.set_retrieved()

    def _cleanup_failure(self, rank: int, result: Result | None) -> MeshFailure | None:
        """The failure in the `__cleanup__` of an actor that answers a stop: an exception, or the end of its process."""
        if result is not None and result.status == ERROR:
            return MeshFailure.from_wire(result.raw())
        if result is not None and result.status == PROC_ENDED:
            end = NativeProcess.decode_end(result.raw())
            if self.info.uid in end.cleaning:
                return proc_ended_failure(self.info, rank, end)
        return None

    def _stop_procs(self, reason: str, bounds: tuple[float, float] | None) -> Future[None]:
        native, info = self.process.native, self.info
        cell = native.cell(GATHER, len(info.procs), list(info.procs), info.uid)
        each, whole = bounds or drain_bounds()
        end = config.seconds("process_exit_timeout") or 0.0
        for proc in info.procs:
            native.stop_proc(proc, whole + end if bounds is None else each, (each, whole), reason)
        cell.limit(True)
        return self._begun(cell, self._procs_stopped)

    def _check_deadline(self, cell: PendingCall, ranks: list[int]) -> None:
        from monarch._core.call.expired import expired

        error = expired(cell, f"{self.info.name}.stop()", self.info, whole_shape(self.info.extent), ranks)
        if error is not None:
            raise error

    def _procs_stopped(self, cell: PendingCall) -> None:
        self._check_deadline(cell, list(range(len(self.info.procs))))
        failure = self._died_cleaning(cell)
        # When the stop is done, the housekeeping thread has handled and logged the ends.
        self.process.native.settle()
        self.forget()
        for mesh in list(self.process.meshes.owned.values()):
            if mesh.is_actors and set(mesh.info.procs) <= set(self.info.procs):
                mesh.forget()
        self.process.native.flush_output(OUTPUT_TIMEOUT)
        cell.set_retrieved()
        if failure is not None:
            raise SupervisionError(failure.report(), f"{self.info.name}.stop()", failure=failure)

    def _died_cleaning(self, cell: PendingCall) -> MeshFailure | None:
        """The failure of a process that has died in the `__cleanup__` of an actor."""
        first = None
        for rank, result in enumerate(cell.results()):
            if result is None or result.status != PROC_ENDED:
                continue
            end = NativeProcess.decode_end(result.raw())
            for mesh in end.cleaning:
                from monarch._core.process.root_fault import failure_seen

                # The owner is notified too, and only of meshes that it still owns.
                self.process.native.settle()
                failure = self._received_failure(mesh, self.info.procs[rank])
                if failure is not None:
                    failure_seen(mesh, failure)
                first = first or failure or proc_ended_failure(self.info, rank, end)
        return first

    def _received_failure(self, mesh: int, proc: int) -> MeshFailure | None:
        """The failure that this process, if it owns the actors, has received for the end of a process."""
        info = self.process.meshes.known.get(mesh)
        failed = {} if info is None else {info.procs[rank]: failure for rank, failure in info.failed.items()}
        return failed.get(proc)


def drain_bounds() -> tuple[float, float]:
    return config.seconds("stop_grace_period") or 0.0, config.seconds("stop_actor_timeout") or 0.0


def stop_body(reason: str, each: float, whole: float) -> bytes:
    import marshal

    return marshal.dumps((reason, each, whole))


def stop_of(call: Call) -> tuple[str, list[float]]:
    """The reason and the bounds of a stop, as `stop_body` has encoded them. A malformed body is recorded; the actor stops nevertheless."""
    body = call.raw()
    try:
        reason, *bounds = fields(body, str, float | int, float | int)
    except MalformedRequest:
        frame_refused(call.caller, "stop", len(body))
        return "stopped", []
    return reason, bounds


def actor_failed(process: LocalProcess, event: ActorFailed) -> None:
    """Handles the report of an actor that has failed, in the process that owns its mesh."""
    if event.mesh in process.meshes.owned:
        try:
            failure = MeshFailure.from_wire(event.failure)
        except ValueError as e:
            raise MalformedRequest from e
        _do(process, process.meshes.supervision.actor_failed(event.mesh, event.rank), lambda mesh, rank: failure)
        _forget_if_over(process, [event.mesh])


def procs_ended(process: LocalProcess, event: ProcsEnded) -> None:
    """Handles processes that have ended for one cause."""
    process.peers.ended.update(event.ends)

    def failure(mesh: Owned, rank: int) -> MeshFailure:
        known = mesh.info.failed.get(rank)
        return known or proc_ended_failure(mesh.info, rank, process.peers.ended[mesh.info.procs[rank]])

    _do(process, process.meshes.supervision.procs_ended(event.ends), failure)
    _forget_if_over(process, process.meshes.supervision.on([uid for uid, _ in event.ends]))
    for uid, end in event.ends:
        owner_ended(process, uid, end)


def _forget_if_over(process: LocalProcess, meshes: list[int]) -> None:
    """Forgets meshes that are over: an owner that replaces lost meshes again and again must not keep them all."""
    for uid in meshes:
        mesh = process.meshes.owned.get(uid)
        if mesh is not None and mesh.is_over():
            mesh.forget()


def _do(process: LocalProcess, actions: list[Action], failure_of: Callable[[Owned, int], MeshFailure]) -> None:
    """Carries out the decisions of supervision in their order. Any mesh among them may have ended meanwhile."""
    for action in actions:
        if isinstance(action, Orphan):
            ward = process.actors.get(action.actor)
            if ward is not None:
                ward.orphaned(ward.info)
            continue
        mesh = process.meshes.owned.get(action.mesh)
        if mesh is None:
            continue
        failure = failure_of(mesh, action.rank)
        if isinstance(action, Mark):
            # A caller of this process may have received the failure first.
            mesh.info.failed[action.rank] = failure
            continue
        failure_event("failure.delivered", WARN, failure, mesh.owner.display)
        supervision_delivered(action.mesh, action.rank, mesh.owner.display, failure.reason.kind)
        if isinstance(action, Notify):
            root_failed(process, failure)
        else:
            owner = process.actors.get(action.actor)
            if owner is not None:
                owner.owned_failed(failure, ask=isinstance(action, Ask))
