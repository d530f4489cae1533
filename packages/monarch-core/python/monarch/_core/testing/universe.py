"""A separate world for a test: client, hosts, procs and actors in this process, on a clock that jumps when all of them wait."""

from __future__ import annotations

import heapq
import os

from monarch._core._native import Timeline
from monarch._core.process.current import count_universes, enter_simulated, forked, simulated_process
from monarch._core.testing.simulated import Event, SimulatedProcess, SimulatedWorld, keep, settle_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Coroutine, Generator, Iterator
    from contextlib import AbstractContextManager
    from typing import Any, Self, TypeVar

    from monarch._core.call.future import Future
    from monarch._core.errors.failure import MeshFailure
    from monarch._core.hosts.host_mesh import HostMesh
    from monarch._core.process.process import LocalProcess
    from monarch._core.testing.simulated_loop import BorrowedLoop

    R = TypeVar("R")

# Seconds of real time for the end of threads that should have ended: they wait for nothing but the interpreter.
_THREADS_TIMEOUT = 10.0

# Seconds for the same when the interpreter ends, which may already block these threads.
_EXIT_TIMEOUT = 0.5

# The universes that are entered, by the function that ends each, with the list of its processes.
_open: dict[Callable[[float], object], list[SimulatedProcess]] = {}
_registered = False


class UniverseClock:
    """The time of a universe; `now()` gives seconds since its beginning."""

    __slots__ = ("_timeline",)

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def now(self) -> float:
        return self._timeline.now()


class Universe:
    """A private runtime in this process, for tests: `with Universe() as u:`, or `async with` on an event loop.

    Inside the block `this_host()`, `this_proc()` and `context()` are the universe's, in the thread or task that entered it and in the
    actors spawned there; elsewhere, and afterwards, nothing has changed. Procs are simulated: actors run on threads of this process,
    messages are pickled and travel through sockets. Time-outs, `asyncio.sleep` in actors, stop and clean-up bounds are of simulated
    time, which stands while any thread can work and jumps to the next due time when every thread waits; hours pass in microseconds.

    A failure that no owner handles is raised as `SupervisionError` at the end of the block. `seed` selects another order of tasks that are
    due at the same time; 0 is the order of waiting.
    """

    clock: UniverseClock

    def __init__(self, seed: int = 0) -> None:
        self._timeline = Timeline(seed)
        self.clock = UniverseClock(self._timeline)
        self._procs: dict[int, SimulatedProcess] = {}
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._count = self._pids = 0
        self._client: SimulatedProcess | None = None
        self._entered = False
        self._outside: Any = None
        self._borrowed_loop: BorrowedLoop | None = None
        self._every_process: list[SimulatedProcess] = []
        # Failures at the root: those that the script may still see by itself, by mesh and rank, and those that the hook has not dropped.
        self._held: dict[tuple[int, int], MeshFailure] = {}
        self._faults: list[MeshFailure] = []
        self._final: set[tuple[int, int]] = set()
        # One event for each call of the hook.
        self._hooks: list[Event] = []

    # ---- its members

    @property
    def _root(self) -> SimulatedProcess:
        if self._client is None:
            raise RuntimeError("the universe is not entered: use it in a `with` block")
        return self._client

    @property
    def host(self) -> HostMesh:
        """The client's machine."""
        from monarch._core.hosts.host_mesh import local_host

        return local_host(self._root)

    def this_host(self) -> HostMesh:
        """The client's machine, as a function."""
        return self.host

    def hosts(self, count: int, *, label: str = "hosts") -> HostMesh:
        """Simulated machines, as a mesh with one dimension."""
        from monarch._core.hosts.host_mesh import HostMesh
        from monarch._core.hosts.host_set import HostSet
        from monarch._core.shape.shape import Shape
        from monarch._core.shape.slice import Slice

        if count < 1:
            raise ValueError(f"a universe has at least 1 host, not {count}")
        return HostMesh(HostSet((self._root.uid,) * count, Shape((label,), Slice.new_row_major((count,))), True))

    def kill(self, target: object) -> None:
        """Kills the procs of a slice, or the procs of its actors or hosts, as SIGKILL would; returns when they are gone.

        No `__cleanup__` runs. A thread that is busy in Python continues until its next wait or call; its later calls and messages reach
        no process.
        """
        from monarch._core._native.protocol import GATHER

        uids = list(dict.fromkeys(self._procs_of(target)))
        native = self._root.native
        cell = native.cell(GATHER, len(uids), uids)
        for uid in uids:
            native.kill_proc(uid)
        if uids:
            cell.wait()
        cell.set_retrieved()
        for uid in uids:
            self._procs.pop(uid, None)

    def _procs_of(self, target: Any) -> Iterator[int]:
        from monarch._core.hosts.host_mesh import HostMesh

        if isinstance(target, HostMesh):
            places = set(target.__core__.shape.ranks())
            return (uid for uid, process in list(self._procs.items()) if process.host_index in places)
        return iter(target.__core__.procs())

    # ---- time

    def later(self, delay: float, function: Callable[[], object]) -> None:
        """Runs `function()` when `delay` seconds have passed; `ValueError` if `delay` is negative, NaN or infinite.

        It runs in `run_until_idle`, `run_for`, or at the end of the block, on the thread that calls these.
        """
        self._timeline.check(delay)
        self._count += 1
        heapq.heappush(self._due, (self.clock.now() + delay, self._count, function))

    def run_until_idle(self) -> None:
        """Runs until no work is left; then raises the first error of a function of `later`.

        An actor that sleeps again and again always has work left: see `run_for`.
        """
        self._run_due(None)

    def run_for(self, seconds: float) -> None:
        """Runs all work that is due within `seconds`, which then have passed; errors as in `run_until_idle`."""
        self._timeline.check(seconds)
        self._run_due(self.clock.now() + seconds)

    def _run_due(self, end: float | None) -> None:
        first: BaseException | None = None
        while True:
            while self._due and (end is None or self._due[0][0] <= end):
                at, _, function = heapq.heappop(self._due)
                self._pass(at - self.clock.now())
                try:
                    function()
                except Exception as e:
                    first = first or e
            if end is not None:
                self._pass(end - self.clock.now())
            elif self._client is not None:
                self._timeline.settle()
            if not self._due or end is not None:
                break
        if first is not None:
            raise first

    def _pass(self, seconds: float) -> None:
        if self._client is None:
            self._timeline.advance(max(0.0, seconds))
        elif seconds > 0:
            self._timeline.sleep(seconds)

    def sleep(self, seconds: float) -> None:
        """Like `time.sleep`, on simulated time: for the test itself and for sync endpoints."""
        self._timeline.check(seconds)
        self._pass(seconds)

    def busy(self) -> AbstractContextManager[None]:
        """Stops time while the block runs, for work that the universe cannot see, such as that of a thread of your own."""
        from contextlib import contextmanager

        @contextmanager
        def held() -> Generator[None]:
            group = self._root.group
            self._timeline.enroll(group)
            try:
                yield
            finally:
                self._timeline.dismiss(group)

        return held()

    def run(self, main: Coroutine[Any, Any, R]) -> R:
        """Like `asyncio.run`, on simulated time."""
        from monarch._core.testing.simulated_loop import run

        return run(self._root, main)

    # ---- services for its processes on simulated time

    def _world(self) -> SimulatedWorld:
        return SimulatedWorld(
            universe=self,
            timeline=self._timeline,
            next_pid=self._next_pid,
            joined=self._joined,
            ended=self._ended,
            root_failed=self._root_failed,
            shutdown=self._shutdown,
            new_event=self._new_event,
            new_loop=self._new_loop,
            run_main=self._run_main,
            abandon_loop=self._abandon_loop,
        )

    def _new_loop(self, process: LocalProcess) -> AbstractEventLoop:
        from monarch._core.testing.simulated_loop import SimulatedLoop

        return SimulatedLoop(process, self._timeline)

    def _new_event(self, process: LocalProcess | None) -> Event:
        return Event(process or self._root)

    def _run_main(self, process: SimulatedProcess | None, main: Coroutine[Any, Any, R]) -> R:
        from monarch._core.testing.simulated_loop import run

        return run(process or self._root, main)

    def _abandon_loop(self, loop: AbstractEventLoop) -> None:
        from monarch._core.testing.simulated_loop import abandon

        abandon(loop)

    def __reduce__(self) -> Any:
        if simulated_process() is None:
            raise TypeError("a Universe can be sent to its own actors only")
        return (current_universe, ())

    # ---- the block

    def __enter__(self) -> Self:
        import sys

        module = sys.modules.get("_asyncio")
        if module is not None and module._get_running_loop() is not None:
            raise RuntimeError("an event loop is running: use `async with Universe()`")
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        def waited() -> None:
            if error is None:
                self._run_late()
            self.run(self._stop_everything())

        self._end(waited, error)

    async def __aenter__(self) -> Self:
        import asyncio

        from monarch._core.testing.simulated_loop import BorrowedLoop

        self._begin()
        try:
            self._borrowed_loop = BorrowedLoop(self._root, self._timeline, asyncio.get_running_loop())
        except BaseException:
            self._dismantle()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        late: BaseException | None = None
        try:
            if error is None:
                self._run_late()
            await self._stop_everything()
        except BaseException as e:
            late = e

        def waited() -> None:
            if late is not None:
                raise late

        self._end(waited, error)

    def _begin(self) -> None:
        from monarch._core._native import Process as NativeProcess
        from monarch._core.call.current_actor import current_instance_actor
        from monarch._core.process.environment import start_variables
        from monarch._core.process.identity import new_uid

        if self._entered:
            raise RuntimeError("a Universe can be entered once")
        if current_instance_actor() is not None:
            raise RuntimeError("a Universe cannot be entered inside an actor")
        self._entered = True
        _register()
        timeline = self._timeline
        timeline.start()
        group = timeline.new_group()
        try:
            native = NativeProcess.simulated_client(timeline, new_uid(), "host0")
        except BaseException:
            timeline.stop()
            raise
        self._client = client = SimulatedProcess(self._world(), native, "host0", "client", os.getpid(), group)
        client.place.start_variables = start_variables()
        settle_host(client)
        self._every_process.append(client)
        # The root's thread is in a group of its own: it continues when the client ends.
        own = timeline.new_group()
        timeline.enroll(own)
        timeline.enter(own, True)
        self._outside = simulated_process()
        enter_simulated(client)
        count_universes(1)
        _open[self._dismantle] = self._every_process
        client.execution.start_thread(keep, client)

    def _run_late(self) -> None:
        """Runs postponed work, but without waiting for actors that never become idle."""
        while self._due:
            self._run_due(self._due[0][0])

    async def _stop_everything(self) -> None:
        """Stops the meshes that the root owns, whose actors stop their own; the remaining processes are killed."""
        client = self._root
        client.closed = True
        first: BaseException | None = None
        stops = [mesh.stop("the universe ends") for mesh in list(client.meshes.owned.values()) if mesh.owner.actor is None]
        for stop in stops:
            try:
                await stop
            except Exception as e:
                first = first or e
        await self._settled()
        if first is not None:
            raise first

    async def _settled(self) -> None:
        """Returns when the client's housekeeping thread has handled all events that have arrived."""
        from monarch._core._native.protocol import GATHER
        from monarch._core.call.future import new_future
        from monarch._core.process.process import PING

        native = self._root.native
        for _ in range(2):
            cell = native.cell(GATHER, 1, [self._root.uid])
            native.request(self._root.uid, PING, bytes(4), cell.slot)
            await new_future(cell, lambda c: None)
        for hook in self._hooks:
            await hook.future()

    def _end(self, waited: Callable[[], None], error: BaseException | None) -> None:
        late: BaseException | None = None
        try:
            waited()
        except BaseException as e:
            late = e
        finally:
            left = self._dismantle()
        unhandled = self._unhandled()
        from monarch._core.errors.errors import SupervisionError

        if error is not None or late is not None:
            shown = error or late
            assert shown is not None
            for failure in unhandled:
                shown.add_note(f"unhandled at the root of the universe: {failure.report()}")
            if error is None:
                raise shown
        elif unhandled:
            raise SupervisionError(unhandled[0].report(), failure=unhandled[0])
        elif left:
            raise RuntimeError(f"threads of the universe do not end: {', '.join(left)}")

    def _dismantle(self, bound: float = _THREADS_TIMEOUT) -> list[str]:
        """Ends every process, thread and socket; gives the names of threads that did not end."""
        from monarch._core.hosts import host_mesh
        from monarch._core.process import root_fault

        client, timeline = self._root, self._timeline
        if self._borrowed_loop is not None:
            self._borrowed_loop.give_back()
            self._borrowed_loop = None
        for uid, _ in client.native.alive_procs():
            client.native.kill_proc(uid)
        client.native.wait_idle(bound)
        timeline.kill(client.group)
        client.native.end()
        timeline.leave()
        left = self._join(bound)
        timeline.stop()
        enter_simulated(self._outside)
        count_universes(-1)
        _open.pop(self._dismantle, None)
        meshes: set[int] = set()
        self._final = {key for key in self._held if root_fault.was_seen(key)}
        for process in self._every_process:
            host_mesh.forget_local_host(process)
            meshes |= process.spawned.ever
        root_fault.forget_meshes(meshes)
        self._client = None
        self._every_process.clear()
        self._procs.clear()
        return left

    def _join(self, bound: float) -> list[str]:
        from time import monotonic

        end = monotonic() + bound
        left: list[str] = []
        for process in self._every_process:
            # A thread that ends may have started another one meanwhile.
            while threads := list(process.threads):  # polls: no, each pass takes the threads that are there
                for thread in threads:
                    process.threads.discard(thread)
                    thread._started.wait(max(0.0, end - monotonic()))  # pyright: ignore
                    thread.join(max(0.0, end - monotonic()))
                    if thread.is_alive():
                        left.append(thread.name)
        return left

    # ---- reports of its processes

    def _next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def _joined(self, process: SimulatedProcess) -> None:
        """Records that a proc has been started."""
        self._procs[process.uid] = process
        self._every_process.append(process)

    def _ended(self, process: SimulatedProcess, status: int) -> None:
        """Records that a proc has ended by itself. Called on its housekeeping thread."""
        self._procs.pop(process.uid, None)
        client = self._client
        if client is not None:
            client.native.simulated_exit(process.uid, status)

    def _root_failed(self, failure: MeshFailure) -> None:
        """Handles a failure of a mesh that the root owns. Called on the client's housekeeping thread."""
        from monarch._core.process import root_fault

        hook = root_fault.current_hook()
        if hook is not root_fault.unhandled_fault_hook:
            done = Event(self._root)
            self._hooks.append(done)
            self._root.execution.start_thread(self._call_hook, hook, failure, done)
            return
        mesh = next((m.info.uid for m in list(self._root.meshes.owned.values()) if m.info.unique_name == failure.mesh_name), 0)
        self._held[(mesh, failure.crashed_ranks[0] if failure.crashed_ranks else -1)] = failure

    def _call_hook(self, hook: Callable[[MeshFailure], object], failure: MeshFailure, done: Event) -> None:
        client = self._root
        try:
            hook(failure)
        except BaseException as e:
            del e
            if not client.execution.killed:
                self._faults.append(failure)
        finally:
            done.set()

    def _unhandled(self) -> list[MeshFailure]:
        held = [failure for key, failure in self._held.items() if key not in self._final]
        return [*self._faults, *held]

    def _shutdown(self) -> Future[None]:
        """The implementation of `shutdown_context` inside the block."""
        from monarch._core.call.lazy_future import returns_future

        return returns_future(self._stop_everything)()


def current_universe() -> Universe:
    """The universe of this code."""
    process = simulated_process()
    if not isinstance(process, SimulatedProcess):
        raise RuntimeError("this code does not run in a Universe")
    return process.simulation.universe


def _register() -> None:
    global _registered
    if _registered:
        return
    _registered = True
    import atexit

    atexit.register(_end_open)
    os.register_at_fork(after_in_child=_forget_in_child)


def _end_open() -> None:
    """Ends open universes: no thread may be at work when the interpreter ends."""
    from monarch._core.process.forked_child import is_child

    if is_child():
        return
    for dismantle in list(_open):
        dismantle(_EXIT_TIMEOUT)


def _forget_in_child() -> None:
    if _open:
        forked(os.getppid(), [process for processes in _open.values() for process in processes])
