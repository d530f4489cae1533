"""Meshes of machines, on which processes are spawned. On one machine there is one host, whose agent is the client."""

from __future__ import annotations

from monarch._core.call.future import Future, done_future, new_future
from monarch._core.call.lazy_future import returns_future
from monarch._core.call.received_mesh import reach
from monarch._core.call.shared_handle import share_if_plain
from monarch._core.hosts.connections import native_hosts
from monarch._core.hosts.spawned_procs import SpawnedProcs, procs_on
from monarch._core.process.current import current_process
from monarch._core.process.identity import checked_name
from monarch._core.process.loaded import loaded_module
from monarch._core.process.process import LocalProcess
from monarch._core.process.provided import provided
from monarch._core.shape.mesh import MeshTrait
from monarch._core.shape.shape import Extent, Point, Region, Shape
from monarch._core.shape.slice import Slice, product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, Self

    from monarch._core.hosts.attachment import Attachment
    from monarch._core.hosts.bootstrap_command import BootstrapCommand
    from monarch._core.hosts.proc_mesh import ProcMesh
    from monarch._core.process.parts import Owned
    from monarch._core.sync.workspace import Workspace


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

    __slots__ = ("__weakref__", "_agents", "_attachment", "_executable", "_healers", "_is_owned", "_job", "_shape", "_spawned")
    _whole_slice_is_self = True

    def __init__(self, agents: tuple[int, ...], shape: Shape, is_owned: bool, executable: str | None = None, job: int = 0) -> None:
        self._agents = agents
        # The client of these hosts; 0: that of this process.
        self._job = job
        self._shape = shape
        self._is_owned = is_owned
        self._executable = executable
        self._spawned = SpawnedProcs()
        # The attachment of hosts that were attached.
        self._attachment: Attachment | None = None
        # The functions that replace lost hosts, by the hosts' agents. Copies and slices share them; the attachment, which the process
        # keeps, does not.
        self._healers: dict[tuple[int, ...], Callable[[float], Any]] = {}

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

    def _new_with_shape(self, shape: Shape) -> Self:
        mesh = type(self)(self._agents, shape, False, self._executable, self._job)
        mesh._attachment = self._attachment
        mesh._spawned = self._spawned
        mesh._healers = self._healers
        return mesh

    def _agent_ids(self) -> list[int]:
        """The agent of each host; the same agent for all if the mesh repeats this machine."""
        agents = self._agents
        return [agents[r if len(agents) > 1 else 0] for r in self._shape.ranks()]

    def _number(self) -> int:
        """The number of this mesh and of its slices. It is the same in each process, and differs from the numbers of all other meshes."""
        from struct import pack

        from monarch._core._native.files import blake3

        return int.from_bytes(blake3(pack(f"<{len(self._agents)}Q", *self._agents))[:8], "little")

    @property
    def _is_shut_down(self) -> bool:
        return self._spawned.is_shut_down

    def _check_not_shut_down(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("HostMesh has already been shut down")

    def _check_usable(self) -> None:
        self._check_not_shut_down()
        if self._attachment is not None:
            self._attachment.check(self._agent_ids())

    def spawn_procs(
        self,
        per_host: dict[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: list[dict[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
    ) -> ProcMesh:
        """Spawns processes on every host. Returns at once; actors can be spawned and called before the processes are ready.

        Args:
            per_host: label to size: the processes of one host, one without labels.
            bootstrap: runs in each process before any actor.
            name: a name for reports and `monarch ps`.
            proc_bind: one dict per process of a host, which binds it: `cpus`, `physcpubind`, `cpunodebind`, `membind`.
            bootstrap_command: the command that starts the processes, or a function that gives the command for a point of the mesh.

        Returns:
            The processes, a mesh with the hosts' dimensions, then those of `per_host`. Its `with` statement stops them.

        Raises:
            ValueError: a label of `per_host` is one of the hosts, a size is not positive, or `proc_bind` does not fit.
            TypeError: `per_host` is not a mapping.
            RuntimeError: the hosts have been shut down.
            SpawnError: from `initialized`: a process did not start within `host_spawn_ready_timeout`.

        ```python
        from monarch.actor import this_host

        with this_host().spawn_procs({"gpus": 2}, bootstrap=lambda: None, name="trainers") as procs:
            procs.initialized.get()
            assert procs.size() == 2
        ```
        """
        self._check_usable()
        if per_host is not None and not hasattr(per_host, "keys"):
            raise TypeError(
                f"spawn_procs({per_host!r}): per_host is a dict of label to size, not {type(per_host).__name__}\n"
                "hint: spawn_procs({'procs': 4}) makes four processes on each host, along a dimension `procs`"
            )
        return provided.spawn_procs(self, dict(per_host or {}), bootstrap, name or "anon", proc_bind, bootstrap_command)

    @property
    def initialized(self) -> Future[Literal[True]]:
        if self._attachment is None:
            return done_future(True)
        joined = self._attachment.future

        async def wait() -> Literal[True]:
            await joined
            return True

        return returns_future(wait)()

    def stop(self) -> Future[None]:
        """Stops the processes spawned through this object; the hosts stay ready."""
        self._check_owned()
        return _stop_all(self._spawned.take(), "host mesh stopped")

    def _stop_with_copies(self) -> Future[None]:
        """Stops the processes spawned through this object and its copies; the hosts stay ready."""
        return _stop_all([mesh for mesh in self._spawned if mesh.info.uid in mesh.process.owned], "job left its hosts")

    def _stop_procs(self) -> Future[None]:
        """Stops all processes that this process has spawned on these hosts and no others; the hosts stay ready."""
        if self._attachment is None:
            return self._stop_with_copies()
        return _stop_all(procs_on(self._attachment.process, set(self._agent_ids())), "job ends")

    def shutdown(self) -> Future[None]:
        """Stops the processes, those of copies included, and ends the agents; the object cannot be used afterwards.

        Returns:
            A Future that is done when all agents have ended.

        Raises:
            RuntimeError: the mesh is a slice or an unpickled handle, or has been shut down already.

        ```python
        from monarch.actor.testing import local_hosts

        with local_hosts(2) as hosts:
            hosts.shutdown().get()
        ```
        """
        self._check_owned()
        self._check_not_shut_down()
        self._spawned.shut_down()
        reason = "host mesh shut down"
        if self._attachment is None:
            return _stop_all(list(self._spawned), reason)
        # No process outlives its agent, through whichever object it was spawned.
        return self._end_agents(_stop_all(procs_on(self._attachment.process, set(self._agent_ids())), reason))

    def _end_agents(self, stopped: Future[None]) -> Future[None]:
        process = current_process()
        hosts, agents = native_hosts(process), [agent for agent in self._agent_ids() if agent != process.agent_uid]
        # A worker in this process ends last.
        own = loaded_module("monarch._core.start.worker") if len(agents) < len(self._agent_ids()) else None

        async def wait() -> None:
            failed: Exception | None = None
            try:
                await stopped
            except Exception as e:
                failed = e
            except BaseException:
                # The caller no longer waits for the answers.
                for agent in agents:
                    hosts.shutdown(agent)
                raise
            # The other hosts are reached through the gateway, which ends last.
            gateways = [agent for agent in agents if hosts.is_gateway(agent)]
            for group in ([agent for agent in agents if agent not in gateways], gateways):
                # A host whose end is known has no agent that could answer.
                asked = [hosts.shutdown(agent) for agent in group]
                for cell in asked:
                    await new_future(cell, lambda c: c.set_retrieved())
            if own is not None:
                own.end()
            if failed is not None:
                raise failed

        return returns_future(wait)()

    def _check_owned(self) -> None:
        if not self._is_owned:
            raise RuntimeError("cannot shut down `HostMesh` that is a reference instead of owned")

    def with_python_executable(self, path: str) -> HostMesh:
        """A copy whose processes use that interpreter; `this_host()` inside them does so too.

        On other hosts it imports from its own environment first, and modules missing there from the Python of the host.
        A path that begins with `$WORKSPACE_DIR/` is below the workspace of each host, where `sync_workspace` writes.
        """
        mesh = self.__copy__()
        mesh._executable = str(path)
        return mesh

    def __copy__(self) -> HostMesh:
        """The same hosts as a separate object: its `stop` ends the processes spawned through it."""
        mesh = HostMesh(self._agents, self._shape, self._is_owned, self._executable, self._job)
        mesh._attachment = self._attachment
        mesh._spawned = SpawnedProcs(self._spawned)
        mesh._healers = self._healers
        return mesh

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
        if not self._is_owned:
            raise RuntimeError("sync_workspace needs an owned HostMesh, not a slice or an unpickled one")
        self._check_usable()
        await provided.sync_workspace(self, workspace, conda, auto_reload)

    @property
    def region(self) -> Region:
        return Region(self._shape.labels, self._shape.ndslice)

    @property
    def stream_logs(self) -> bool:
        return False

    @property
    def is_fake_in_process(self) -> bool:
        return False

    def __enter__(self) -> Self:
        self._check_not_shut_down()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_shut_down:
            self.shutdown().get()

    async def __aenter__(self) -> Self:
        self._check_not_shut_down()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._is_shut_down:
            await self.shutdown()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostMesh):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        """The hosts and their shape: a slice of one host equals `this_host()` of that host."""
        return (tuple(self._agent_ids()), self._labels, tuple(self._ndslice.sizes))

    def __repr__(self) -> str:
        return f"<HostMesh {self.extent}>"

    def _state(self) -> tuple[Any, ...]:
        return (self._agents, self._shape, self._executable, self._job or current_process().job)

    def __reduce__(self) -> tuple[Any, ...]:
        share_if_plain()
        return (received_host_mesh, self._state())


def _stop_all(meshes: list[Owned], reason: str) -> Future[None]:
    futures = [mesh.stop(reason) for mesh in meshes]

    async def wait() -> None:
        failed: list[Exception] = []
        for future in futures:
            try:
                await future
            except Exception as e:  # the call waits for the other meshes all the same
                failed.append(e)
        if failed:
            raise failed[0]

    return returns_future(wait)() if futures else done_future(None)


def received_host_mesh(agents: tuple[int, ...], shape: Shape, executable: str | None, job: int) -> HostMesh:
    """A reference that arrived in a message."""
    process = current_process()
    if job != process.job:
        reach(process, job, [(agent, agent) for agent in agents])
    return HostMesh(agents, shape, False, executable, job)


_local: dict[int, HostMesh] = {}


def local_host(process: LocalProcess) -> HostMesh:
    """The machine of this process."""
    found = _local.get(process.uid)
    if found is None:
        shape = Shape((), Slice(offset=0, sizes=(), strides=()))
        # The client owns its machine; for the processes that it spawned, the machine belongs to another process.
        found = _local[process.uid] = HostMesh((process.agent_uid,), shape, process.is_client, process.python_executable)
    return found


# Far more procs than a machine runs (`pid_max` is 32,768 by default): a larger number is a mistake, and would exhaust the memory here.
_PROCS_PER_HOST = 1 << 16


def host_extent(hosts: HostMesh, per_host: dict[str, int]) -> Extent:
    """The hosts' dimensions followed by those of one host; `ValueError` if they share a label or a size is malformed."""
    shared = [label for label in per_host if label in hosts._labels]
    if shared:
        raise ValueError(f"per_host dimensions {shared} overlap with host labels {list(hosts._labels)}")
    for label, size in per_host.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"per_host[{label!r}] must be a positive int, not {size!r}")
        checked_name(label, "label")
    each = product(tuple(per_host.values()))
    if each > _PROCS_PER_HOST:
        raise ValueError(f"per_host {per_host} makes {each:,} processes on each host, of at most {_PROCS_PER_HOST:,}")
    return Extent([*hosts._labels, *per_host], [*hosts._ndslice.sizes, *per_host.values()])
