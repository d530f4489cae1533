"""Meshes of processes, on which actors are spawned."""

from __future__ import annotations

import marshal

from monarch._core._native.protocol import GATHER, NO_ANSWER
from monarch._core.call.actor import Actor, actor_class, check_arguments
from monarch._core.call.actor_mesh import ActorMesh, check_names, whole_shape
from monarch._core.call.future import Future, done_future, new_future
from monarch._core.call.owner import spawning_owner
from monarch._core.call.received_mesh import received_mesh
from monarch._core.call.runs import each_of, runs_of
from monarch._core.call.shared_handle import share_if_plain
from monarch._core.process.current import current_process
from monarch._core.process.identity import checked_name, new_uid
from monarch._core.process.loaded import loaded_module
from monarch._core.process.mesh_info import MeshInfo
from monarch._core.process.process import AGGREGATE, LOG_LEVEL, LocalProcess
from monarch._core.shape.mesh import MeshTrait
from monarch._core.shape.shape import Extent, Shape
from monarch._core.shape.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal, NoReturn, ParamSpec, Self, TypeVar

    from monarch._core._native import PendingCall
    from monarch._core.hosts.host_mesh import HostMesh
    from monarch._core.supervise.supervision import OwnedMesh

    P = ParamSpec("P")
    T = TypeVar("T", bound=Actor)


class ProcMesh(MeshTrait):
    """Processes of one spawn, or some of them. The result of `spawn_procs` is owned; slices and unpickled handles are references.

    A `with` or `async with` statement stops the processes at its end.

    ```python
    from monarch.actor import Actor, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def pid(self) -> int:
            import os

            return os.getpid()

    with this_host().spawn_procs({"gpus": 2}) as procs:
        pids = procs.spawn("workers", Worker).pid.call().get().values()
        assert len(set(pids)) == 2
    ```
    """

    __slots__ = ("__weakref__", "_hosts", "_info", "_mesh_bytes", "_owned", "_ready", "_shape")
    _whole_slice_is_self = True

    def __init__(
        self, info: MeshInfo, shape: Shape, hosts: Any, owned: OwnedMesh | None = None, ready: tuple[PendingCall, list[str]] | None = None
    ) -> None:
        self._info = info
        self._shape = shape
        self._hosts = hosts
        self._owned = owned
        self._ready = ready
        self._mesh_bytes: bytes | None = None

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self._info, shape, self._hosts, None, self._ready)

    def _procs(self) -> list[int]:
        procs = self._info.procs
        return [procs[r] for r in self._shape.ranks()]

    def _agents(self) -> list[int]:
        """The host of each process."""
        agents = each_of(self._info.agents)
        return [agents[r] for r in self._shape.ranks()]

    def spawn(self, /, name: str, Class: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Spawns one actor per process. The handle is there at once; messages to it wait until the actors exist.

        The spawner owns the actors.

        Args:
            name: a name for reports and `monarch ps`; the runtime makes it unique.
            Class: a subclass of `Actor`.
            *args: positional arguments of its `__init__`, pickled once for all processes.
            **kwargs: its keyword arguments.

        Returns:
            The handle of the actors, in the shape of this mesh; to type checkers an object of `Class`.

        Raises:
            ValueError: the class cannot be spawned, as with sync and async endpoints at once.
            TypeError: the arguments do not fit `__init__`; pickling them may raise other exceptions.
            RuntimeError: the mesh has been stopped.

        ```python
        from monarch.actor import Actor, endpoint, this_host

        class Worker(Actor):
            def __init__(self, scale: float) -> None:
                self.scale = scale

            @endpoint
            def apply(self, x: float) -> float:
                return self.scale * x

        with this_host().spawn_procs({"gpus": 2}) as procs:
            workers = procs.spawn("workers", Worker, scale=2.0)
            assert workers.apply.call(3.0).get().values() == [6.0, 6.0]
        ```
        """
        return self._spawn(name, Class, args, kwargs)  # pyright: ignore

    def _spawn(self, name: str, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorMesh:
        from monarch._core._native import block_if_exiting
        from monarch._core.pickle.actor_class import dumps_class

        if self._info.stopped is not None:
            # If the end of the client has stopped the mesh, a thread of the user stays blocked: no code is left to handle an error.
            block_if_exiting()
            raise RuntimeError("`ProcMesh` has already been stopped")
        name = checked_name(str(name))
        check_names(actor_class(cls), cls)
        cls = replaced(cls)
        check_arguments(cls.__init__, 1, args, kwargs, cls.__qualname__)
        class_name = f"{cls.__module__}.{cls.__qualname__}".replace("<locals>.", "")
        return self._spawn_actors(new_uid(), name, (class_name, dumps_class(cls), cls), args, kwargs)

    def _spawn_actors(self, uid: int, name: str, kind: tuple[str, bytes, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorMesh:
        """Spawns the actors. `kind`: the class by its name, by its pickle, and itself, if this process has it."""
        from monarch._core._native import Caller
        from monarch._core.supervise.supervision import OwnedMesh

        process = current_process()
        procs = tuple(self._procs())
        info, parent = self._info, self._info.uid
        agents = info.agents if procs == info.procs else runs_of(self._agents())
        class_name, payload, cls = kind
        owner = spawning_owner()
        extent = self._shape.extent
        here = process.host_in(info.job)
        info = MeshInfo(uid, name, owner.display, extent, procs, class_name, payload, agents, process.uid, here, info.job)
        info.cls = cls
        handle = ActorMesh(info, whole_shape(info.extent))
        targets = handle._targets()
        # This message comes first, because pickling the arguments may raise; the receivers hold it until the actor is there.
        is_sent = None
        caller = Caller(targets, "__init__", b"", False)
        try:
            caller.send(args, kwargs, NO_ANSWER)
        except TypeError as e:
            from monarch._core.call.endpoint import send_to_receivers
            from monarch._core.pickle.state import NeedsReceivers

            if not isinstance(e, NeedsReceivers):
                raise
            _, is_sent = send_to_receivers(handle, caller, args, kwargs, NO_ANSWER)
        spec = marshal.dumps((info.state(), owner.process.uid, owner.mailbox, self._origin()))
        owned = OwnedMesh(process, owner, info, True)
        vars(handle)["_owned"] = owned
        process.infos[info.uid] = info
        info.made(parent, self._shape)
        native = process.native
        for rank, proc in enumerate(procs):
            native.spawn_actor(proc, info.uid, rank.to_bytes(4, "little") + spec)
            if proc in process.ended:
                self._lost(process, info, rank, process.ended[proc])
        if is_sent is not None:
            is_sent()
        return handle

    def _lost(self, process: LocalProcess, info: MeshInfo, rank: int, end: Any) -> None:
        from monarch._core.call.answer import proc_ended_failure

        info.failed[rank] = proc_ended_failure(info, rank, end)
        info.unspawned.add(rank)

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done with True when all processes are ready and have run `bootstrap`; `ActorError` if that failed, else `SpawnError`."""
        if self._ready is None:
            return done_future(True)
        return new_future(self._ready[0], self._initialized_result)

    def _initialized_result(self, cell: PendingCall) -> Literal[True]:
        from monarch._core.hosts.readiness import ready_error

        error = ready_error(self._info, cell, self._ready[1] if self._ready else [])
        # The cell is marked last: failures that are unseen by then are acted upon.
        cell.set_retrieved()
        if error is not None:
            raise error
        return True

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stops the actors with clean-up, then the processes, and delivers their output. The stop begins with this call, once.

        Args:
            reason: the text of the `SupervisionError` that later calls raise.

        Returns:
            A Future that is done when all processes have ended.

        Raises:
            ValueError: the mesh is a slice or an unpickled handle.
            SupervisionError: from the Future: a process ended otherwise, as in a `__cleanup__`.

        ```python
        from monarch.actor import this_host

        procs = this_host().spawn_procs({"procs": 2})
        procs.stop("work is done").get()
        ```
        """
        if self._owned is None:
            raise ValueError("ProcMesh is not owned; must be stopped by an owner")
        return self._owned.stop(reason)

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts of the processes."""
        if self._hosts is None:
            from monarch._core.hosts.host_mesh import local_host

            return local_host(current_process())
        from monarch._core.hosts.host_mesh import received_host_mesh

        return received_host_mesh(*self._hosts)

    async def logging_option(self, stream_to_client: bool = False, aggregate_window_sec: float | None = None, level: int = 20) -> None:
        """Sets the destination of the output of these processes, which must be ready, from now on.

        `level` is that of `logging` in them. With `aggregate_window_sec`, lines that are equal up to numbers are printed together, as
        `[{N} similar log lines] {sample}`, at most that many seconds after the first of them; None ends that and prints the pending counts.
        With `stream_to_client` the output of processes of other hosts is printed at the client too, as `[{host} {proc}] {line}`.
        """
        if not 0 <= level <= 255:
            raise ValueError(f"invalid logging level {level}: expected 0 to 255")
        window = aggregate_window_sec
        if window is not None and not 0 < window < float("inf"):
            raise ValueError(f"invalid aggregate_window_sec {window}: expected a positive number of seconds")
        process = current_process()
        native, procs = process.native, self._procs()
        cell = native.cell(GATHER, len(procs), procs)
        for rank, proc in enumerate(procs):
            native.request(proc, LOG_LEVEL, marshal.dumps((rank, level)), cell.slot)
        await new_future(cell, lambda c: None)
        # The procs must be ready first, so that their agent knows them, whichever process calls.
        by_agent: dict[int, list[int]] = {}
        for proc, agent in zip(procs, self._agents(), strict=True):
            by_agent.setdefault(agent, []).append(proc)
        cell = native.cell(GATHER, len(by_agent), list(by_agent))
        for rank, (agent, some) in enumerate(by_agent.items()):
            viewer = process.job if stream_to_client else None
            body = marshal.dumps((some, None if window is None else float(window), viewer, rank))
            native.request(agent, AGGREGATE, body, cell.slot)
        await new_future(cell, lambda c: None)

    def activate(self) -> Any:
        """The processes as a device mesh of monarch-tensor, or the replacement set by a test."""
        factory = replaced_engine() or _implementation("activate")
        return factory(self)

    def rank_tensor(self, dim: str | Sequence[str]) -> Any:
        """The rank of each process along a dimension, as a tensor of monarch-tensor."""
        return _implementation("rank_tensor")(self, dim)

    def rank_tensors(self) -> dict[str, Any]:
        """The rank tensor of each dimension; needs monarch-tensor."""
        return _implementation("rank_tensors")(self)

    def to_table(self) -> str:
        """The processes as a table of text; needs monarch-tensor."""
        return _implementation("to_table")(self)

    async def sync_workspace(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("sync_workspace is a method of HostMesh")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop().get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcMesh):
            return NotImplemented
        return self._procs() == other._procs() and self._shape.extent == other._shape.extent

    def __hash__(self) -> int:
        return hash(tuple(self._procs()))

    def __repr__(self) -> str:
        return f"<ProcMesh {self._info.name} {self.extent}>"

    def _origin(self) -> bytes:
        """Rarely needed context for actors spawned here: their creator and this mesh, pickled and cached."""
        from _pickle import dumps

        from monarch._core.call.current_actor import creator_bytes, current_local_actor

        if self._mesh_bytes is None:
            self._mesh_bytes = dumps(self._reference_state(), 5)
        return marshal.dumps((creator_bytes(current_process(), current_local_actor()), self._mesh_bytes))

    def _reference_state(self) -> tuple[Any, ...]:
        return (self._info.state(), self._shape, self._hosts or self.host_mesh._state())

    def __reduce__(self) -> tuple[Any, ...]:
        share_if_plain()
        return (received_proc_mesh, self._reference_state())


def received_proc_mesh(state: tuple[Any, ...], shape: Shape, hosts: Any) -> ProcMesh:
    """A reference that arrived in a message."""
    return ProcMesh(received_mesh(current_process(), state), shape, hosts)


def _implementation(method: str) -> Callable[..., Any]:
    from monarch._core.call.mesh_methods import implementation

    return implementation(method, f"ProcMesh.{method}")


def own_proc(process: LocalProcess) -> ProcMesh:
    """This process as a mesh of one."""
    info = process.proc_info
    if info is None:
        agents = ((process.agent_uid, 1),)
        info = process.proc_info = MeshInfo(
            process.uid, process.name, "<root>", Extent((), ()), (process.uid,), agents=agents, job=process.job
        )
    return ProcMesh(info, Shape((), Slice(offset=process.proc_rank, sizes=(), strides=())), None)


def replaced(cls: Any) -> Any:
    """The class by which a test has replaced this one."""

    patches = loaded_module("monarch._core.testing.patching")
    return cls if patches is None else patches.get_actor_class(cls)


def replaced_engine() -> Callable[[ProcMesh], Any] | None:
    """The replacement of tensor engines by a test, for the current actor."""

    patches = loaded_module("monarch._core.testing.patching")
    if patches is None:
        return None
    from monarch._core.call.current_actor import current_local_actor

    actor = current_local_actor()
    return None if actor is None or actor.cls is None else patches.get_tensor_engine_factory(actor.cls)
