"""Simulated processes: nodes of this process that represent a client or procs, with threads for which simulated time waits."""

from __future__ import annotations

import marshal
from contextvars import Context
from dataclasses import dataclass
from weakref import WeakSet

from monarch._core._native.protocol import FIRST_ERROR
from monarch._core.process.actor_thread import ActorThread
from monarch._core.process.control_socket import ControlSocket
from monarch._core.process.current import enter_simulated
from monarch._core.process.execution import Execution
from monarch._core.process.mesh_info import MeshInfo
from monarch._core.process.process import LocalProcess
from monarch._core.process.provided import provided
from monarch._core.shape.shape import Extent, Shape
from monarch._core.shape.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable
    from typing import Any

    from monarch._core._native import Process as NativeProcess
    from monarch._core._native import Timeline
    from monarch._core.call.future import Future
    from monarch._core.errors.failure import MeshFailure
    from monarch._core.process.parts import Owned, RunningActor


class _Owned(dict[int, "Owned"]):
    """A dictionary of owned meshes that also records former entries."""

    def __init__(self) -> None:
        self.ever: set[int] = set()

    def __setitem__(self, uid: int, mesh: Owned) -> None:
        self.ever.add(uid)
        super().__setitem__(uid, mesh)


@dataclass(frozen=True)
class SimulatedWorld:
    """A universe, as its processes use it (`process/parts.py`)."""

    universe: Any
    timeline: Timeline
    # The processes of the universe: the next pid, and procs that have been started or have ended by themselves.
    next_pid: Callable[[], int]
    joined: Callable[[SimulatedProcess], None]
    ended: Callable[[SimulatedProcess, int], None]
    root_failed: Callable[[MeshFailure], None]
    shutdown: Callable[[], Future[None]]
    new_event: Callable[[Any], Any]
    new_loop: Callable[[Any], AbstractEventLoop]
    run_main: Callable[[Any, Any], Any]
    abandon_loop: Callable[[AbstractEventLoop], None]


class SimulatedExecution(Execution):
    """Threads for which the time of a universe waits, and its clock. They end when the group of the process is killed."""

    def __init__(self, world: SimulatedWorld, group: int) -> None:
        self.world = world
        self.timeline = world.timeline
        self.group = group
        self.threads: WeakSet[ActorThread] = WeakSet()
        # The process, which the context of each thread names.
        self.process: LocalProcess | None = None

    @property
    def killed(self) -> bool:
        return self.timeline.is_dead(self.group)

    def now(self) -> float:  # pyright: ignore
        return self.timeline.now()

    def start_actor(self, actor: RunningActor) -> None:
        self._start(f"actor {actor.info.name}", actor.run)

    def start_thread(self, body: Callable[..., Any], *args: Any) -> None:
        self._start("monarch", body, *args)

    def _start(self, name: str, body: Callable[..., Any], *args: Any) -> None:
        # The thread has a context of its own, which ends with the last frame. The interpreter clears a thread's own context when `join` may
        # already have returned, and until then it would hold the process and its sockets.
        thread = ActorThread(target=Context().run, args=(self._run, body, *args), name=name, daemon=True)
        self.threads.add(thread)
        self.timeline.enroll(self.group)
        try:
            thread.start()
        except BaseException:
            self.timeline.dismiss(self.group)
            raise

    def _run(self, body: Callable[..., Any], *args: Any) -> None:
        self.timeline.enter(self.group)
        enter_simulated(self.process)
        try:
            body(*args)
        except BaseException:
            if not self.killed:
                raise
        finally:
            self.timeline.leave()


class _NoSocket(ControlSocket):
    """Handles that are pickled outside a message are for the same universe."""

    def open(self, job: int) -> None:
        return


class SimulatedProcess(LocalProcess):
    """The client or a proc of a universe."""

    def __init__(self, world: SimulatedWorld, native: NativeProcess, host: str, name: str, pid: int, group: int) -> None:
        execution = SimulatedExecution(world, group)
        super().__init__(native, host, name, execution)
        execution.process = self
        self.simulation, self.threads, self.group = world, execution.threads, group
        self.pid = pid
        self.meshes.owned = self.spawned = _Owned()
        self.control_socket = _NoSocket(native)
        # The index of its simulated machine.
        self.host_index = 0


class Event:
    """Like `threading.Event`, for threads of a universe."""

    __slots__ = ("_cell",)

    def __init__(self, process: LocalProcess) -> None:
        self._cell = process.native.cell(FIRST_ERROR, 1)

    def set(self) -> None:
        self._cell.complete(0, 0, b"")

    def wait(self, timeout: float | None = None) -> bool:
        return self._cell.wait(0, timeout)

    def future(self) -> Future[None]:
        from monarch._core.call.future import new_future

        return new_future(self._cell, lambda c: None)


def keep(process: SimulatedProcess) -> None:
    """Runs the housekeeping thread of the simulated client."""
    from monarch._core._native import set_runtime_thread

    set_runtime_thread()
    keeper = provided.housekeeping(process)
    while not process.execution.killed:
        try:
            keeper.run()
            return
        except Exception:  # a bug of the runtime must not silence the other events: the thread prints it and continues
            import traceback

            traceback.print_exc()


def launch(client: Any, uid: int, body: bytes) -> None:
    """Starts a proc at the request of the agent. Called on the client's housekeeping thread."""
    world: SimulatedWorld = client.simulation
    parts = marshal.loads(body)
    if len(parts) != 5:  # the set-up is for a command, which a simulated world cannot run
        parts = marshal.loads(parts[-1])
    group = world.timeline.new_group()
    pid = world.next_pid()
    native = client.native.simulated_proc(uid, group, pid)
    if native is None:
        return
    from _pickle import loads

    common, rank, *_ = parts
    setup = loads(common)
    state, _, hosts = setup["mesh"]
    places = list(hosts[1].ranks())
    index = places[rank // max(1, len(state[4]) // len(places))]
    process = SimulatedProcess(world, native, f"host{index}", state[1], pid, group)
    process.host_index = index
    process.place.python_executable = setup["executable"]
    process.place.start_variables = setup["start"]
    process.place.info = MeshInfo(state[0], state[1], state[2], Extent.from_wire(state[3]), state[4], agents=state[7], job=state[9])
    process.meshes.known[state[0]] = process.place.info
    process.place.rank = rank
    settle_host(process)
    world.joined(process)
    process.execution.start_thread(_live, process, setup, rank)


def settle_host(process: SimulatedProcess) -> None:
    """Sets `this_host()` in the process to its simulated machine."""
    from monarch._core.hosts.host_set import HostSet, set_local_host

    shape = Shape((), Slice(offset=process.host_index, sizes=(), strides=()))
    set_local_host(process, HostSet((process.agent_uid,), shape, process.is_client, process.place.python_executable))


def _live(process: SimulatedProcess, setup: dict[str, Any], rank: int) -> None:
    """Runs a simulated proc from its start to its end, on its housekeeping thread."""
    from monarch._core._native import set_runtime_thread

    set_runtime_thread()
    try:
        if provided.prepare_proc(process, setup, rank):
            process.native.reply(setup["owner"], setup["slot"], rank, 0, b"")
        provided.housekeeping(process).run()
        process.native.flush_links(0.5)
        status = 0
    except SystemExit as e:
        status = (e.code if isinstance(e.code, int) else 1) << 8
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1 << 8
    process.simulation.ended(process, status)
