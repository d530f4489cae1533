"""The housekeeping thread of a process: spawns, failures, stops, requests. In a proc it is the main thread."""

from __future__ import annotations

from monarch._core._native import set_runtime_thread
from monarch._core._native.events import frame_refused
from monarch._core._native.protocol import FAILED, OK, UNDELIVERABLE
from monarch._core._native.system import (
    ActorFailed,
    CallAbandoned,
    CallOverdue,
    HostAudit,
    HostShutdown,
    JobEnded,
    LaunchProc,
    ProcsEnded,
    ProcUnresponsive,
    RootLost,
    SpawnActor,
    StacksWanted,
    StopProc,
    SystemRequest,
    UnreadError,
)
from monarch._core.process import runtime_log
from monarch._core.process.control_socket import OPEN_CONTROL_SOCKET
from monarch._core.process.emergency_exit import end_process
from monarch._core.process.process import (
    AGGREGATE,
    BESIDE,
    CONTROLLER,
    DELAY,
    FAULT,
    KNOWN,
    LOG_LEVEL,
    MISSING,
    NAMED,
    PING,
    RECORDINGS,
    WATCH_STOP,
    WORKSPACE,
    LocalProcess,
)
from monarch._core.process.request_fields import MalformedRequest, fields
from monarch._core.process.root_fault import first_calls
from monarch._core.supervise.supervision import CANCEL_TIME, actor_failed, drain_bounds, procs_ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from monarch._core.process.root_fault import FirstCall

    SystemEvent: TypeAlias = (
        SpawnActor
        | StopProc
        | ProcsEnded
        | ActorFailed
        | SystemRequest
        | StacksWanted
        | ProcUnresponsive
        | CallAbandoned
        | UnreadError
        | CallOverdue
        | RootLost
        | HostAudit
        | HostShutdown
        | JobEnded
        | LaunchProc
    )


class StopWatch:
    """Enforces the bounds of an actor's end: a time per message and a total time for the drain, and a time for the clean-up.

    Bodies that exceed the deadline are cancelled; the stop does not wait longer for a body that does not end then.
    """

    __slots__ = ("actor", "cancelled", "each", "reason", "since", "taken", "until")

    def __init__(self, actor: Any, reason: str, each: float, whole: float) -> None:
        self.actor = actor
        self.reason = reason
        self.each = each
        self.taken: int = -1
        self.since = actor.process.execution.now()
        self.until = self.since + whole
        self.cancelled = False

    def over(self) -> bool:
        """Whether the watch is over."""
        actor = self.actor
        if actor.ended or actor.given_up:
            return True
        now = actor.process.execution.now()
        if actor.cleaning:
            if actor.clean_by is not None and now >= actor.clean_by:
                actor.give_up_cleanup()
                return True
            # The steps after the clean-up have a time of their own.
            self.since, self.until = now, max(self.until, now + self.each)
            return False
        if actor.mailbox.taken != self.taken:
            self.taken, self.since = actor.mailbox.taken, now
        if now < min(self.since + self.each, self.until):
            return False
        if not self.cancelled and actor.cancel(self.reason):
            self.cancelled, self.since, self.until = True, now, now + CANCEL_TIME
            self.each = CANCEL_TIME
            return False
        actor.give_up_stop(self.reason)
        return True

    def left(self, now: float) -> float:
        return min(self.since + self.each, self.until) - now


_VITAL = (SpawnActor, StopProc, ProcsEnded, ActorFailed, CallAbandoned)


class Housekeeping:
    def __init__(self, process: LocalProcess) -> None:
        self.process = process
        self.watches: list[StopWatch | FirstCall] = []
        # In a proc: the end of its stop, and whether a stop has begun.
        self.deadline: float | None = None
        # The event in progress is a spawn, a stop or a failure: if it is lost, some thread waits for ever.
        self.vital = False
        # Set with the first spawn. An import in a function costs each call of it.
        self.spawn: Callable[[LocalProcess, SpawnActor], None] | None = None

    def run(self) -> bool:
        """Handles events until this process must end; false if its agent is gone."""
        native = self.process.native
        while True:
            event = native.next_event(self._timeout())
            if self.watches:
                self.watches = [w for w in self.watches if not w.over()]
            if event is not None:
                self.vital = isinstance(event, _VITAL)
                if self._handle(event):
                    return False
                if self.vital:
                    self.watches += first_calls()
            if self.deadline is not None and self._may_end():
                return True

    def _timeout(self) -> float | None:
        if self.process.execution.world is not None:
            return self._simulated_timeout()
        if self.watches:
            return 0.02
        return None if self.deadline is None else max(0.0, min(self.deadline - self.process.execution.now(), 0.1))

    def _simulated_timeout(self) -> float | None:
        """The wait until the next check in simulated time: hours take hundreds of checks, few at first and frequent ones near the end."""
        now = self.process.execution.now()
        left = [watch.left(now) for watch in self.watches]
        if self.deadline is not None:
            left.append(self.deadline - now)
        return max(0.02, min(left) / 16) if left else None

    def _may_end(self) -> bool:
        busy = [actor for actor in list(self.process.actors.values()) if actor.cleaning or not actor.given_up]
        if not busy:
            return True
        # A clean-up that has begun gets its time.
        return self.deadline is not None and self.process.execution.now() > self.deadline and not any(a.cleaning for a in busy)

    def _handle(self, event: SystemEvent) -> bool:
        """Handles one event. True ends the thread."""
        process, native = self.process, self.process.native
        match event:
            case SpawnActor():
                if self.spawn is None:
                    self.spawn = _spawn()
                self.spawn(process, event)
            case SystemRequest():
                try:
                    self._request(event.sender, event.kind, event.slot, event.body)
                except MalformedRequest:
                    frame_refused(event.sender, f"request {event.kind}", len(event.body))
            case ActorFailed():
                try:
                    actor_failed(process, event)
                except MalformedRequest:
                    frame_refused(event.sender, "failure", len(event.failure))
                finally:
                    native.failure_handled()
            case ProcsEnded():
                for uid, end in event.ends:
                    runtime_log.proc_ended(uid, end)
                if process.membership is not None:
                    process.membership.ended(event.ends)
                try:
                    procs_ended(process, event)
                finally:
                    native.failure_handled()
            case CallAbandoned():
                from monarch._core.process.root_fault import abandoned

                abandoned(process)
            case UnreadError():
                from monarch._core.call.answer import report_unread

                report_unread(event.answer)
            case StacksWanted():
                from monarch._core.process import stacks

                native.stacks_taken(event.ticket, stacks.take(process, **self._waits()))
            case CallOverdue():
                from monarch._core.actor.place import place_of

                try:
                    place = place_of(process.actors.get(event.mesh), event.number)
                except Exception:
                    # The frames of another thread change while they are read.
                    place = ""
                native.place_found(event.number, place)
            case ProcUnresponsive():
                runtime_log.proc_unresponsive(event.proc, event.silence_reason, event.stacks)
            case StopProc():
                self._stop(event.reason, event.drain or drain_bounds())
            case RootLost():
                return True
            case HostAudit() | HostShutdown() | JobEnded():
                self._of_a_host(event)
            case LaunchProc():
                from monarch._core.testing.simulated import launch

                launch(process, event.proc, event.setup)
        return False

    def _waits(self) -> dict[str, Any]:
        """The waits of this process. The modules that find them may be of another release by now, or gone: a look ends no process."""
        try:
            from monarch._core.observe.waits import waits_and_failures

            return waits_and_failures(self.process)
        except Exception as e:
            return {"left_out": {"waits": f"{type(e).__name__}: {e}"}}

    def _of_a_host(self, event: HostAudit | HostShutdown | JobEnded) -> None:
        from monarch._core.start import worker

        match event:
            case HostAudit():
                worker.audit(event)
            case HostShutdown():
                worker.shut_down(self.process, event)
            case JobEnded():
                worker.job_over(self.process, event.host)

    def _request(self, sender: int, kind: int, slot: int, body: bytes) -> None:
        process = self.process
        if kind == PING:
            rank, mesh = int.from_bytes(body[:4], "little"), int.from_bytes(body[4:], "little")
            failure = process.actors.unstarted.get(mesh)
            if process.place.bootstrap_failure is not None:
                from monarch._core.call.answer import bootstrap_failure

                failure = bootstrap_failure(process).to_wire()
            process.native.reply(sender, slot, rank, OK if failure is None else FAILED, failure or b"")
        elif kind == WATCH_STOP:
            actor = process.actors.get(int.from_bytes(body[:8], "little"))
            if actor is not None:
                self.watches.append(StopWatch(actor, *fields(body[8:], str, float | int, float | int)))
        elif kind == OPEN_CONTROL_SOCKET:
            process.control_socket.open(process.peers.job)
            process.native.reply(sender, slot, 0, OK, b"")
        elif kind == LOG_LEVEL:
            import logging

            rank, level = fields(body, int, int)
            logging.getLogger().setLevel(level)
            process.native.reply(sender, slot, rank, OK, b"")
        elif kind == AGGREGATE:
            # The output of procs of this machine is on its console anyway.
            procs, window, viewer, rank = fields(body, list, float | None, int | None, int)
            process.native.aggregate_output(procs, window, sender, slot, rank, viewer)
        elif kind == MISSING:
            from monarch._core.hosts.slow_spawn import look

            look(process, body)
        elif kind == CONTROLLER:
            from monarch._core.hosts.controller import handle_request

            handle_request(process, sender, slot, body)
        elif kind == UNDELIVERABLE:
            from monarch._core.call.port import undelivered

            undelivered(process, body)
        elif kind == WORKSPACE:
            from monarch._core.sync import update as workspace_update

            workspace_update.handle_request(process, sender, slot, body)
        elif kind == NAMED:
            from monarch._core.extension.request import received

            received(process, sender, slot, body)
        elif kind == KNOWN:
            from monarch._core.extension.process_check import handle_request

            handle_request(process, sender, slot, body)
        elif kind == BESIDE:
            from monarch._core.extension.process_check import handle_beside

            handle_beside(process, sender, slot, body)
        elif kind == RECORDINGS:
            from monarch._core.extension.recording import handle_request

            handle_request(process, sender, slot, body)
        elif kind in (FAULT, DELAY):
            from monarch._core.testing import fault

            (fault.handle_request if kind == FAULT else fault.handle_delay)(process, sender, slot, body)

    def _stop(self, reason: str, bounds: tuple[float, float]) -> None:
        """Stops the actors of this proc within the bounds, because the proc must end."""
        if self.deadline is not None:
            return
        each, whole = bounds
        self.deadline = self.process.execution.now() + whole
        self.process.closed = True
        from monarch._core._native import Targets
        from monarch._core.supervise.supervision import stop_body

        native = self.process.native
        body = stop_body(reason, each, whole)
        for uid, actor in list(self.process.actors.items()):
            Targets(native, [self.process.uid], uid).stop(body)
            self.watches.append(StopWatch(actor, reason, each, whole))


def _spawn() -> Callable[[LocalProcess, SpawnActor], None]:
    """The function that starts an actor, with the modules that only a process with actors needs."""
    from monarch._core.actor.local_spawn import refuse_spawn, spawn_local
    from monarch._core.debug.hook import install
    from monarch._core.observe.raised import install as keep_exceptions

    def spawn(process: LocalProcess, event: SpawnActor) -> None:
        install()
        keep_exceptions()
        try:
            spawn_local(process, event.mailbox, event.spec)
        except MalformedRequest:
            frame_refused(event.sender, "spawn", len(event.spec))
            refuse_spawn(process, event.mailbox)

    return spawn


def run_client(process: LocalProcess) -> None:
    """Runs the housekeeping thread of the client."""
    set_runtime_thread()
    keeper = Housekeeping(process)
    while True:
        try:
            try:
                keeper.run()
            except Exception:
                if keeper.vital:
                    raise
                # A bug of the runtime must not silence the other events: the thread prints it and continues.
                import traceback

                traceback.print_exc()
        except Exception as e:
            end_process("housekeeping", e)
