"""Replicas have the type of the result of their `start`."""

from __future__ import annotations

from typing import assert_type

from actors import Async, Sync

from monarch.actor import MeshFailure, ProcMesh, this_host
from monarch.actor.recovery import Replicas


def start(rank: int, procs: ProcMesh) -> Sync:
    return procs.spawn(f"sync {rank}", Sync, rank)


replicas = Replicas(2, start)
assert_type(replicas, Replicas[Sync])
assert_type(replicas[0], Sync)
assert_type(list(replicas), list[Sync])
assert_type(len(replicas), int)
assert_type(replicas.heal(), dict[int, MeshFailure])
Replicas(2, start, hosts=this_host(), per_host={"gpus": 2}, name="worker", max_restarts=1, within=0.5)
assert_type(Replicas(1, lambda rank, procs: procs.spawn("async", Async))[0], Async)
# A replica may be several actors.
assert_type(Replicas(1, lambda rank, procs: (start(rank, procs), rank))[0], tuple[Sync, int])


def handle(failure: MeshFailure) -> None:
    assert_type(replicas.handle(failure), bool)
    assert_type(replicas.restart(1), None)


Replicas(2)  # pyright: ignore[reportCallIssue]
Replicas(2, lambda procs: procs)  # pyright: ignore
Replicas("2", start)  # pyright: ignore[reportArgumentType]
