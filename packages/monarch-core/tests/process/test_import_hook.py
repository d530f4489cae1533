"""A program that replaces `builtins.__import__`: native code calls no such function while it sends."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from worker_processes import Workers

from monarch.actor import Actor, Channel, attach_to_workers, endpoint, this_host

MIB = 1 << 20
# More than the credit of a mailbox.
BEYOND_CREDIT = 24


class Slow(Actor):
    """Takes no message until the gate is opened."""

    def __init__(self, port: Any) -> None:
        mine, self.gate = Channel.open()
        port.send(mine)
        self.count = 0

    @endpoint
    def wait(self) -> None:
        self.gate.recv().get()

    @endpoint
    def take(self, data: bytes) -> None:
        self.count += 1

    @endpoint
    def taken(self) -> int:
        return self.count


@contextmanager
def refused_imports() -> Iterator[list[str]]:
    """An `__import__` that raises on this thread; gives the names that were requested."""
    usual, thread, names = builtins.__import__, threading.get_ident(), []

    def refusing(name: str, *rest: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return usual(name, *rest, **options)
        names.append(name)
        raise ImportError(f"refused: {name}")

    builtins.__import__ = refusing
    try:
        yield names
    finally:
        builtins.__import__ = usual


def test_send_beyond_the_credit_imports_nothing() -> None:
    procs = this_host().spawn_procs()
    mine, theirs = Channel.open()
    slow = procs.spawn("slow", Slow, mine)
    gate = theirs.recv().get()
    data = bytes(MIB)
    slow.take.broadcast(b"")
    slow.wait.broadcast()

    async def flood() -> None:
        with refused_imports() as names:
            for _ in range(BEYOND_CREDIT):
                slow.take.broadcast(data)
        assert names == []

    try:
        asyncio.run(flood())
        gate.send(None)
        assert slow.taken.call_one().get() == BEYOND_CREDIT + 1
    finally:
        procs.stop().get()


def test_first_large_message_needs_no_import(capfd: pytest.CaptureFixture[str]) -> None:
    with Workers(1) as workers:
        hosts = attach_to_workers(workers=workers.addresses, **workers.trust())
        procs = hosts.spawn_procs()
        mine, theirs = Channel.open()
        slow = procs.spawn("slow", Slow, mine)
        theirs.recv().get()
        slow.take.call_one(b"").get()
        data = bytes(2 * MIB)
        with refused_imports():
            slow.take.broadcast(data)
        assert slow.taken.call_one().get() == 2
        hosts.shutdown().get()
