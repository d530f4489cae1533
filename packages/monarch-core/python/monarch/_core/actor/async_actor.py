"""The event loop of an async actor: one message after another, hooks and concurrent endpoints beside them."""

from __future__ import annotations

import asyncio
import os
import selectors
from _contextvars import ContextVar
from collections import deque

from monarch._core._native import LoopSleep, begin_trace, set_thread_sender
from monarch._core._native.protocol import EXPIRED, FAILED, STOP, TRACED
from monarch._core.actor.events import EVENT_ABORT, EVENT_FAILURE, EVENT_UNDELIVERABLE, aborted
from monarch._core.call.actor import UNDELIVERABLE
from monarch._core.call.coroutine_function import is_coroutine_function
from monarch._core.call.current_actor import set_context
from monarch._core.errors.failure import ExitReason, MeshFailure
from monarch._core.process.forked_child import is_child, leave, leave_if_child
from monarch._core.process.hook_answer import verdict
from monarch._core.process.loop_end import END_TIME, end_loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from monarch._core._native import Call
    from monarch._core._native import Process as NativeProcess
    from monarch._core.call.actor import ActorClass
    from monarch._core.call.context import Context
    from monarch._core.process.parts import RunningActor
    from monarch._core.process.process import LocalProcess

    class LoopActor(RunningActor, Protocol):
        """The actor of a loop (`local_actor.py`): what happens to it, and the parts of a message."""

        process: LocalProcess
        kind: ActorClass | None
        instance: Any
        # The method of the message in progress.
        current: str | None
        failure: MeshFailure | None

        def message_context(self, call: Call) -> Context: ...
        def method_of(self, call: Call) -> tuple[Any, bool]: ...
        def call_failed(self, call: Call, stage: str, exc: BaseException) -> bool: ...
        def begin_stop(self, call: Call | None) -> None: ...
        def stopped_failure(self) -> MeshFailure: ...
        def supervised(self, failure: MeshFailure, handled: bool) -> None: ...
        def fail_raised(self, exc: BaseException, during: MeshFailure | None = None) -> None: ...
        def fail(self, reason: ExitReason) -> None: ...


# The message whose code runs here; tasks and threads inherit it.
_handling: ContextVar[Call] = ContextVar("monarch_handling")


def message_of_this_code() -> Call | None:
    return _handling.get(None)


# The number of messages in a row before other tasks of the loop run even if none asks.
BATCH = 64


class SharedSelector(selectors.EpollSelector):
    """A selector whose thread may read the sockets of the process while its loop sleeps."""

    def __init__(self, process: NativeProcess) -> None:
        super().__init__()
        self._sleeper = LoopSleep(process, self.fileno())
        # Run by the loop after a lost wake-up, in addition to the check of its descriptors.
        self.catch_up: Callable[[], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if is_child():
            _NoTurns().popleft()
        if timeout is None or timeout > 0:
            if self._sleeper.sleep(timeout) and self.catch_up is not None:
                self.catch_up()
        return super().select(0)

    def close(self) -> None:
        self._sleeper.close()
        super().close()


class _NoTurns(deque[object]):
    """The empty ready queue of an inherited loop, in a child that was forked in one of the loop's steps."""

    def popleft(self) -> object:
        leave(RuntimeError(f"process {os.getpid()}, forked in an async endpoint, awaits something: the event loop is its parent's"))


class _ActorLoop(asyncio.SelectorEventLoop):
    def __init__(self, selector: SharedSelector) -> None:
        try:
            super().__init__(selector)
        except OSError:
            # The destructor of the loop would close sockets that it does not have.
            selector.close()
            self._closed = True
            raise


def new_loop(process: LocalProcess) -> asyncio.AbstractEventLoop:
    if process.execution.world is None:
        return _ActorLoop(SharedSelector(process.native))
    return process.execution.world.new_loop(process)


class LoopSide:
    """The event loop of one actor, on the actor's thread."""

    def __init__(self, actor: LoopActor) -> None:
        self.actor = actor
        self.loop: asyncio.AbstractEventLoop = new_loop(actor.process)
        asyncio.set_event_loop(self.loop)
        set_thread_sender(actor.mailbox, True)
        self.waker: asyncio.Future[None] | None = None
        self.main: asyncio.Task[None] | None = None
        self.concurrent: dict[asyncio.Task[None], Call] = {}
        # The calls that were cancelled at their deadline, and have not ended yet.
        self.expired: set[Call] = set()
        # The abort event of the message in progress. The message is answered first.
        self.aborting: bytes | None = None
        self.failures: list[MeshFailure] = []
        self.supervising: asyncio.Task[None] | None = None
        # True until `supervising` has had its first step.
        self.supervision_due = False
        self.fd = -1
        # The actor has ended: this class itself has cancelled the dispatcher.
        self.over = False
        # The process and this loop have ended: errors of the remaining coroutines are dropped.
        self.abandoned = False
        self.current: Call | None = None

    def run(self, early: list[Call]) -> None:
        self.main = self.loop.create_task(self._serve(early))
        try:
            self.loop.run_until_complete(self.main)
        except asyncio.CancelledError:
            if not self.over:
                raise

    # ---- messages

    async def _serve(self, early: list[Call]) -> None:
        actor, loop, pop = self.actor, self.loop, self.actor.mailbox.pop
        ready: Any = getattr(loop, "_ready", ())
        self.fd = actor.mailbox.watch()
        loop.add_reader(self.fd, self._wake)
        selector: Any = getattr(loop, "_selector", None)
        if isinstance(selector, SharedSelector):
            selector.catch_up = self._wake
        handled = 0
        while not self.over:
            if early:
                begin_trace(None)
                item = early.pop(0)
                if not item.begins():
                    continue
            else:
                item = pop()
            if item is None:
                if actor.mailbox.closed:
                    return
                handled = 0
                self.waker = loop.create_future()
                try:
                    await self.waker
                finally:
                    self.waker = None
            elif isinstance(item, bytes):
                self._event(item)
                await asyncio.sleep(0)
            else:
                # A hook begins before the next message, whether the loop or this dispatcher was the first to see the failure.
                if self.supervision_due:
                    # The hook may end the actor. The end of the actor answers the messages in `early`.
                    early.insert(0, item)
                    await asyncio.sleep(0)
                    continue
                if await self._handle(item):
                    return
                handled += 1
                # A backlog must not starve other tasks of the loop.
                if handled >= BATCH or ready:
                    handled = 0
                    await asyncio.sleep(0)

    def _wake(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass
        try:
            while (event := self.actor.mailbox.pop_event()) is not None:
                self._event(event)
        finally:
            # Even if an event raises: messages may be queued behind it, and no further wake-up announces them.
            if self.waker is not None and not self.waker.done():
                self.waker.set_result(None)

    async def _handle(self, call: Call) -> bool:
        """Handles one message. True ends the actor."""
        actor, flags = self.actor, call.flags
        if flags & STOP:
            actor.begin_stop(call)
            return True
        if flags & TRACED:
            begin_trace(call.trace)
        stage, continues = "call", False
        context = actor.message_context(call)
        set_context(context)
        self.current = call
        _handling.set(call)
        actor.current = call.method
        try:
            assert actor.kind is not None
            prop = actor.kind.endpoints.get(call.method)
            method, explicit = actor.method_of(call)
            stage = "arguments"
            args, kwargs = call.arguments()
            stage = "call"
            if explicit:
                from monarch._core.call.port import reply_port

                args = (reply_port(actor, call), *args)
            if prop is not None and prop.is_concurrent:
                task = self.loop.create_task(self._run_concurrent(call, method(*args, **kwargs), explicit))
                self.concurrent[task] = call
                continues = True
                task.add_done_callback(self._concurrent_ended)
                # Bodies start in the order of their messages: this body runs to its first await before the next message.
                await asyncio.sleep(0)
                return self.over
            value = method(*args, **kwargs)
            if prop is not None or is_coroutine_function(method):
                value = await value
            if call.wants_reply and not explicit:
                stage = "result"
                if actor.failure is not None:
                    call.reply_error(FAILED, actor.failure.to_wire())
                else:
                    call.reply(value)
        except BaseException as e:
            return self._failed(call, stage, e)
        finally:
            actor.current = None
            self.current = None
            call.handled(continues)
            if call in self.expired:
                self._uncancel(call, self.main)
            if flags & TRACED:
                begin_trace(None)
            if self.aborting is not None:
                self._event(self.aborting)
        return self.over

    def _concurrent_ended(self, task: asyncio.Task[None]) -> None:
        call = self.concurrent.pop(task, None)
        if call is not None:
            call.finished()
            self.expired.discard(call)

    def _expire(self, number: int) -> None:
        """Cancels the endpoint of the message with this number, whose deadline has passed."""
        running = [*self.concurrent.items(), *([] if self.main is None or self.current is None else [(self.main, self.current)])]
        task, call = next(((t, c) for t, c in running if c.number == number), (None, None))
        # Without such a task the endpoint has ended, or has its last step.
        if task is not None and call is not None and not self.over and task is not asyncio.current_task():
            self.expired.add(call)
            task.cancel()

    def _uncancel(self, call: Call, task: asyncio.Task[None] | None) -> None:
        """Ends the cancellation of one endpoint in the dispatcher, which goes on."""
        self.expired.discard(call)
        if task is not None:
            task.uncancel()

    def _failed(self, call: Call, stage: str, exc: BaseException) -> bool:
        leave_if_child(exc)
        if self.abandoned:
            return True
        if call in self.expired and not self.over and isinstance(exc, asyncio.CancelledError):
            # No answer: the call has the same deadline at its caller.
            return False
        if self.over and isinstance(exc, asyncio.CancelledError):
            if call.wants_reply:
                end = self.actor.failure or self.actor.stopped_failure()
                call.reply_error(FAILED, end.to_wire())
            return True
        return self.actor.call_failed(call, stage, exc)

    async def _run_concurrent(self, call: Call, body: Any, explicit: bool) -> None:
        stage = "call"
        try:
            value = await body
            leave_if_child()
            if call.wants_reply and not explicit:
                stage = "result"
                call.reply(value)
        except BaseException as e:
            if self._failed(call, stage, e):
                self._end_now()

    # ---- events

    def _event(self, event: bytes) -> None:
        actor = self.actor
        kind, body = event[:1], event[1:]
        if kind == EVENT_FAILURE:
            self.failures.append(MeshFailure.from_wire(body))
            if self.supervising is None:
                self.supervising = self.loop.create_task(self._supervise())
                self.supervision_due = True
        elif kind == EVENT_ABORT:
            actor.fail(aborted(body))
        elif kind[0] == EXPIRED:
            self._expire(int.from_bytes(body, "little"))
        elif kind == EVENT_UNDELIVERABLE:
            self.loop.create_task(self._undeliverable(body))
        if actor.failure is not None:
            self._end_now()

    async def _supervise(self) -> None:
        """Handles failures of the meshes that the actor owns, one at a time, beside its messages."""
        self.supervision_due = False
        actor = self.actor
        set_context(actor.context)
        while self.failures and actor.failure is None:
            failure = self.failures.pop(0)
            try:
                assert actor.kind is not None
                if actor.kind.supervise is None:
                    handled = False
                else:
                    answer = await self._call_hook(actor.instance.__supervise__, actor.kind.supervise, failure)
                    handled = verdict("__supervise__", answer)
            except BaseException as e:
                if self.over and isinstance(e, asyncio.CancelledError):
                    raise
                actor.fail_raised(e, during=failure)
                break
            actor.supervised(failure, handled)
        self.supervising = None
        if actor.failure is not None:
            self._end_now()

    async def _call_hook(self, hook: Any, function: Any, argument: Any) -> Any:
        if is_coroutine_function(function):
            return await hook(argument)
        # A sync hook sees no running loop, so a blocking wait inside it gives no warning.
        asyncio._set_running_loop(None)
        try:
            return hook(argument)
        finally:
            asyncio._set_running_loop(self.loop)
            asyncio.set_event_loop(self.loop)

    async def _undeliverable(self, body: bytes) -> None:
        from monarch._core.call.port import envelope_of

        actor = self.actor
        set_context(actor.context)
        envelope = envelope_of(actor, body)
        try:
            hook = getattr(actor.instance, UNDELIVERABLE)
            handled = verdict(UNDELIVERABLE, await self._call_hook(hook, hook, envelope))
        except BaseException as e:
            actor.fail_raised(e)
            handled = True
        if not handled:
            actor.fail(ExitReason("raised", detail=envelope.error_msg()))
        if actor.failure is not None:
            self._end_now()

    def calls(self) -> list[Call]:
        """The calls in progress."""
        return [*([] if self.current is None else [self.current]), *self.concurrent.values()]

    def abort_after_call(self, event: bytes) -> bool:
        """Keeps the event until the call that this code belongs to is answered; false if this code belongs to no call."""
        call = _handling.get(None)
        if call is None:
            return False
        if call is self.current:
            self.aborting = self.aborting or event
            return True
        task = next((t for t, c in list(self.concurrent.items()) if c is call), None)
        if task is None:
            return False

        def push(_: object) -> None:
            self.actor.mailbox.push_event(event)

        self.loop.call_soon_threadsafe(task.add_done_callback, push)
        return True

    # ---- the end

    def _end_now(self) -> None:
        """Cancels the endpoint in progress. Runs on the thread of the loop."""
        self.over = True
        if self.main is not None and not self.main.done() and asyncio.current_task() is not self.main:
            self.main.cancel()

    def interrupt(self) -> None:
        """Cancels the endpoint in progress, from another thread."""
        try:
            self.loop.call_soon_threadsafe(self._end_now)
        except RuntimeError:  # the loop is closed
            return

    def end_concurrent(self) -> None:
        self.loop.run_until_complete(self._end_concurrent())

    async def _end_concurrent(self) -> None:
        """Cancels and awaits outstanding concurrent endpoints, which is no failure."""
        self.over = True
        if self.supervising is not None and asyncio.current_task() is not self.supervising:
            self.supervising.cancel()
        tasks = list(self.concurrent)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def clean_up(self, hook: Any, exc: Exception | None, bound: float) -> None:
        async def step() -> None:
            try:
                await hook(exc)
                leave_if_child()
            except BaseException as e:
                leave_if_child(e)
                raise

        async def run() -> None:
            set_context(self.actor.context)
            await asyncio.wait_for(step(), bound)

        try:
            self.loop.run_until_complete(run())
        except TimeoutError:
            raise TimeoutError(f"__cleanup__ took longer than {bound} s") from None

    def forbid(self) -> None:
        """Prevents all further steps of this loop, in a child that was forked in one of them."""
        loop: Any = self.loop
        loop._ready = _NoTurns()

    def abandon(self) -> None:
        """Closes the loop and drops its tasks."""
        self.over, self.main, self.abandoned = True, None, True
        world = self.actor.process.execution.world
        if world is not None:
            world.abandon_loop(self.loop)

    def close(self) -> None:
        """Cancels the remaining tasks and closes the loop."""
        loop = self.loop
        if self.fd >= 0:
            loop.remove_reader(self.fd)
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            # The tasks run code of the actor: the stop limits their time and names the actor.
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        if self.actor.process.closed:
            self.actor.process.native.extend_stop(4 * END_TIME)
        try:
            end_loop(loop)
        finally:
            asyncio.set_event_loop(None)
