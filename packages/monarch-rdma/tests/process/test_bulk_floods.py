"""Floods of the socket at which a process shares the memory of its buffers."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest
from fresh_script import Script
from listener_flood import KINDS, STRANGER, ListenerFlood, is_bulk, listening_sockets

# Seconds: longer than a host may be silent.
FLOOD_S = 4.5
FLOOD = (*KINDS, "churn")

READER = """
import os, signal
import monarch.actor
from monarch.rdma import RDMABuffer

def fault(failure):
    say(f"fault {failure.report()}")
    os._exit(1)

monarch.actor.unhandled_fault_hook = fault
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

class Owner(Actor):
    def __init__(self):
        self.memory = bytearray(b"owner" * 1000)

    @endpoint
    def share(self):
        self.buffer = RDMABuffer(memoryview(self.memory))
        return self.buffer, os.getpid()

    @endpoint
    def read(self, buffer):
        found = bytearray(5000)
        buffer.read_into(memoryview(found)).get(timeout=20)
        return bytes(found)

procs = this_host().spawn_procs({"procs": 2})
owner, reader = (procs.slice(procs=n).spawn(name, Owner) for n, name in enumerate(("owner", "reader")))
buffer, pid = owner.share.call_one().get()
memory = bytearray(b"mine!" * 1000)
own = RDMABuffer(memoryview(memory))
assert reader.read.call_one(own).get() == bytes(memory)
found = bytearray(5000)
say(f"pids {pid} {os.getpid()}")
n = 0
while signal.SIGUSR1 not in signal.sigpending():
    n += 1
    buffer.read_into(memoryview(found)).get(timeout=20)
    assert found == b"owner" * 1000
    assert reader.read.call_one(own).get() == memory
    # A process that has not read from it before: its connection is a new one.
    if n % 50 == 0:
        fresh = this_host().spawn_procs()
        assert fresh.spawn("fresh", Owner).read.call_one(buffer).get() == found
        fresh.stop().get()
        say(f"round {n}")
own.drop().get()
procs.stop().get()
say("over")
"""


@pytest.fixture(params=["another user", "the same user"])
def uid(request: pytest.FixtureRequest) -> int | None:
    if request.param == "the same user":
        return None
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    return STRANGER


@pytest.mark.parametrize("of", ["proc", "client"])
def test_flood_of_a_memory_socket_harms_no_read(of: str, uid: int | None):
    script = Script(READER)
    try:
        pids = script.until("pids").split()[1:]
        pid = int(pids[of == "client"])
        (address,) = [a for a in listening_sockets(pid) if is_bulk(a)]
        script.until("round")
        with contextlib.ExitStack() as stack:
            floods = [stack.enter_context(ListenerFlood(kind, address, uid)) for kind in FLOOD]
            end = time.monotonic() + FLOOD_S
            while time.monotonic() < end:
                script.until("round")
        assert all(flood.shut_out or any(flood.counts.values()) for flood in floods)
        script.until("round")
        script.send(signal.SIGUSR1)
        script.until("over")
        script.end().assert_clean()
    finally:
        script.close()
