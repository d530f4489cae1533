"""Meshes of machines, and the meshes of processes that are spawned on them: handles of a `HostSet` and of a `ProcSet`.

On one machine there is one host, whose agent is the client. Both classes are here because each has methods that return the other.
"""

from __future__ import annotations

import marshal

from monarch._core._native import current_deadline
from monarch._core._native.protocol import GATHER
from monarch._core.call.future import Future, done_future, new_future
from monarch._core.call.lazy_future import returns_future
from monarch._core.call.shared_handle import share_if_plain
from monarch._core.config import config
from monarch._core.config.module_names import checked_modules
from monarch._core.hosts.host_set import HostSet, local_host_set, set_local_host
from monarch._core.process.current import current_process
from monarch._core.process.loaded import loaded_module
from monarch._core.process.process import AGGREGATE, LOG_LEVEL, LocalProcess
from monarch._core.process.provided import provided
from monarch._core.shape.mesh import MeshTrait
from monarch._core.shape.shape import Point, Region, Shape, whole_shape
from monarch._core.shape.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal, NoReturn, ParamSpec, Self, TypeVar

    from monarch._core._native import PendingCall
    from monarch._core.call.actor import Actor
    from monarch._core.hosts.bootstrap_command import BootstrapCommand
    from monarch._core.hosts.preload import Preload
    from monarch._core.hosts.proc_set import ProcSet
    from monarch._core.sync.workspace import Workspace

    P = ParamSpec("P")
    T = TypeVar("T", bound=Actor)


class HostMesh(MeshTrait):
    """Hosts, each with its agent. A mesh is owned by the call that created or attached it; slices and unpickled handles are references.

    `this_host()`, `attach_to_workers` and the jobs of `monarch.job` give host meshes.

    ```python
    from monarch.actor.testing import local_hosts

    with local_hosts(2) as hosts:
        procs = hosts.spawn_procs({"gpus": 2})
        assert procs.sizes == {"hosts": 2, "gpus": 2}
        assert hosts.slice(hosts=1).sizes == {}
        procs.initialized.get()
    ```
    """

    __slots__ = ("__core__", "__weakref__")
    _whole_slice_is_self = True

    def __init__(self, hosts: HostSet) -> None:
        self.__core__ = hosts

    @property
    def _ndslice(self) -> Slice:
        return self.__core__.shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self.__core__.shape.labels)

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self.__core__.part(shape))

    def spawn_procs(
        self,
        per_host: dict[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: list[dict[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
        preload: Sequence[str] | Preload | None = None,
    ) -> ProcMesh:
        """Spawns processes on every host. Returns at once; actors can be spawned and called before the processes are ready.

        Args:
            per_host: label to size: the processes of one host, one without labels.
            bootstrap: runs in each process before any actor.
            name: a name for reports and `monarch ps`.
            proc_bind: one dict per process of a host, which binds it: `cpus`, `physcpubind`, `cpunodebind`, `membind`.
            bootstrap_command: the command that starts the processes, or a function that gives the command for a point of the mesh.
            preload: modules that each host imports once for all these processes; by default those of the setting `preload`. It changes the
                time of a start, and no result.

        Returns:
            The processes, a mesh with the hosts' dimensions, then those of `per_host`. Its `with` statement stops them.

        Raises:
            ValueError: a label of `per_host` is one of the hosts, a size is not positive, or `proc_bind` does not fit; `preload` and
                `bootstrap_command` are given, or a name in `preload` is no name of a module.
            TypeError: `per_host` is not a mapping, or `preload` is no list of texts.
            RuntimeError: the hosts have been shut down.
            SpawnError: from `initialized`: a process did not start within `host_spawn_ready_timeout`.

        ```python
        from monarch.actor import this_host

        with this_host().spawn_procs({"gpus": 2}, bootstrap=lambda: None, name="trainers") as procs:
            procs.initialized.get()
            assert procs.size() == 2
        ```
        """
        self.__core__.check_usable()
        if per_host is not None and not hasattr(per_host, "keys"):
            raise TypeError(
                f"spawn_procs({per_host!r}): per_host is a dict of label to size, not {type(per_host).__name__}\n"
                "hint: spawn_procs({'procs': 4}) makes four processes on each host, along a dimension `procs`"
            )
        return provided.spawn_procs(self, dict(per_host or {}), bootstrap, name or "anon", proc_bind, bootstrap_command, preload)

    @property
    def initialized(self) -> Future[Literal[True]]:
        if self.__core__.attachment is None:
            return done_future(True)
        joined = self.__core__.attachment.future

        async def wait() -> Literal[True]:
            await joined
            return True

        return returns_future(wait)()

    def stop(self) -> Future[None]:
        """Stops the processes spawned through this object; the hosts stay ready."""
        self.__core__.check_owned()
        return self.__core__.stop()

    def shutdown(self) -> Future[None]:
        """Stops the processes, those of copies included, and ends the agents; the object cannot be used afterwards.

        Returns:
            A Future that is done when all agents have ended. It does not wait for a host that was lost before; the log names this host.

        Raises:
            RuntimeError: the mesh is a slice or an unpickled handle, or has been shut down already.
            SupervisionError: from the Future, code `not_shut_down`: hosts did not confirm their end, so their workers may still run. The
                text names each of these hosts with the reason.

        ```python
        from monarch.actor.testing import local_hosts

        with local_hosts(2) as hosts:
            hosts.shutdown().get()
        ```
        """
        self.__core__.check_owned()
        self.__core__.check_not_shut_down()
        return self.__core__.shut_down()

    def with_python_executable(self, path: str) -> HostMesh:
        """A copy whose processes use that interpreter; `this_host()` inside them does so too.

        On other hosts it imports from its own environment first, and modules missing there from the Python of the host.
        A path that begins with `$WORKSPACE_DIR/` is below the workspace of each host, where `sync_workspace` writes.
        """
        mesh = self.__copy__()
        mesh.__core__.executable = str(path)
        return mesh

    def with_preload(self, modules: Sequence[str]) -> HostMesh:
        """A copy whose processes, and rank programs of `monarch.spmd`, find these modules imported. See `preload` of `spawn_procs`."""
        mesh = self.__copy__()
        mesh.__core__.preload = tuple(checked_modules(modules))
        return mesh

    @property
    def preload(self) -> list[str]:
        """The modules that processes find imported: those of `with_preload`, else those of the setting `preload`."""
        found = self.__core__.preload
        return modules_of_setting() if found is None else list(found)

    def __copy__(self) -> HostMesh:
        """The same hosts as a separate object: its `stop` ends the processes spawned through it."""
        return HostMesh(self.__core__.copy())

    async def sync_workspace(self, workspace: Workspace, conda: bool = False, auto_reload: bool = False) -> None:
        """Mirrors the directories of a workspace to every host, below `WORKSPACE_DIR` there. On the client's machine nothing is copied.

        Only changed files are sent, without those that `.gitignore` names, and each directory is switched to its new content in one step.
        One log line for each host names the amount sent. With `auto_reload` all procs of the hosts then reload the modules whose files have
        changed; `ActorError` if one cannot be reloaded. A host that fails keeps the old content; a file that it cannot write is an
        `ActorError` that names it.

        `conda=True` also makes `$WORKSPACE_DIR/.environment` on each host a copy of the environment: that of the workspace, else the active
        one of conda, else the venv of this interpreter. Its files contain their new path, and only differences are sent.
        `with_python_executable("$WORKSPACE_DIR/.environment/bin/python")` then selects it for procs. The wheel monarch-fs implements this.

        `RuntimeError` on a slice or an unpickled mesh. For `conda`, `NotImplementedError` without monarch-fs, `ValueError` if there is no
        environment or it is of another minor version of Python than the client, and its own errors for hosts that cannot be written to.
        """
        if not self.__core__.is_owned:
            raise RuntimeError("sync_workspace needs an owned HostMesh, not a slice or an unpickled one")
        self.__core__.check_usable()
        await provided.sync_workspace(self, workspace, conda, auto_reload)

    @property
    def region(self) -> Region:
        return Region(self.__core__.shape.labels, self.__core__.shape.ndslice)

    @property
    def stream_logs(self) -> bool:
        return False

    @property
    def is_fake_in_process(self) -> bool:
        return False

    def __enter__(self) -> Self:
        self.__core__.check_not_shut_down()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.__core__.spawned.is_shut_down:
            self.shutdown().get()

    async def __aenter__(self) -> Self:
        self.__core__.check_not_shut_down()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.__core__.spawned.is_shut_down:
            await self.shutdown()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostMesh):
            return NotImplemented
        return self.__core__.identity() == other.__core__.identity()

    def __hash__(self) -> int:
        return hash(self.__core__.identity())

    def __repr__(self) -> str:
        return f"<HostMesh {self.extent}>"

    def __reduce__(self) -> tuple[Any, ...]:
        share_if_plain()
        return (received_host_mesh, self.__core__.state())


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

    __slots__ = ("__core__", "__weakref__")
    _whole_slice_is_self = True

    def __init__(self, procs: ProcSet) -> None:
        self.__core__ = procs

    @property
    def _ndslice(self) -> Slice:
        return self.__core__.shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self.__core__.shape.labels)

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self.__core__.part(shape))

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
        return self.__core__.spawn(name, Class, args, kwargs)  # pyright: ignore

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done with True when all processes are ready and have run `bootstrap`; `ActorError` if that failed, else `SpawnError`."""
        if self.__core__.ready is None:
            return done_future(True)
        cell = self.__core__.ready[0]
        if current_deadline() is not None or cell.unanswered() is not None:
            # A spawn goes on after its deadline, and may be awaited again.
            cell.limit(True)
        return new_future(cell, self._initialized_result)

    def _initialized_result(self, cell: PendingCall) -> Literal[True]:
        from monarch._core.call.expired import expired
        from monarch._core.hosts.readiness import ready_error

        procs = self.__core__
        info = procs.info
        error = expired(cell, f"{info.name}.initialized", info, whole_shape(info.extent), list(range(len(info.procs))))
        if error is not None:
            raise error
        error = ready_error(procs.info, cell, procs.ready[1] if procs.ready else [])
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
        if self.__core__.owned is None:
            raise ValueError("ProcMesh is not owned; must be stopped by an owner")
        return self.__core__.owned.stop(reason)

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts of the processes."""
        hosts = self.__core__.hosts
        return local_host(current_process()) if hosts is None else received_host_mesh(*hosts)

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
        native, procs = process.native, self.__core__.procs()
        cell = native.cell(GATHER, len(procs), procs)
        for rank, proc in enumerate(procs):
            native.request(proc, LOG_LEVEL, marshal.dumps((rank, level)), cell.slot)
        await new_future(cell, lambda c: None)
        # The procs must be ready first, so that their agent knows them, whichever process calls.
        by_agent: dict[int, list[int]] = {}
        for proc, agent in zip(procs, self.__core__.agents(), strict=True):
            by_agent.setdefault(agent, []).append(proc)
        cell = native.cell(GATHER, len(by_agent), list(by_agent))
        for rank, (agent, some) in enumerate(by_agent.items()):
            viewer = process.peers.job if stream_to_client else None
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
        return self.__core__.procs() == other.__core__.procs() and self.extent == other.extent

    def __hash__(self) -> int:
        return hash(tuple(self.__core__.procs()))

    def __repr__(self) -> str:
        return f"<ProcMesh {self.__core__.info.name} {self.extent}>"

    def __reduce__(self) -> tuple[Any, ...]:
        share_if_plain()
        return (received_proc_mesh, self.__core__.state())


def received_host_mesh(
    agents: tuple[int, ...], shape: Shape, executable: str | None, job: int, preload: tuple[str, ...] | None = None
) -> HostMesh:
    """A reference that arrived in a message."""
    process = current_process()
    if job != process.peers.job:
        from monarch._core.call.received_mesh import reach

        reach(process, job, [(agent, agent) for agent in agents])
    hosts = HostSet(agents, shape, False, executable, job)
    hosts.preload = preload
    return HostMesh(hosts)


def received_proc_mesh(state: tuple[Any, ...], shape: Shape, hosts: Any) -> ProcMesh:
    """A reference that arrived in a message."""
    from monarch._core.call.received_mesh import received_mesh
    from monarch._core.hosts.proc_set import ProcSet

    return ProcMesh(ProcSet(received_mesh(current_process(), state), shape, hosts))


# The name in pickled handles.
received_proc_mesh.__module__ = "monarch._core.hosts.proc_mesh"


def modules_of_setting() -> list[str]:
    """The modules of the setting `preload`."""
    return checked_modules(config.value("preload").replace(",", " ").split())


def own_proc(process: LocalProcess) -> ProcMesh:
    """This process as a mesh of one."""
    from monarch._core.hosts.proc_set import own_proc_set

    return ProcMesh(own_proc_set(process))


_local: dict[int, HostMesh] = {}


def local_host(process: LocalProcess) -> HostMesh:
    """The machine of this process."""
    found = _local.get(process.uid)
    if found is None:
        found = _local[process.uid] = HostMesh(local_host_set(process))
    return found


def forget_local_host(process: LocalProcess) -> None:
    """Forgets the machine of a simulated process."""
    _local.pop(process.uid, None)
    set_local_host(process, None)


def _implementation(method: str) -> Callable[..., Any]:
    from monarch._core.call.mesh_methods import implementation

    return implementation(method, f"ProcMesh.{method}")


def replaced_engine() -> Callable[[ProcMesh], Any] | None:
    """The replacement of tensor engines by a test, for the current actor."""
    patches = loaded_module("monarch._core.testing.patching")
    if patches is None:
        return None
    from monarch._core.call.current_actor import current_local_actor

    actor = current_local_actor()
    return None if actor is None or actor.cls is None else patches.get_tensor_engine_factory(actor.cls)
