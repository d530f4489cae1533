"""The hosts of a handle: their agents, and the procs that were spawned through them.

A `HostMesh` is a handle of a `HostSet`. Slices share the spawned procs, the attachment and the healers of their set; a copy has its own
list of spawned procs, so that its `stop` ends those only. The set knows agents by their ids, and reaches them through the node.
"""

from __future__ import annotations

from monarch._core._native.protocol import OK
from monarch._core.call.future import Future, done_future, new_future
from monarch._core.call.lazy_future import returns_future
from monarch._core.errors.errors import SupervisionError
from monarch._core.errors.text import not_shut_down
from monarch._core.hosts.connections import native_hosts
from monarch._core.hosts.host_ends import HostEnds
from monarch._core.hosts.spawned_procs import SpawnedProcs, procs_on
from monarch._core.process.current import current_process
from monarch._core.process.identity import checked_name
from monarch._core.process.loaded import loaded_module
from monarch._core.shape.shape import Extent, Shape
from monarch._core.shape.slice import Slice, product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core.hosts.attachment import Attachment
    from monarch._core.process.parts import Owned
    from monarch._core.process.process import LocalProcess


class HostSet:
    """Hosts in the shape of a handle, by the ids of their agents."""

    __slots__ = ("agents", "attachment", "executable", "healers", "is_owned", "job", "preload", "shape", "spawned")

    def __init__(self, agents: tuple[int, ...], shape: Shape, is_owned: bool, executable: str | None = None, job: int = 0) -> None:
        # All agents of the mesh: the shape selects those of a slice.
        self.agents = agents
        # The client of these hosts; 0: that of this process.
        self.job = job
        self.shape = shape
        self.is_owned = is_owned
        # The interpreter of the procs; None: that of the host.
        self.executable = executable
        # The modules that procs find imported; None: those of the setting.
        self.preload: tuple[str, ...] | None = None
        self.spawned = SpawnedProcs()
        # The attachment of hosts that were attached.
        self.attachment: Attachment | None = None
        # The functions that replace lost hosts, by the hosts' agents. Copies and slices share them; the attachment, which the process
        # keeps, does not.
        self.healers: dict[tuple[int, ...], Callable[[float], Any]] = {}

    def part(self, shape: Shape) -> HostSet:
        """Some of the hosts, as a reference."""
        return HostSet(self.agents, shape, False, self.executable, self.job).sharing(self, self.spawned)

    def copy(self) -> HostSet:
        """The same hosts, whose `stop` ends the procs spawned through the copy."""
        return HostSet(self.agents, self.shape, self.is_owned, self.executable, self.job).sharing(self, SpawnedProcs(self.spawned))

    def sharing(self, other: HostSet, spawned: SpawnedProcs) -> HostSet:
        self.attachment, self.healers, self.spawned, self.preload = other.attachment, other.healers, spawned, other.preload
        return self

    def agent_ids(self) -> list[int]:
        """The agent of each host; the same agent for all if the mesh repeats this machine."""
        agents = self.agents
        return [agents[r if len(agents) > 1 else 0] for r in self.shape.ranks()]

    def number(self) -> int:
        """The number of this mesh and of its slices. It is the same in each process, and differs from the numbers of all other meshes."""
        from struct import pack

        from monarch._core._native.files import blake3

        return int.from_bytes(blake3(pack(f"<{len(self.agents)}Q", *self.agents))[:8], "little")

    def identity(self) -> tuple[Any, ...]:
        """The hosts and their shape: a slice of one host equals `this_host()` of that host."""
        return (tuple(self.agent_ids()), tuple(self.shape.labels), tuple(self.shape.ndslice.sizes))

    def state(self) -> tuple[Any, ...]:
        """The arguments of `received_host_mesh` in another process."""
        return (self.agents, self.shape, self.executable, self.job or current_process().peers.job, self.preload)

    def check_not_shut_down(self) -> None:
        if self.spawned.is_shut_down:
            raise RuntimeError("HostMesh has already been shut down")

    def check_usable(self) -> None:
        self.check_not_shut_down()
        if self.attachment is not None:
            self.attachment.check(self.agent_ids())

    def check_owned(self) -> None:
        if not self.is_owned:
            raise RuntimeError("cannot shut down `HostMesh` that is a reference instead of owned")

    # ---- ends

    def stop(self) -> Future[None]:
        """Stops the processes spawned through this object."""
        return _stop_all(self.spawned.take(), "host mesh stopped")

    def stop_with_copies(self) -> Future[None]:
        """Stops the processes spawned through this object and its copies."""
        return _stop_all([mesh for mesh in self.spawned if mesh.is_owned()], "job left its hosts")

    def stop_procs(self, reason: str = "job ends") -> Future[None]:
        """Stops all processes that this process has spawned on these hosts and no others."""
        if self.attachment is None:
            return self.stop_with_copies()
        return _stop_all(procs_on(self.attachment.process, set(self.agent_ids())), reason)

    def shut_down(self) -> Future[None]:
        """Stops the processes, those of copies included, and ends the agents."""
        self.spawned.shut_down()
        reason = "host mesh shut down"
        if self.attachment is None:
            return _stop_all(list(self.spawned), reason)
        # No process outlives its agent, through whichever object it was spawned.
        return self._end_agents(self.stop_procs(reason))

    def _end_agents(self, stopped: Future[None]) -> Future[None]:
        process = current_process()
        hosts, agents = native_hosts(process), [agent for agent in self.agent_ids() if agent != process.agent_uid]
        # A worker in this process ends last.
        own = loaded_module("monarch._core.start.worker") if len(agents) < len(self.agent_ids()) else None
        attachment = self.attachment
        ends = HostEnds(hosts, agents, attachment) if attachment is not None else None

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
            answered: set[int] = set()
            # The other hosts are reached through the gateway, which ends last.
            gateways = [agent for agent in agents if hosts.is_gateway(agent)]
            for group in ([agent for agent in agents if agent not in gateways], gateways):
                # A host whose end is known has no agent that could answer.
                asked = [(agent, hosts.shutdown(agent)) for agent in group]
                for agent, cell in asked:
                    await new_future(cell, lambda c: c.set_retrieved())
                    answer = cell.result(0)
                    if answer is not None and answer.status == OK:
                        answered.add(agent)
            if own is not None:
                own.end()
            if ends is not None and (unknown := ends.unknown(answered)):
                raise SupervisionError(not_shut_down(len(self.agent_ids()), unknown), code="not_shut_down") from failed
            if failed is not None:
                raise failed

        return returns_future(wait)()


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


_local: dict[int, HostSet] = {}


def local_host_set(process: LocalProcess) -> HostSet:
    """The machine of this process."""
    found = _local.get(process.uid)
    if found is None:
        shape = Shape((), Slice(offset=0, sizes=(), strides=()))
        # The client owns its machine; for the processes that it spawned, the machine belongs to another process.
        found = _local[process.uid] = HostSet((process.agent_uid,), shape, process.is_client, process.place.python_executable)
    return found


def set_local_host(process: LocalProcess, hosts: HostSet | None) -> None:
    """Sets the machine of a simulated process; None when its world ends."""
    _local.pop(process.uid, None)
    if hosts is not None:
        _local[process.uid] = hosts


# Far more procs than a machine runs (`pid_max` is 32,768 by default): a larger number is a mistake, and would exhaust the memory here.
_PROCS_PER_HOST = 1 << 16


def host_extent(hosts: HostSet, per_host: dict[str, int]) -> Extent:
    """The hosts' dimensions followed by those of one host; `ValueError` if they share a label or a size is malformed."""
    shared = [label for label in per_host if label in hosts.shape.labels]
    if shared:
        raise ValueError(f"per_host dimensions {shared} overlap with host labels {list(hosts.shape.labels)}")
    for label, size in per_host.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"per_host[{label!r}] must be a positive int, not {size!r}")
        checked_name(label, "label")
    each = product(tuple(per_host.values()))
    if each > _PROCS_PER_HOST:
        raise ValueError(f"per_host {per_host} makes {each:,} processes on each host, of at most {_PROCS_PER_HOST:,}")
    return Extent([*hosts.shape.labels, *per_host], [*hosts.shape.ndslice.sizes, *per_host.values()])
