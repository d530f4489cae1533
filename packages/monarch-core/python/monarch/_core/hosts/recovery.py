"""Replicas that an actor keeps alive: a failed replica is started again, until it fails too often.

Each replica is a proc mesh of its own with the actors that `start` spawns on it, because ranks of a spawned mesh are fixed: a proc that
replaces another is a new mesh, and only that rank's handle changes. A replica whose procs live gets new actors on the same procs; a replica
that has lost a proc gets new procs. Nothing here waits: calls on the new handle are queued until the replica is ready.

A failure arrives by two routes in any order: `handle`, for `__supervise__`, and `heal`, for code that has just caught a
`SupervisionError`. Together they do the same work at most once. The limit is per replica, like that of a pod or of a child in a supervision
tree: the loss of many hosts at once is no reason to give up, a replica that fails again and again is.
"""

from __future__ import annotations

from time import monotonic

from monarch._core.call.owner import current_owner
from monarch._core.errors.errors import SupervisionError
from monarch._core.errors.text import gave_up
from monarch._core.process.current import current_process
from monarch._core.shape.generic import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from monarch._core.errors.failure import MeshFailure
    from monarch._core.hosts.host_mesh import HostMesh, ProcMesh
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.parts import Owned

    T = TypeVar("T")
else:
    T = None

# The number of names of replaced meshes that are kept for each replica: failures of them may still arrive. No program spawns more on one.
_REMEMBERED = 64


class _Slot:
    """The state of one rank."""

    __slots__ = ("handle", "meshes", "procs", "starts")

    def __init__(self, procs: ProcMesh) -> None:
        self.procs = procs
        # The handle that `start` returned, and the actor meshes that it spawned.
        self.handle: object = None
        self.meshes: list[MeshInfo] = []
        # The times of the restarts.
        self.starts: list[float] = []

    def names(self) -> list[str]:
        return [info.unique_name for info in (self.procs.__core__.info, *self.meshes)]

    def lost(self) -> MeshFailure | None:
        """The end of the first proc that has ended."""
        from monarch._core.call.answer import proc_ended_failure

        native, info = current_process().native, self.procs.__core__.info
        for rank, proc in enumerate(info.procs):
            end = native.ended(proc)
            if end is not None:
                return proc_ended_failure(info, rank, end)
        return None

    def failed(self) -> MeshFailure | None:
        """The failure for which the replica must be replaced; None if none is known."""
        for info in self.meshes:
            # The loop needs a copy: the housekeeping thread adds to the dictionary.
            for failure in list(info.failed.values()):
                return failure
        return self.lost()


class Replicas(Generic[T]):
    """`count` replicas, each a set of processes with actors, kept alive by the actor that makes this object.

    Forward `__supervise__` to `handle`. Use the object from the actor's own thread or loop. A replica that fails more than
    `max_restarts` times within `within` seconds raises `SupervisionError` instead, code `gave_up`.

    Args:
        count: the number of replicas.
        start: spawns the actors of a replica, and returns their handle; called with rank and procs, also for each restart.
        hosts: the hosts of the replicas; this host by default.
        per_host: the processes of one replica, one by default.
        name: a name for reports.
        max_restarts: restarts of a replica within `within`.
        within: seconds.

    ```python
    from monarch.actor import Actor, MeshFailure, ProcMesh, endpoint, this_host
    from monarch.actor.recovery import Replicas

    class Worker(Actor):
        @endpoint
        def work(self, x: int) -> int:
            return 2 * x

    class Trainer(Actor):
        def __init__(self) -> None:
            self.workers = Replicas(2, self.start)

        def start(self, rank: int, procs: ProcMesh) -> Worker:
            return procs.spawn("worker", Worker)

        def __supervise__(self, failure: MeshFailure) -> bool:
            return self.workers.handle(failure)

        @endpoint
        def step(self) -> list[int]:
            return [worker.work.call_one(rank).get() for rank, worker in enumerate(self.workers)]

    with this_host().spawn_procs({"procs": 1}) as procs:
        assert procs.spawn("trainer", Trainer).step.call_one().get() == [0, 2]
    ```
    """

    __module__ = "monarch.actor.recovery"

    def __init__(
        self,
        count: int,
        start: Callable[[int, ProcMesh], T],
        *,
        hosts: HostMesh | None = None,
        per_host: dict[str, int] | None = None,
        name: str = "replica",
        max_restarts: int = 3,
        within: float = 60.0,
    ) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        if max_restarts < 0:
            raise ValueError(f"max_restarts must not be negative: {max_restarts}")
        if not 0 < within < float("inf"):
            raise ValueError(f"within must be a positive number of seconds, not {within}")
        from monarch._core.hosts.here import this_host

        self._start = start
        self._hosts = hosts or this_host()
        self._per_host = dict(per_host or {})
        self._name = name
        self._max_restarts = max_restarts
        self._within = within
        self._retired: dict[str, None] = {}
        self._replaced: dict[int, MeshFailure] = {}
        # All processes are spawned first: they start together, however long `start` takes.
        self._slots = [_Slot(self._spawn_procs(rank)) for rank in range(count)]
        for rank, slot in enumerate(self._slots):
            self._start_actors(rank, slot)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, rank: int) -> T:
        """The present handle of a replica; keep the rank rather than the handle."""
        return self._slots[rank].handle  # pyright: ignore[reportReturnType]

    def __iter__(self) -> Iterator[T]:
        """The present handles, in the order of ranks."""
        return iter([self[rank] for rank in range(len(self))])

    def handle(self, failure: MeshFailure) -> bool:
        """Replaces the replica that has failed; False for a failure of none of these. Raises `SupervisionError` on giving up."""
        for rank, slot in enumerate(self._slots):
            if failure.mesh_name in slot.names():
                self._replace(rank, slot, failure)
                return True
        # True for a replica that was replaced before: `heal` was first, or its actors failed one by one.
        return failure.mesh_name in self._retired

    def heal(self) -> dict[int, MeshFailure]:
        """Replaces all replicas that are known to have failed. Gives the replaced ranks since the last call, also by `handle`, with the
        failures.
        """
        for rank, slot in enumerate(self._slots):
            failure = slot.failed()
            if failure is not None:
                self._replace(rank, slot, failure)
        replaced, self._replaced = self._replaced, {}
        return dict(sorted(replaced.items()))

    def restart(self, rank: int, reason: str = "restarted") -> None:
        """Replaces a replica with its processes, e.g. one that has not failed but does not answer. Does not count for the limit."""
        slot = self._slots[rank]
        self._retire(slot)
        slot.procs.stop(reason)
        slot.procs = self._spawn_procs(rank)
        self._start_actors(rank, slot)

    # ---- replacing

    def _replace(self, rank: int, slot: _Slot, failure: MeshFailure) -> None:
        if failure.reason.kind == "stopped":
            # Other code has stopped the replica, for example with its host. That is no failure, and no host is left for a new replica.
            raise SupervisionError(failure.report(), failure=failure)
        now = monotonic()
        slot.starts = [start for start in slot.starts if now - start < self._within]
        if len(slot.starts) >= self._max_restarts:
            self._give_up(rank, slot, failure)
        slot.starts.append(now)
        self._retire(slot)
        if slot.lost() is not None:
            slot.procs.stop("one of its procs was lost")
            slot.procs = self._spawn_procs(rank)
        else:
            for owned in _owned(slot.meshes):
                owned.stop("another actor of this replica has failed")
        self._start_actors(rank, slot)
        self._replaced[rank] = failure

    def _give_up(self, rank: int, slot: _Slot, failure: MeshFailure) -> None:
        count = len(slot.starts) + 1
        raise SupervisionError(gave_up(self._name, rank, count, self._within, failure.report()), failure=failure, code="gave_up")

    def _retire(self, slot: _Slot) -> None:
        for name in slot.names():
            self._retired[name] = None
        while len(self._retired) > _REMEMBERED * len(self._slots):
            del self._retired[next(iter(self._retired))]

    def _spawn_procs(self, rank: int) -> ProcMesh:
        from monarch._core.hosts.spawn import spawn_procs

        self._hosts.__core__.check_usable()
        return spawn_procs(self._hosts, self._per_host, None, f"{self._name}_{rank}", None, None, replica=rank)

    def _start_actors(self, rank: int, slot: _Slot) -> None:
        owner = current_owner()
        slot.meshes = []
        outer, owner.spawned = owner.spawned, []
        try:
            slot.handle = self._start(rank, slot.procs)
        finally:
            spawned, owner.spawned = owner.spawned, outer
        procs = set(slot.procs.__core__.info.procs)
        # The meshes that the replica owns now are no measure: a failed mesh is no longer among them.
        slot.meshes = [info for info in spawned if info.class_name and procs & set(info.procs)]


def _owned(meshes: list[MeshInfo]) -> list[Owned]:
    owned = current_process().meshes.owned
    found = (owned.get(info.uid) for info in meshes)
    return [mesh for mesh in found if mesh is not None]
