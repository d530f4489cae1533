"""An actor in its own process: its thread, its messages, its end.

Sync actors run the native receive loop, which calls back for everything but a plain endpoint; async actors run `async_actor`. This module
decides for both when an actor ends.
"""

from __future__ import annotations

import marshal
import sys
from _thread import get_ident

from monarch._core._native import ActorMailbox, begin_trace, current_deadline, enter_deadline, set_thread_sender
from monarch._core._native.events import actor_end
from monarch._core._native.protocol import ERROR, EXPLICIT_PORT, FAILED, STOP, TRACED
from monarch._core.actor.end_text import end_text
from monarch._core.actor.events import EVENT_ABORT, EVENT_END, EVENT_FAILURE, EVENT_UNDELIVERABLE, aborted
from monarch._core.call.actor import UNDELIVERABLE, Actor, ActorClass, actor_class
from monarch._core.call.answer import pack_error
from monarch._core.call.context import Context, Instance
from monarch._core.call.coroutine_function import is_coroutine_function
from monarch._core.call.current_actor import CreatorInstance, set_context
from monarch._core.config import config
from monarch._core.errors.failure import ExitReason, MeshFailure
from monarch._core.pickle.actor_class import loads_class
from monarch._core.process.emergency_exit import end_process
from monarch._core.process.forked_child import leave_if_child
from monarch._core.process.hook_answer import verdict
from monarch._core.process.mesh_info import MeshInfo
from monarch._core.process.owner import Owner
from monarch._core.process.process import LocalProcess
from monarch._core.process.provided import provided
from monarch._core.process.runtime_log import INFO, WARN, event, failure_event, is_taken
from monarch._core.shape.shape import Extent, Point
from monarch._core.supervise.supervision import CANCEL_TIME, stop_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core._native import Call
    from monarch._core.hosts.host_mesh import ProcMesh
    from monarch._core.process.identity import ActorAddr

# Seconds in which the owner is notified of a clean-up that did not end in its time.
REPORT_TIME = 3.0


class LocalActor:
    """One instance of a user's class, with a thread of its own."""

    def __init__(
        self,
        process: LocalProcess,
        info: MeshInfo,
        rank: int,
        owner_proc: int,
        owner_mailbox: int,
        origin: bytes,
    ) -> None:
        self.process = process
        self.info = info
        self.rank = rank
        self.owner_proc = owner_proc
        self.owner_mailbox = owner_mailbox
        self.origin = origin
        self.creator_bytes: bytes | None = None
        self.display = info.display(rank)
        self.point = Point(rank, info.extent)
        self.mailbox = ActorMailbox(process.native, info.uid)
        self.owner = Owner(process, info.uid, self.display, self)
        self.context = Context(Instance(process, self), self.point)
        self.instance: Any = None
        self.cls: type[Actor] | None = None
        self.kind: ActorClass | None = None
        # The reason of the actor's end, set once.
        self.failure: MeshFailure | None = None
        self.stopping: str | None = None
        # The bounds of the stop: seconds for one message, and for the whole drain.
        self.stop_bounds: list[float] = []
        self.stop_calls: list[Call] = []
        self.stop_deadline: float | None = None  # the hooks inherit it
        self.ended = False
        # Answers that the actor owes through ports: process, call id and rank of each. The end of the actor fails these calls.
        self.owed: set[tuple[int, int, int]] = set()
        self.cleaning = False
        # An endpoint exceeded the time of a stop and cannot be cancelled.
        self.given_up = False
        # The time at which `__cleanup__` must have returned.
        self.clean_by: float | None = None
        self.thread = 0
        # The actor's code has begun: from now on its exceptions are failures of the actor.
        self.began = False
        self.current: str | None = None
        self.loop_side: Any = None
        # Messages that have hit a breakpoint: their numbers, or the messages themselves if there is a loop.
        self.debugged: list[Any] = []
        # The debugger's callback, set with the first entry of `debugged`.
        self.after_failure: Callable[[LocalActor, Call, BaseException], None] | None = None

    @property
    def addr(self) -> ActorAddr:
        from monarch._core.process.identity import addr_of, to_label

        return addr_of(self.process, to_label(self.info.name), self.info.uid)

    @property
    def creator(self) -> CreatorInstance:
        from _pickle import loads

        return loads(marshal.loads(self.origin)[0])

    @property
    def proc_mesh(self) -> ProcMesh:
        from _pickle import loads

        return provided.received_proc_mesh(*loads(marshal.loads(self.origin)[1]))

    # ---- the thread

    def run(self) -> None:
        """Runs the actor from its first message to its end, on its thread."""
        try:
            self._live()
        except BaseException as e:
            # A thread of a test shows its exception. Before the actor begins, `ReportingActorThread` reports it.
            if self.process.execution.world is not None or not self.began:
                raise
            end_process(f"the end of actor {self.display}", e)

    def _live(self) -> None:
        set_thread_sender(self.mailbox, False)
        self.thread = get_ident()
        self.mailbox.set_label(self.display, self.thread)
        set_context(self.context)
        early: list[Call] = []
        try:
            self.began = True
            first = self._first_message(early) if self._may_run() else None
            if first is not None and self._construct(first):
                assert self.kind is not None
                if self.kind.is_async:
                    from monarch._core.actor.async_actor import LoopSide

                    self.loop_side = LoopSide(self)
                    self.loop_side.run(early)
                else:
                    self._run_sync(early)
        except BaseException as e:
            self.fail_raised(e)
        leave_if_child()
        if self.process.execution.killed:
            self._vanish()
        else:
            self._finish(early)

    def _may_run(self) -> bool:
        """Fails the actor if the `bootstrap` of its proc has failed, because the actor's code relies on the bootstrap."""
        if self.process.place.bootstrap_failure is None:
            return True
        detail, traceback = self.process.place.bootstrap_failure
        self.fail(ExitReason("raised", detail=detail), traceback)
        return False

    def _vanish(self) -> None:
        """Ends the actor of a simulated process that was killed."""
        self.ended = True
        self.instance = None
        if self.loop_side is not None:
            self.loop_side.abandon()

    def _first_message(self, early: list[Call]) -> Call | None:
        """The message that holds `__init__`. Other messages may have overtaken it."""
        while True:
            item = self.mailbox.wait_pop()
            if item is None:
                return None
            if isinstance(item, bytes):
                if self._event(item):
                    return None
            elif item.method == "__init__" and not item.flags & STOP:
                return item
            else:
                early.append(item)

    def _construct(self, first: Call) -> bool:
        self.current = "__init__"
        try:
            self.info.cls = self.info.cls or loads_class(self.info.payload)
            cls = self.cls = self.info.cls
            self.kind = actor_class(cls)
            self.process.meshes.supervision.actor_ready(self.info.uid, self.kind.supervise is not None)
            args, kwargs = first.arguments()
            self.instance = cls(*args, **kwargs)
        except BaseException as e:
            self._debug_failure(first, e)
            self.fail_raised(e)
            return False
        finally:
            self.current = None
            begin_trace(None)
            first.handled()
        return self.failure is None

    def _run_sync(self, early: list[Call]) -> None:
        while early:
            call = early.pop(0)
            begin_trace(call.trace if call.flags & TRACED else None)
            if call.begins() and self._slow(call):
                return
        self.mailbox.run(self._resolve, self._slow, self.call_failed, self._event, self._enter, self._leave)

    # ---- messages of a sync actor

    def _resolve(self, name: str) -> Any:
        """The bound method of a plain endpoint; None if `_slow` must handle the message."""
        assert self.kind is not None
        prop = self.kind.endpoints.get(name)
        return None if prop is None or prop.is_explicit or prop.is_async else prop.method.__get__(self.instance, self.cls)

    def _enter(self, rank: int, extent: bytes) -> None:
        set_context(Context(self.context.actor_instance, Point(rank, Extent.from_wire(extent))))

    def _leave(self) -> None:
        set_context(self.context)

    def message_context(self, call: Call) -> Context:
        extent = call.extent
        if not extent:
            return self.context
        return Context(self.context.actor_instance, Point(call.rank, Extent.from_wire(extent)))

    def method_of(self, call: Call) -> tuple[Any, bool]:
        """The bound method that a message names, and whether it gets a port; `AttributeError` if there is none."""
        assert self.kind is not None
        prop = self.kind.endpoints.get(call.method)
        explicit = bool(call.flags & EXPLICIT_PORT)
        if prop is not None:
            return prop.method.__get__(self.instance, self.cls), explicit
        return getattr(self.instance, call.method), explicit

    def _slow(self, call: Call) -> bool:
        """Handles any message, one step at a time; true ends the loop."""
        if call.flags & STOP:
            return self._stop_message(call)
        stage = "call"
        try:
            set_context(self.message_context(call))
            method, explicit = self.method_of(call)
            if is_coroutine_function(method):
                raise TypeError(
                    f"{self.info.class_name}.{call.method} is an async def method, but the actor has sync endpoints: "
                    "there is no loop to run it on"
                )
            stage = "arguments"
            args, kwargs = call.arguments()
            stage = "call"
            if explicit:
                from monarch._core.call.port import reply_port

                method(reply_port(self, call), *args, **kwargs)
            else:
                value = method(*args, **kwargs)
                stage = "result"
                if self.failure is not None:
                    call.reply_error(FAILED, self.failure.to_wire())
                elif call.wants_reply:
                    call.reply(value)
        except BaseException as e:
            return self.call_failed(call, stage, e)
        finally:
            set_context(self.context)
            call.handled()
        return self.failure is not None

    def call_failed(self, call: Call, stage: str, exc: BaseException) -> bool:
        """Answers the caller of an endpoint that raised, or fails the actor if no caller waits."""
        leave_if_child(exc)
        if self.process.execution.killed:
            return True
        if stage == "call":
            self._debug_failure(call, exc)
        is_answered = call.wants_reply and not (call.flags & EXPLICIT_PORT and stage == "call")
        # If the actor has failed meanwhile, the outcome of its endpoint is dropped.
        if is_answered and isinstance(exc, Exception) and self.failure is None:
            function = self.method_of(call)[0] if stage == "result" else None
            call.reply_error(ERROR, pack_error(exc, self.display, self.process.pid, self.process.host, call.method, function))
            return False
        self.fail_raised(exc)
        if call.wants_reply and self.failure is not None:
            call.reply_error(FAILED, self.failure.to_wire())
        return True

    def _debug_failure(self, call: Call, exc: BaseException) -> None:
        if self.debugged and self.after_failure is not None:
            self.after_failure(self, call, exc)

    # ---- events

    def _event(self, event: bytes) -> bool:
        """Handles an event that overtakes messages; true ends the loop."""
        kind, body = event[:1], event[1:]
        if kind == EVENT_FAILURE:
            self._supervise(MeshFailure.from_wire(body))
        elif kind == EVENT_ABORT:
            self.fail(aborted(body))
        elif kind == EVENT_UNDELIVERABLE:
            self._undeliverable(body)
        return self.failure is not None or self.ended or kind == EVENT_END

    def _supervise(self, failure: MeshFailure) -> None:
        hook = self.kind.supervise if self.kind is not None else None
        try:
            handled = hook is not None and self.instance is not None and verdict("__supervise__", self.instance.__supervise__(failure))
        except BaseException as e:
            self.fail_raised(e, during=failure)
            return
        self.supervised(failure, handled)

    def supervised(self, failure: MeshFailure, handled: bool) -> None:
        """Acts on the result of the actor's `__supervise__`."""
        if self.process.meshes.supervision.answered(self.info.uid, handled):
            self.fail_unhandled(failure)
        elif handled:
            failure_event("failure.handled", INFO, failure, self.display)

    def _undeliverable(self, body: bytes) -> None:
        from monarch._core.call.port import envelope_of

        envelope = envelope_of(self, body)
        try:
            handled = verdict(UNDELIVERABLE, getattr(self.instance, UNDELIVERABLE)(envelope))
        except BaseException as e:
            self.fail_raised(e)
            return
        if not handled:
            self.fail(ExitReason("raised", detail=envelope.error_msg()))

    def owned_failed(self, failure: MeshFailure, ask: bool) -> None:
        """Handles the failure of a mesh that this actor owns; its hook decides if `ask` is set. Called on the housekeeping thread."""
        if ask:
            # An actor that is being stopped ignores the event: its meshes end with it, which is no failure of the actor.
            self.mailbox.push_event(EVENT_FAILURE + failure.to_wire())
            return
        self.fail_unhandled(failure)
        self._end_soon()

    def _end_soon(self) -> None:
        """Wakes the actor's thread, which then finds that the actor has failed. Called on the housekeeping thread."""
        self.mailbox.push_event(EVENT_END)
        if self.loop_side is not None:
            self.loop_side.interrupt()

    def abort(self, reason: str | None) -> None:
        event = EVENT_ABORT + (reason or "(no reason provided)").encode(errors="backslashreplace")
        if self.loop_side is None or not self.loop_side.abort_after_call(event):
            self.mailbox.push_event(event)

    def stop_self(self, reason: str) -> None:
        from monarch._core._native import Targets
        from monarch._core.supervise.supervision import drain_bounds, stop_body

        native = self.process.native
        Targets(native, [self.process.uid], self.info.uid).stop(stop_body(reason, *drain_bounds()))

    # ---- failing

    def fail_raised(self, exc: BaseException, during: MeshFailure | None = None) -> None:
        leave_if_child(exc)
        from monarch._core.pickle.remote_exception import format_exception, raised_text

        self.fail(ExitReason("raised", detail=raised_text(exc)), format_exception(exc), during)

    def fail_unhandled(self, failure: MeshFailure) -> None:
        self.fail(failure.reason, cause=failure)

    def fail(
        self, reason: ExitReason, traceback: str | None = None, during: MeshFailure | None = None, cause: MeshFailure | None = None
    ) -> None:
        """Marks the actor as failed, notifies its owner, then fails its waiting calls. Happens once; not if its simulated process was
        killed.
        """
        if self.failure is not None or self.ended or self.process.execution.killed:
            return
        self.failure = MeshFailure(
            actor=self.display,
            reason=reason,
            mesh_name=self.info.unique_name,
            name=self.info.name,
            crashed_ranks=[self.rank],
            host=self.process.host,
            pid=self.process.pid,
            traceback=traceback,
            during=during,
            cause=cause,
        )
        self.process.meshes.supervision.actor_over(self.info.uid)
        failure_event("actor.fail", WARN, self.failure, self.info.creator)
        wire = self.failure.to_wire()
        self.process.native.report_failure(self.owner_proc, self.info.uid, self.rank, wire)
        self.stop_calls += self.mailbox.close(wire)
        self._fail_owed(wire)

    def _fail_owed(self, wire: bytes) -> None:
        owed, self.owed = self.owed, set()
        for caller, slot, rank in owed:
            self.process.native.reply(caller, slot, rank, FAILED, wire)

    def orphaned(self, info: MeshInfo) -> None:
        """Fails the actor because the process of its owner has ended. Called on the housekeeping thread."""
        self.fail(ExitReason("orphaned", detail=info.creator))
        self._end_soon()

    def not_started(self, why: str) -> None:
        """Fails the actor because its thread could not be started."""
        self.fail(ExitReason("not_started", detail=why))
        assert self.failure is not None
        self.process.actors.unstarted[self.info.uid] = self.failure.to_wire()
        self._finish([])

    # ---- stopping

    def _stop_message(self, call: Call) -> bool:
        self.begin_stop(call)
        return True

    def begin_stop(self, call: Call | None) -> None:
        if call is not None:
            self.stop_calls.append(call)
            if self.stopping is None:
                self.stopping, self.stop_bounds = stop_of(call)
                self.stop_deadline = current_deadline()

    def stopped_failure(self) -> MeshFailure:
        from monarch._core.call.answer import stopped_failure

        return stopped_failure(self.process, self.info, self.rank, self.stopping or "stopped")

    def _finish(self, early: list[Call]) -> None:
        """Stops the owned meshes, runs the actor's clean-up, and sends the last answers, in this order."""
        begin_trace(None)
        enter_deadline(None)
        failed = self.failure
        end = failed or self.stopped_failure()
        wire = end.to_wire()
        self.stop_calls += self.mailbox.close(wire)
        for call in early:
            if call.flags & STOP:
                self.stop_calls.append(call)
            elif call.wants_reply:
                call.reply_error(FAILED, wire)
        self._stop_owned()
        if self.loop_side is not None:
            self.loop_side.end_concurrent()
        trouble = self._clean_up(failed)
        if self.loop_side is not None:
            self.loop_side.close()
        self.ended = True
        self._fail_owed(wire)
        # The process does not end while it still knows this actor.
        actor_end(self.info.uid, self.display, end.reason.kind, end_text(end))
        if is_taken(INFO):
            event("actor.stop", actor=self.display, mesh=self.info.unique_name, rank=self.rank, kind=end.reason.kind)
        self.process.actors.pop(self.info.uid, None)
        self.process.meshes.supervision.actor_ended(self.info.uid)
        self.instance = None
        calls, self.stop_calls = self.stop_calls, []
        for call in calls:
            if trouble is None:
                call.reply(None)
            else:
                call.reply_error(ERROR, trouble.to_wire())
        self.process.native.request(self.process.uid, 0, b"")

    def _stop_owned(self) -> None:
        from monarch._core.supervise.supervision import CLIENT_EXITS

        owned = self.owner.meshes()
        if not owned:
            return
        bounds = None
        stop_timeout = (config.seconds("stop_actor_timeout") or 0.0) + (config.seconds("process_exit_timeout") or 0.0) + 1
        if self.stopping == CLIENT_EXITS and self.stop_bounds:
            each, whole = bounds = self.stop_bounds[0], self.stop_bounds[1]
            stop_timeout = each + whole + (config.seconds("cleanup_timeout") or 0.0) + 1
        self.cleaning = True
        if self.process.closed and not self.process.is_client:
            self.process.native.extend_stop(stop_timeout)
        futures = [mesh.stop(self.stopping or "its owner has failed", bounds) for mesh in owned]
        for future in futures:
            try:
                future.get(timeout=stop_timeout)
            except Exception as e:  # the error was reported where it happened; this actor's end continues
                del e
        self.cleaning = False

    def _clean_up(self, failed: MeshFailure | None) -> MeshFailure | None:
        """Runs `__cleanup__` once. Returns its failure, which the owner has received."""
        if self.kind is None or self.kind.cleanup is None or self.instance is None:
            return None
        exc = None if failed is None else Exception(failed.report())
        bound = config.seconds("cleanup_timeout") or 0.0
        self.current = "__cleanup__"
        self.mailbox.set_doing("__cleanup__")
        if self.process.closed:
            self.process.native.extend_stop(bound + CANCEL_TIME + REPORT_TIME)
        started = self.process.execution.now()
        is_async = is_coroutine_function(self.kind.cleanup)
        # An actor that can be cancelled gets additional time for the cancellation.
        self.clean_by = started + bound + (CANCEL_TIME if is_async else 0.0)
        if self.stop_deadline is not None:
            enter_deadline(self.stop_deadline)
        self.cleaning = True
        self.process.native.note_cleanup(self.info.uid, True)
        try:
            if is_async:
                if self.loop_side is None:  # the actor has failed before its loop began
                    from monarch._core.actor.async_actor import LoopSide

                    self.loop_side = LoopSide(self)
                self.loop_side.clean_up(self.instance.__cleanup__, exc, bound)
            else:
                set_context(self.context)
                self.instance.__cleanup__(exc)
            leave_if_child()
            if self.process.execution.now() - started > bound:
                raise TimeoutError(_overrun(bound))
        except BaseException as e:
            if self.given_up:  # the owner has been notified
                return None
            self.failure = None
            self.fail_raised(e, during=failed)
            return self.failure
        finally:
            self.process.native.note_cleanup(self.info.uid, False)
            self.cleaning = False
            self.current = None
        return None

    def give_up_cleanup(self) -> None:
        """Fails the actor because `__cleanup__` has exceeded its time and may never return. Called on the housekeeping thread."""
        self.given_up = True
        self.process.native.note_cleanup(self.info.uid, False)
        self.cleaning = False
        failed, self.failure = self.failure, None
        bound = config.seconds("cleanup_timeout") or 0.0
        self.fail(ExitReason("raised", detail=f"TimeoutError: {_overrun(bound)}"), during=failed)
        if self.failure is None:
            return  # the process has been killed
        wire = self.failure.to_wire()
        calls, self.stop_calls = self.stop_calls, []
        for call in calls:
            call.reply_error(ERROR, wire)

    def cancel(self, reason: str) -> bool:
        """Ends the drain after its time; true if the running code could be cancelled. Called on the housekeeping thread."""
        self.stopping = self.stopping or reason
        self.stop_calls += self.mailbox.close(self.stopped_failure().to_wire())
        if self.loop_side is None:
            return False
        self.loop_side.interrupt()
        return True

    def give_up_stop(self, reason: str) -> None:
        """Ends the stop without the running body, which cannot be cancelled and may never end. Called on the housekeeping thread."""
        from monarch._core.supervise.supervision import CLIENT_EXITS

        wire = self.stopped_failure().to_wire()
        self.given_up = True
        # Logged before the calls are answered, so that the event exists when `stop()` returns.
        if reason != CLIENT_EXITS:
            busy = self._in_progress() or self.current or "a task"
            text = f"{self.display} is still in {busy} after its time to stop was over"
            event("stop.timeout", WARN, actor=self.display, mesh=self.info.unique_name, rank=self.rank, endpoint=busy, detail=text)
        self.mailbox.fail_current(wire)
        self._fail_owed(wire)
        calls, self.stop_calls = self.stop_calls, []
        for call in calls:
            call.reply_error(FAILED, wire)

    def _in_progress(self) -> str | None:
        """The endpoint or hook in which the thread is, found by its stack: the receive loop of a sync actor does not record it."""
        if self.kind is None:  # the class is being loaded
            return None
        methods: dict[str, Any] = {name: prop.method for name, prop in self.kind.endpoints.items()}
        methods |= {"__supervise__": self.kind.supervise, "__cleanup__": self.kind.cleanup}
        methods[UNDELIVERABLE] = getattr(self.cls, UNDELIVERABLE, None)
        names = {method.__code__: name for name, method in methods.items() if hasattr(method, "__code__")}
        frame = sys._current_frames().get(self.thread)  # pyright: ignore[reportPrivateUsage]
        while frame is not None:
            if frame.f_code in names:
                return names[frame.f_code]
            frame = frame.f_back
        return None


def _overrun(bound: float) -> str:
    return f"__cleanup__ took longer than {bound} s"
