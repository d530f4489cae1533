"""The adverbs check their arguments, and their results have the type that the endpoint returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from actors import Async, Lender, Sync

from monarch.actor import Future, ValueMesh, per_rank, this_host

procs = this_host().spawn_procs(per_host={"gpus": 2})
sync = procs.spawn("sync", Sync, 1)
coroutines = procs.spawn("async", Async)
lender = procs.spawn("lender", Lender, sync)

assert_type(sync.add.call(1), Future[ValueMesh[float]])
assert_type(sync.add.call(1, scale=2.0).get(), ValueMesh[float])
assert_type(sync.add.call_one(1), Future[float])
assert_type(sync.add.choose(amount=1), Future[float])
assert_type(next(sync.add.stream(1)), Future[float])
assert_type([one.get() for one in sync.add.stream(1)], list[float])
sync.add.broadcast(1)

# An argument with a value for each rank has the type of one value.
assert_type(per_rank([1, 2]), int)
assert_type(sync.add.call(per_rank([1, 2]), scale=per_rank(sync.add.call(1).get())), Future[ValueMesh[float]])
assert_type(sync.add.call(1).get().map(str), ValueMesh[str])

stream: Iterator[Future[float]] = iter(sync.add.stream(1))

assert_type(sync.describe.call_one().get(), str)
assert_type(sync.pair.call_one("a", 1).get(), tuple[str, int])
assert_type(sync.nothing.call().get(), ValueMesh[None])
assert_type(sync.optional.call_one("a", "b", size=1).get(), list[str] | None)
assert_type(sync.slice(gpus=0).add.call_one(1), Future[float])

# The answer has the type of the port; the port itself is no argument of the caller.
assert_type(sync.later.call_one(0.5), Future[str])
assert_type(sync.later.call(delay=0.5), Future[ValueMesh[str]])
assert_type(coroutines.later.call_one(), Future[bytes])

# The actor awaits coroutines.
assert_type(coroutines.add.call_one(1), Future[float])
assert_type(coroutines.names.call(), Future[ValueMesh[list[str]]])
assert_type(coroutines.wait.call_one(0.5), Future[str])
assert_type(coroutines.wait_longer.call(0.5), Future[ValueMesh[int]])

# Handles are results, and parts of other arguments.
assert_type(lender.lend.call_one().get(), Sync)
assert_type(lender.lend.call_one().get().describe.call_one(), Future[str])
assert_type(lender.total.call_one({"a": sync}), Future[float])

# Each adverb checks its arguments.
sync.add.call("one")  # pyright: ignore[reportArgumentType]
sync.add.call_one("one")  # pyright: ignore[reportArgumentType]
sync.add.choose("one")  # pyright: ignore[reportArgumentType]
sync.add.stream("one")  # pyright: ignore[reportArgumentType]
sync.add.broadcast("one")  # pyright: ignore[reportArgumentType]
sync.add.call()  # pyright: ignore[reportCallIssue]
sync.add.call_one(1, 2.0)  # pyright: ignore[reportCallIssue]
sync.add.broadcast(1, size=2)  # pyright: ignore[reportCallIssue]
sync.add.call(1, scale="large")  # pyright: ignore[reportArgumentType]
sync.describe.call_one("extra")  # pyright: ignore[reportCallIssue]
sync.optional.call_one(1)  # pyright: ignore[reportArgumentType]
sync.later.call_one("soon")  # pyright: ignore[reportArgumentType]
sync.later.call_one()  # pyright: ignore[reportCallIssue]
coroutines.add.call_one("one")  # pyright: ignore[reportArgumentType]
coroutines.wait.call_one("long")  # pyright: ignore[reportArgumentType]
lender.total.call_one({"a": coroutines})  # pyright: ignore[reportArgumentType]

# A call needs an adverb, and a name that the class has.
sync.add(1)  # pyright: ignore[reportCallIssue]
_ = sync.subtract  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
