"""A real job with nine faults at once, served for `monarch mcp`: `python faulty_job.py`. It prints its URL, and waits.

Each fault has a mesh of its own: `trainer` rank 2 is slow, `left` and `right` call each other and wait, `reader` never ends its `read`
while its queue grows, `leaking` keeps a mebibyte more of memory again and again, `dead` loses a proc, `crasher` fails at each start,
`chatty` writes 1,500 lines, and a host is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any

import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, Channel, SupervisionError, endpoint, this_host
from monarch.actor.testing import local_hosts

monarch.actor.unhandled_fault_hook = lambda failure: None
_PUSHES, _LINES = 20, 1500
# The most mebibytes of the leak, so that a job that is never ended does not exhaust the machine.
_LEAK = 1024


class Trainer(Actor):
    @endpoint
    def step(self, slow: int) -> None:
        if monarch.actor.current_rank().rank == slow:
            threading.Event().wait(0.02)


class Pair(Actor):
    @endpoint
    def meet(self, other: Any) -> None:
        self.other = other

    @endpoint
    def hold(self, holding: Any) -> None:
        # Both hold before one calls: an earlier call would be answered.
        mine, gate = Channel[None].open()
        holding.send(mine)
        gate.recv().get()
        self.other.give.call_one().get()

    @endpoint
    def give(self) -> None:
        pass


class Reader(Actor):
    @endpoint
    def read(self) -> None:
        threading.Event().wait()

    @endpoint
    def push(self) -> None:
        pass


class Leaking(Actor):
    def __init__(self) -> None:
        self.kept: list[bytes] = []

    @endpoint
    def use(self) -> None:
        if len(self.kept) < _LEAK:
            self.kept.append(b"x" * (1 << 20))


class Fragile(Actor):
    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def crash(self) -> None:
        raise SystemExit("no such device")

    @endpoint
    def chat(self) -> None:
        for n in range(_LINES):
            print("retry", n)


def rows(sql: str) -> list[Any]:
    return [tuple(row.values()) for row in telemetry.query(sql).to_pylist()]


def failed(call: Any) -> None:
    try:
        call.get()
    except SupervisionError:
        return
    raise AssertionError("a call to an actor that fails was answered")


def agent_of(pid: int) -> int:
    """The agent of a proc: the parent of the zygote that forked it."""
    for _ in range(2):
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return pid


async def main(answers: int) -> None:
    async with local_hosts(1) as hosts:
        running = telemetry.start(hosts=hosts, serve=True, admin_addr="127.0.0.1:0", snapshot_interval_secs=0.3)
        procs = this_host().spawn_procs({"gpus": 4}, name="procs")
        trainer = procs.spawn("trainer", Trainer)
        one = procs.slice(gpus=0)
        left, right = one.spawn("left", Pair), procs.slice(gpus=1).spawn("right", Pair)
        await left.meet.call_one(right)
        await right.meet.call_one(left)
        holding, held = Channel[Any].open()
        left.hold.broadcast(holding)
        right.hold.broadcast(holding)
        for gate in [await held.recv(), await held.recv()]:
            gate.send(None)
        reader = procs.slice(gpus=2).spawn("reader", Reader)
        reader.read.broadcast()
        await one.spawn("chatty", Fragile).chat.call_one()
        for _ in range(4):
            failed(one.spawn("crasher", Fragile).crash.call_one())
        failed(this_host().spawn_procs({"gpus": 2}, name="dying").spawn("dead", Fragile).slice(gpus=1).die.call_one())
        leaking = this_host().spawn_procs(name="leaking").spawn("cache", Leaking)
        away = hosts.spawn_procs(name="away")
        await away.initialized
        (pid,) = rows("SELECT pid FROM live_procs('away')")[0]
        os.kill(agent_of(pid), signal.SIGKILL)
        while not rows("SELECT 1 FROM hosts WHERE state = 'lost'"):  # polls: rows come with a look
            continue
        os.write(answers, json.dumps({"url": running.url}).encode() + b"\n")
        closed = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
        # The queue grows while the job is observed.
        while not closed.wait(0.05):
            for _ in range(_PUSHES):
                reader.push.broadcast()
            await trainer.step.call(2)
            await leaking.use.call_one()
        os._exit(0)


if __name__ == "__main__":
    # The output of procs is also shown on stdout: it is sent to stderr instead.
    answers = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(main(answers))
