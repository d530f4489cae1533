"""Futures, value meshes and ports carry the type of their content."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import assert_type

from actors import Sync

from monarch.actor import (
    Channel,
    Context,
    Extent,
    Future,
    Instance,
    Point,
    Port,
    PortReceiver,
    RankedPortReceiver,
    Shape,
    ValueMesh,
    context,
    current_actor_name,
    current_rank,
    current_size,
    returns_future,
    this_host,
)

sync = this_host().spawn_procs(per_host={"gpus": 2}).spawn("sync", Sync, 1)

# Futures.
future = sync.describe.call_one()
assert_type(future.get(), str)
assert_type(future.get(timeout=1.5), str)
assert_type(future.get(None), str)
assert_type(future.result(), str)
assert_type(future.exception(), Exception | None)
future.get(timeout="long")  # pyright: ignore[reportArgumentType]


async def observe(one: Future[str], many: Future[ValueMesh[float]]) -> None:
    assert_type(await one, str)
    assert_type(await many, ValueMesh[float])
    assert_type(one.as_asyncio(), asyncio.Future[str])
    assert_type(await asyncio.wait_for(one.as_asyncio(), 1), str)


@returns_future
async def measure(name: str, *, times: int = 1) -> float:
    return len(name) * times / 2


assert_type(measure("a", times=2), Future[float])
assert_type(measure("a").get(), float)
measure(1)  # pyright: ignore[reportArgumentType]


# Value meshes.
values = sync.add.call(1).get()
for point, value in values:
    assert_type(point, Point)
    assert_type(value, float)
for point, value in values.items():
    assert_type(point, Point)
    assert_type(value, float)
numbers: Iterable[float] = values.values()
assert_type(sum(values.values(), 0.0), float)
assert_type(values.item(gpus=0), float)
assert_type(values.get(0), float)
assert_type(values[0], float)
assert_type(values.slice(gpus=0), ValueMesh[float])
assert_type(values.flatten("rank"), ValueMesh[float])
assert_type(len(values), int)
assert_type(ValueMesh(Shape.unity(), ["a"]), ValueMesh[str])
assert_type(ValueMesh.from_indexed(Shape.unity(), [(0, bytes(1))]), ValueMesh[bytes])
wrong: Iterable[str] = values.values()  # pyright: ignore[reportAssignmentType]

# Ports.
port, receiver = Channel[int].open()
assert_type(port, Port[int])
assert_type(receiver, PortReceiver[int])
port.send(1)
port.exception(ValueError("no"))
port.send("one")  # pyright: ignore[reportArgumentType]
assert_type(receiver.recv(), Future[int])
assert_type(receiver.ranked(), RankedPortReceiver[int])
assert_type(receiver.ranked().recv().get(), tuple[int, int])
once, only = Channel[str].open(once=True)
assert_type(only.recv().get(), str)
ranked_port, ranked = Channel[bytes].open_ranked()
assert_type(ranked_port, Port[bytes])
assert_type(ranked.recv(), Future[tuple[int, bytes]])


async def receive(items: PortReceiver[int]) -> None:
    assert_type(await items.recv(), int)
    async for item in items:
        assert_type(item, int)


# The context of the code.
assert_type(context(), Context)
assert_type(context().actor_instance, Instance)
assert_type(context().actor_instance.rank, Point)
assert_type(context().message_rank, Point)
assert_type(current_rank(), Point)
assert_type(current_rank().extent, Extent)
assert_type(current_rank()["gpus"], int)
assert_type(current_size(), dict[str, int])
assert_type(current_actor_name(), str)
