"""A handle is typed as the class that was spawned; slices of it are, too."""

from __future__ import annotations

from typing import Literal, assert_type

from actors import Async, Lender, Sync

from monarch.actor import (
    Accumulator,
    Actor,
    ActorMesh,
    Extent,
    Future,
    HostMesh,
    ProcMesh,
    as_endpoint,
    get_or_spawn_controller,
    this_host,
    this_proc,
)

host = this_host()
assert_type(host, HostMesh)
procs = host.spawn_procs(per_host={"gpus": 2})
assert_type(procs, ProcMesh)
assert_type(this_proc(), ProcMesh)
assert_type(procs.initialized, Future[Literal[True]])
assert_type(procs.stop(), Future[None])
assert_type(procs.host_mesh, HostMesh)
assert_type(host.initialized, Future[Literal[True]])
assert_type(host.stop(), Future[None])
assert_type(host.shutdown(), Future[None])

sync = procs.spawn("sync", Sync, 1, label="one")
assert_type(sync, Sync)
assert_type(procs.spawn("async", Async), Async)
assert_type(procs.spawn("lender", Lender, sync), Lender)

# Arguments are those of `__init__`.
procs.spawn("few", Sync)  # pyright: ignore[reportCallIssue]
procs.spawn("many", Sync, 1, 2)  # pyright: ignore[reportCallIssue]
procs.spawn("wrong", Sync, "one")  # pyright: ignore[reportArgumentType]
procs.spawn("unknown", Sync, 1, title="one")  # pyright: ignore[reportCallIssue]
procs.spawn("other", Lender, procs)  # pyright: ignore[reportArgumentType]
procs.spawn(1, Async)  # pyright: ignore[reportArgumentType]

# These are the members of every mesh.
assert_type(sync.slice(gpus=0), Sync)
assert_type(sync.flatten("rank").slice(rank=slice(1, None)), Sync)
assert_type(sync.split(gpus=("outer", "inner"), inner=2), Sync)
assert_type(sync.rename(gpus="procs"), Sync)
assert_type(sync.size(), int)
assert_type(sync.size("gpus"), int)
assert_type(sync.sizes, dict[str, int])
assert_type(sync.extent, Extent)
assert_type(len(sync), int)
assert_type(procs.slice(gpus=0), ProcMesh)
assert_type(host.flatten("hosts"), HostMesh)

controller = get_or_spawn_controller("controller", Sync, 3)
assert_type(controller, Future[Sync])
assert_type(controller.get(), Sync)
get_or_spawn_controller("controller", Sync, "three")  # pyright: ignore[reportArgumentType]

# A method without `@endpoint` keeps its own type on the handle; `as_endpoint` makes an endpoint of it.
assert_type(as_endpoint(sync.plain).call_one(1), Future[bytes])
assert_type(as_endpoint(sync.ported, explicit_response_port=True).call_one(1), Future[int])
as_endpoint(sync.plain).call_one("one")  # pyright: ignore[reportArgumentType]

total = Accumulator(sync.add, 0.0, lambda sum, value: sum + value)
assert_type(total.accumulate(1), Future[float])
total.accumulate("one")  # pyright: ignore[reportArgumentType]


def longest(so_far: int, text: str) -> int:
    return max(so_far, len(text))


# The result may have another type than the answers.
assert_type(Accumulator(sync.describe, 0, longest).accumulate().get(), int)
Accumulator(sync.add, 0, longest)  # pyright: ignore[reportArgumentType]


class NoActor:
    """Not a subclass of `Actor`."""


procs.spawn("no_actor", NoActor)  # pyright: ignore[reportArgumentType]


def takes_any(mesh: Actor) -> None: ...


takes_any(sync)

# Some programs annotate handles as meshes.
meshes: list[ActorMesh[Sync]] = []
some: list[ActorMesh] = []
