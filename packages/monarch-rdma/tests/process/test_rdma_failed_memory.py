"""Memory of operations that failed is free as soon as nothing uses it: no error holds it, and no cycle of references."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import Callable, Iterator

import pytest
from memory_actors import Owner

from monarch.actor import this_host
from monarch.rdma import RDMAAction, RDMABuffer, RDMABufferSet, RDMAError, RDMAPeerLostError, RDMAReleasedError, RDMATimeoutError

pytestmark = pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning")

SIZE = 4 << 20


class Memory(bytearray):
    """Bytes that can be referred to weakly."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def read(buffer: RDMABuffer, memory: Memory) -> None:
    buffer.read_into(memoryview(memory)).get()


def write(buffer: RDMABuffer, memory: Memory) -> None:
    buffer.write_from(memoryview(memory)).get()


def read_by_name(buffer: RDMABuffer, memory: Memory) -> None:
    future = buffer.read_into(memoryview(memory))
    for _ in range(2):
        with pytest.raises(RDMAError):
            future.get()
    future.get()


def batch(buffer: RDMABuffer, memory: Memory) -> None:
    RDMAAction().read_remote(memoryview(memory), buffer).submit().get()


def plan(buffer: RDMABuffer, memory: Memory) -> None:
    prepared = RDMAAction().read_remote(memoryview(memory), buffer).prepare()
    future = prepared.submit()
    future.get()


def not_observed(buffer: RDMABuffer, memory: Memory) -> None:
    future = buffer.read_into(memoryview(memory))
    future._wait(None)
    buffer.read_into(memoryview(bytearray(SIZE))).get()


def asked_for_its_error(buffer: RDMABuffer, memory: Memory) -> None:
    future = buffer.read_into(memoryview(memory))
    assert isinstance(future.exception(), RDMAError)
    assert future.exception() is not None
    future.get()


def awaited(buffer: RDMABuffer, memory: Memory) -> None:
    async def main() -> None:
        future = buffer.read_into(memoryview(memory))
        with pytest.raises(RDMAError):
            await future
        with pytest.raises(RDMAError):
            await buffer.read_into(memoryview(memory)).as_asyncio()

    asyncio.run(main())
    buffer.read_into(memoryview(bytearray(SIZE))).get()


USES = [read, write, read_by_name, batch, plan, not_observed, asked_for_its_error, awaited]


def attempt(use: Callable[[RDMABuffer, Memory], None], buffer: RDMABuffer, kind: type[Exception]) -> weakref.ref[Memory]:
    memory = Memory(SIZE)
    with pytest.raises(kind):
        use(buffer, memory)
    return weakref.ref(memory)


@pytest.mark.parametrize("use", USES)
def test_failed_operation_frees_its_memory(mortals, use) -> None:
    dropped, live = (mortals.owner.share.call_one(SIZE).get() for _ in range(2))
    dropped.drop().get()
    assert attempt(use, dropped, RDMAReleasedError)() is None
    assert attempt(lambda buffer, memory: buffer.read_into(memoryview(memory), timeout=0).get(), live, RDMATimeoutError)() is None
    os.kill(mortals.owner.pid.call_one().get(), signal.SIGKILL)
    assert attempt(use, live, RDMAPeerLostError)() is None


def test_failed_set_frees_its_memory() -> None:
    shared = RDMABufferSet({"weights": memoryview(bytearray(SIZE))})
    shared.drop().get()
    memory = Memory(SIZE)
    future = shared.read_into({"weights": memoryview(memory)})
    with pytest.raises(RDMAReleasedError):
        future.get()
    kept = weakref.ref(memory)
    del memory, future
    assert kept() is None


def test_refused_memory_is_freed() -> None:
    buffer = RDMABuffer(memoryview(bytearray(SIZE + 1)))
    assert attempt(read, buffer, ValueError)() is None


def test_same_error_is_raised_while_it_is_referenced() -> None:
    owner = this_host().spawn_procs(name="short").spawn("short", Owner)
    buffer = owner.share.call_one(SIZE).get()
    buffer.drop().get()
    future = buffer.read_into(memoryview(bytearray(SIZE)))
    with pytest.raises(RDMAReleasedError) as first:
        future.get()
    assert future.exception() is first.value
    text, code = str(first.value), first.value.code
    del first
    with pytest.raises(RDMAReleasedError) as again:
        future.get()
    assert (str(again.value), again.value.code) == (text, code)
