"""Large arguments of failed calls are freed as soon as no code uses them: no error holds them, and no cycle of references."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import signal
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import monarch.actor
from monarch.actor import Actor, ActorError, Future, SupervisionError, endpoint, returns_future, this_host

SIZE = 4 << 20


class Memory(bytearray):
    """Bytes with weak references."""


class Failing(Actor):
    def __init__(self) -> None:
        gc.disable()
        self.seen: weakref.ref[Memory] | None = None

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def take(self, memory: Memory) -> None:
        self.seen = weakref.ref(memory)
        raise ValueError("not wanted")

    @endpoint
    def has_kept(self) -> bool:
        return self.seen is not None and self.seen() is not None


class FailingOnLoop(Actor):
    def __init__(self) -> None:
        gc.disable()
        self.seen: weakref.ref[Memory] | None = None

    @endpoint
    async def take(self, memory: Memory) -> None:
        self.seen = weakref.ref(memory)
        raise ValueError("not wanted")

    @endpoint
    async def has_kept(self) -> bool:
        return self.seen is not None and self.seen() is not None


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    before, faults = monarch.actor.unhandled_fault_hook, queue.Queue[Any]()
    monarch.actor.unhandled_fault_hook = faults.put
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    monarch.actor.unhandled_fault_hook = before


def called(mesh: Any, memory: Memory) -> None:
    mesh.take.call_one(memory).get()


def called_by_name(mesh: Any, memory: Memory) -> None:
    future = mesh.take.call(memory)
    assert isinstance(future.exception(), (ActorError, SupervisionError))
    future.get()


def awaited(mesh: Any, memory: Memory) -> None:
    async def main() -> None:
        with pytest.raises((ActorError, SupervisionError)):
            await mesh.take.call_one(memory)
        future = mesh.take.choose(memory)
        with pytest.raises((ActorError, SupervisionError)):
            await future

    asyncio.run(main())
    mesh.take.call_one(bytearray(10)).get()


def in_a_future_of_its_own(mesh: Any, memory: Memory) -> None:
    @returns_future
    async def call() -> None:
        await mesh.take.call_one(memory)

    future: Future[None] = call()
    future.get()


def attempt(use: Any, mesh: Any, kind: Any) -> weakref.ref[Memory]:
    memory = Memory(SIZE)
    with pytest.raises(kind):
        use(mesh, memory)
    return weakref.ref(memory)


@pytest.mark.parametrize("use", [called, called_by_name, awaited, in_a_future_of_its_own])
def test_failed_call_frees_its_arguments(use: Any) -> None:
    procs = this_host().spawn_procs()
    mesh = procs.spawn("failing", Failing)
    assert attempt(use, mesh, ActorError)() is None
    os.kill(mesh.pid.call_one().get(), signal.SIGKILL)
    assert attempt(use, mesh, SupervisionError)() is None
    procs.stop().get()


@pytest.mark.parametrize("actor", [Failing, FailingOnLoop])
def test_failed_endpoint_frees_its_arguments(actor: Any) -> None:
    procs = this_host().spawn_procs()
    mesh = procs.spawn("failing", actor)
    with pytest.raises(ActorError):
        mesh.take.call_one(Memory(SIZE)).get()
    assert mesh.has_kept.call_one().get() is False
    procs.stop().get()


def test_call_that_is_not_awaited_frees_its_arguments() -> None:
    procs = this_host().spawn_procs()
    mesh = procs.spawn("failing", Failing)
    kinds = (TimeoutError, ActorError)  # the call may have been fast
    assert attempt(lambda mesh, memory: mesh.take.call_one(memory).get(timeout=0), mesh, kinds)() is None
    procs.stop().get()
