"""Process groups of the ranks of a mesh, made with their first use."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from monarch.extension import member, reach
from monarch.tensor.worker.store import RequestStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.extension import HostId, ProcId

# The time-out of torch's own groups. A rank that has failed or died ends a collective at once; this is for one that hangs.
COLLECTIVE = timedelta(minutes=30)


class Group:
    """A process group of torch. `size` ranks, of which this one has the place `place`."""

    def __init__(self, ranks: tuple[int, ...], rank: int, device: str, store: RequestStore, name: str, one_host: bool) -> None:
        self.ranks = ranks
        self.size = len(ranks)
        self.place = ranks.index(rank)
        self.is_gloo = device != "cuda"
        self.store = store
        self.pg: Any = dist.ProcessGroup(store, self.place, self.size)
        kinds: Any = dist.ProcessGroup
        if self.is_gloo:
            kind, backend, where = kinds.BackendType.GLOO, self._gloo(store, one_host), torch.device("cpu")
        else:
            kind, where = kinds.BackendType.NCCL, torch.device("cuda", torch.cuda.current_device())
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = COLLECTIVE
            backend = dist.ProcessGroupNCCL(store, self.place, self.size, options)
        self.pg._register_backend(where, kind, backend)
        self.pg._set_default_backend(kind)
        self.pg._set_group_name(name)
        # What functions of torch.distributed look a group up in.
        world = distributed_c10d._world
        world.pg_map[self.pg] = ("gloo" if self.is_gloo else "nccl", store)
        world.pg_names[self.pg] = name
        world.pg_group_ranks[self.pg] = {r: i for i, r in enumerate(ranks)}
        world.pg_backend_config[self.pg] = "cpu:gloo" if self.is_gloo else "cuda:nccl"

    def _gloo(self, store: RequestStore, one_host: bool) -> Any:
        options = dist.ProcessGroupGloo._Options()
        # On one host nothing of the group can be reached from another one.
        device = dist.ProcessGroupGloo.create_device(interface="lo") if one_host else dist.ProcessGroupGloo.create_default_device()
        options._devices = [device]
        options._timeout = COLLECTIVE
        options._threads = 2
        return dist.ProcessGroupGloo(store, self.place, self.size, options)

    def close(self) -> None:
        """Ends its connections: ranks that wait in a collective of it get an error."""
        world = distributed_c10d._world
        for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config):
            with suppress(KeyError):
                del table[self.pg]
        with suppress(Exception):
            self.pg.shutdown()
        self.pg = None


class Groups:
    """The groups of a worker."""

    def __init__(self, session: str, rank: int, procs: Sequence[ProcId], hosts: Sequence[HostId]) -> None:
        self._session = session
        self._rank = rank
        self._procs = procs
        self._hosts = hosts
        self._lock = threading.Lock()
        self._groups: dict[Any, Group] = {}
        self._built: dict[Any, int] = {}
        self._numbers = itertools.count()

    def of(self, ranks: tuple[int, ...], stream: int | str, device: str) -> Group:
        """The group of these ranks, of which this is one, for this stream. All of them ask for it in the same order of that stream."""
        key = (ranks, stream, device)
        with self._lock:
            found = self._groups.get(key)
            if found is not None:
                return found
            built = self._built[key] = self._built.get(key, 0) + 1
        first = self._procs[ranks[0]]
        if first != member().proc:
            reach(first, self._hosts[ranks[0]])
        name = f"{self._session}/{stream}/{device}/{'-'.join(map(str, ranks)) if len(ranks) <= 16 else hash(ranks)}/{built}"
        one_host = len({self._hosts[r] for r in ranks}) == 1
        store = RequestStore(first, name + "/")
        try:
            group = Group(ranks, self._rank, device, store, name, one_host)
        except Exception as e:
            # The others wait for this rank.
            with suppress(Exception):
                store.fail(f"rank {self._rank} could not join the process group of ranks {ranks}: {type(e).__name__}: {e}")
            raise
        with self._lock:
            self._groups[key] = group
        return group

    def forget(self, group: Group) -> None:
        """Closes a group in which a collective has failed; the next use makes a new one."""
        with self._lock:
            for key, value in list(self._groups.items()):
                if value is group:
                    del self._groups[key]
        group.close()
        if group.place == 0:
            with suppress(Exception):
                group.store.clear()

    def drop(self, stream: int | str) -> None:
        """Closes the groups of a stream, or of a name."""
        with self._lock:
            gone = [g for (_, s, _), g in self._groups.items() if s == stream]
        for group in gone:
            self.forget(group)

    def close(self) -> None:
        with self._lock:
            gone = list(self._groups.values())
            self._groups.clear()
        for group in gone:
            group.close()
