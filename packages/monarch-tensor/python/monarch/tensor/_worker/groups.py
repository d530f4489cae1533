"""Process groups of the ranks of a mesh, made with their first use."""

from __future__ import annotations

import functools
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from monarch.extension import member, reach, watch, when_done
from monarch.tensor._protocol.torch_internals import gloo_options, group_tables, nccl_options, set_backend
from monarch.tensor._worker.store import RequestStore, shelf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.extension import HostId, ProcId

# The time-out of torch's own groups. A rank that has failed or died ends a collective at once; this is for a rank that hangs.
COLLECTIVE = timedelta(minutes=30)


class Group:
    """A process group of torch. `size` ranks, of which this one has the place `place`."""

    def __init__(self, ranks: tuple[int, ...], rank: int, device: str, store: RequestStore, name: str, one_host: bool) -> None:
        self.ranks = ranks
        self.size = len(ranks)
        self.place = ranks.index(rank)
        self.is_gloo = device != "cuda"
        self.store = store
        self._name = name
        self._count = 0
        self.pg: Any = dist.ProcessGroup(store, self.place, self.size)
        kinds: Any = dist.ProcessGroup
        if self.is_gloo:
            kind, backend, where = kinds.BackendType.GLOO, self._gloo(store, one_host), torch.device("cpu")
        else:
            kind, where = kinds.BackendType.NCCL, torch.device("cuda", torch.cuda.current_device())
            backend = dist.ProcessGroupNCCL(store, self.place, self.size, nccl_options(COLLECTIVE))
        set_backend(self.pg, name, where, kind, backend)
        world = group_tables()
        world.pg_map[self.pg] = ("gloo" if self.is_gloo else "nccl", store)
        world.pg_names[self.pg] = name
        world.pg_group_ranks[self.pg] = {r: i for i, r in enumerate(ranks)}
        world.pg_backend_config[self.pg] = "cpu:gloo" if self.is_gloo else "cuda:nccl"

    def _gloo(self, store: RequestStore, one_host: bool) -> Any:
        # If all ranks are on one host, no part of the group can be reached from another host.
        device = dist.ProcessGroupGloo.create_device(interface="lo") if one_host else dist.ProcessGroupGloo.create_default_device()
        return dist.ProcessGroupGloo(store, self.place, self.size, gloo_options(device, COLLECTIVE, threads=2))

    def next_key(self) -> str:
        """Names a collective: all ranks issue them in the same order."""
        self._count += 1
        return f"{self._name}/{self._count}"

    def close(self) -> None:
        """Ends its connections: ranks that wait in a collective of it get an error."""
        world = group_tables()
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
        # The ended ranks, among those with which this rank makes groups; and the groups in the making.
        self._ended: set[int] = set()
        self._watched: set[int] = set()
        self._making: dict[str, tuple[tuple[int, ...], RequestStore]] = {}

    def of(self, ranks: tuple[int, ...], stream: int | str, device: str, moment: int) -> Group:
        """The group of these ranks, of which this is one, for this stream or of this name. All of them ask for it in the same order.

        `moment` is the number of the collective, which all ranks have in common. A group has the ranks that made it for the same one: where
        some of them had failed and others had not, no rank takes part in the collective of another.
        """
        key = (ranks, stream, device)
        with self._lock:
            found = self._groups.get(key)
            if found is not None:
                return found
        first_rank = ranks[0]
        first = self._procs[first_rank]
        if first != member().proc:
            reach(first, self._hosts[first_rank])
        name = f"{self._lobby(key)}/{moment}"
        one_host = len({self._hosts[r] for r in ranks}) == 1
        store = RequestStore(first, name + "/")
        with self._lock:
            self._making[name] = (ranks, store)
        try:
            store.enter(moment)
            if first_rank == self._rank:
                self._watch(ranks)
            group = Group(ranks, self._rank, device, store, name, one_host)
        except Exception as e:
            # The others wait for this rank.
            with suppress(Exception):
                store.fail(f"rank {self._rank} could not join the process group of ranks {ranks}: {type(e).__name__}: {e}")
            raise
        finally:
            with self._lock:
                del self._making[name]
        with self._lock:
            self._groups[key] = group
        return group

    def _lobby(self, key: Any) -> str:
        ranks, stream, device = key
        return f"{self._session}/{stream}/{device}/{'-'.join(map(str, ranks)) if len(ranks) <= 16 else hash(ranks)}"

    def source(self, rank: int) -> tuple[ProcId, HostId]:
        """The process of a rank, and its host."""
        return self._procs[rank], self._hosts[rank]

    def _watch(self, ranks: tuple[int, ...]) -> None:
        """The first rank of a group learns of the end of each other one, for which the ranks would wait in the rendezvous."""
        with self._lock:
            ended = sorted(self._ended & set(ranks))
            new = [r for r in ranks if r not in self._watched and r != self._rank]
            self._watched.update(new)
        for rank in new:
            when_done(watch(self._procs[rank], self._hosts[rank]), functools.partial(self._has_ended, rank))
        if ended:
            raise RuntimeError(f"rank {ended[0]} has ended")

    def _has_ended(self, rank: int, end: object) -> None:
        with self._lock:
            self._ended.add(rank)
            waiting = [store for ranks, store in self._making.values() if rank in ranks]
        for store in waiting:
            with suppress(Exception):
                store.fail(f"rank {rank} has ended")

    def refuse(self, ranks: tuple[int, ...], stream: int | str, device: str, moment: int, error: BaseException) -> None:
        """This rank takes no part in what all ranks of a group do at that moment: those that wait for it fail with the reason."""
        key = (ranks, stream, device)
        with self._lock:
            group = self._groups.get(key)
        if group is None:
            with suppress(Exception):
                first = ranks[0]
                if first != self._rank:
                    reach(self._procs[first], self._hosts[first])
                store = RequestStore(self._procs[first], f"{self._lobby(key)}/{moment}/")
                store.enter(moment)
                store.fail(_absent(self._rank, error))
        elif group.store.reason() is None:
            self.leave(group, moment, error)
        else:
            # Another thread was the first.
            self.fail(group, moment)

    def reason(self, ranks: tuple[int, ...], stream: int | str, device: str) -> str | None:
        """Why another rank has left the group."""
        with self._lock:
            group = self._groups.get((ranks, stream, device))
        return None if group is None else group.store.reason()

    def ended_of(self, group: Group) -> list[int]:
        """The ranks of a group that this rank knows to have ended."""
        with self._lock:
            return sorted(self._ended.intersection(group.ranks))

    def leave(self, group: Group, moment: int, error: BaseException) -> None:
        """This rank cannot take part in a collective: the others, which wait for it, fail with the reason."""
        with suppress(Exception):
            group.store.leave(_absent(self._rank, error))
        self.fail(group, moment)

    def fail(self, group: Group, moment: int) -> None:
        """The collective of this number has failed here: no rank makes a group for it, or for one before."""
        with suppress(Exception):  # another rank may have progressed further
            group.store.enter(moment + 1)
        self.forget(group)

    def forget(self, group: Group) -> None:
        """Closes a group in which a collective has failed; the next use makes a new one."""
        with self._lock:
            for key, value in list(self._groups.items()):
                if value is group:
                    del self._groups[key]
        group.close()
        if group.place == 0:
            with suppress(Exception):
                # Others may still query the reason.
                if group.store.reason() is None:
                    group.store.clear()

    def drop(self, stream: int | str) -> None:
        """Closes the groups of a stream, or of a name."""
        with self._lock:
            gone = [g for (_, s, _), g in self._groups.items() if s == stream]
        for group in gone:
            self.forget(group)
            if group.place == 0:
                group.store.clear()
        shelf().forget(f"{self._session}/{stream}/")

    def close(self) -> None:
        with self._lock:
            gone = list(self._groups.values())
            self._groups.clear()
        for group in gone:
            group.close()
        shelf().forget(f"{self._session}/")


def _absent(rank: int, error: BaseException) -> str:
    return f"rank {rank} could not take part: {type(error).__name__}: {error}"
