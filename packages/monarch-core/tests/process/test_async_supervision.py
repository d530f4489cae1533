"""The hook of an async actor, which runs beside its messages."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from eventually import eventually

from monarch.actor import Actor, MeshFailure, SupervisionError, endpoint, this_host


class Child(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Parent(Actor):
    def __init__(self, ignores: bool) -> None:
        self.ignores = ignores
        self.child = this_host().spawn_procs().spawn("child", Child)
        self.pid = self.child.pid.call_one().get()

    def __supervise__(self, failure: MeshFailure) -> bool:
        return not self.ignores

    @endpoint
    async def lose(self, turns: int) -> None:
        """Returns `turns` turns of the loop after the failure is visible."""
        os.kill(self.pid, signal.SIGKILL)
        # No turn of the loop passes, so that the loop sees the failure together with the end of this endpoint.
        eventually("the failure of the child is known", lambda: self.child.__core__.info.failed)
        time.sleep(0.2)  # sleeps: the event follows at once, and no notice announces it
        for _ in range(turns):
            await asyncio.sleep(0)

    @endpoint
    async def answer(self) -> int:
        return 1


@pytest.mark.parametrize("turns", range(5))
def test_message_after_a_fatal_failure_is_answered(faults, turns):
    with this_host().spawn_procs() as procs:
        parent = procs.spawn("parent", Parent, True)
        parent.lose.broadcast(turns)
        with pytest.raises(SupervisionError, match="child"):
            parent.answer.call_one().get(timeout=20)
        assert faults.get(timeout=20).name in ("child", "parent")


def test_message_after_a_handled_failure_is_handled(faults):
    with this_host().spawn_procs() as procs:
        parent = procs.spawn("parent", Parent, False)
        parent.lose.broadcast(2)
        assert parent.answer.call_one().get(timeout=20) == 1
