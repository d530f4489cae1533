"""Hosts that a test cuts off: memory there is cut off too, whatever the path."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from eventually import eventually
from memory_actors import Owner, Reader, pattern
from other_hosts import other_hosts

import monarch.actor
from monarch.actor import this_host
from monarch.actor.testing import fault, isolated, local_hosts
from monarch.config import configured
from monarch.rdma import RDMABuffer, RDMATcpFallbackWarning

SIZE = 3_000_001


def waiting(future: Any) -> bool:
    try:
        future.get(timeout=0)
    except TimeoutError:
        return True
    return False


class Reading:
    """A thread of this process that reads a buffer again and again."""

    def __init__(self, buffer: RDMABuffer) -> None:
        self.count = 0
        self.stop = False
        self._buffer = buffer
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        eventually("a read", lambda: self.count)

    def _run(self) -> None:
        memory = memoryview(bytearray(self._buffer.size()))
        while not self.stop:
            self._buffer.read_into(memory).get()
            self.count += 1

    def end(self) -> None:
        before = self.count
        eventually("another read", lambda: self.count, lambda count: count > before)
        self.stop = True
        self._thread.join()


def cut_and_healed(hosts: Any, path: str) -> None:
    """The first of two hosts is cut off, several times."""
    warnings.simplefilter("ignore", RDMATcpFallbackWarning)
    procs = hosts.spawn_procs()
    owners, (inside, outside) = procs.spawn("owner", Owner), [procs.spawn("reader", Reader).slice(hosts=n) for n in (0, 1)]
    client = this_host().spawn_procs({"procs": 3})
    readers = [client.spawn("reader", Reader).slice(procs=n) for n in range(3)]
    mine = client.slice(procs=0).spawn("owner", Owner).share.call_one(SIZE, 9).get()
    known, other = [owners.slice(hosts=n).share.call_one(SIZE, n).get() for n in (0, 1)]
    assert readers[0].path.call_one(known).get() == inside.path.call_one(mine).get() == path
    reading = Reading(known)
    for n in range(3):
        target, fresh = [owners.slice(hosts=0).share.call_one(1000, n).get() for _ in range(2)]
        with fault(hosts.slice(hosts=0), "cut"):
            before = reading.count
            late = [readers[0].read.call_one(known), readers[1].read.call_one(fresh), outside.read.call_one(known)]
            written = readers[2].write.call_one(target, b"late")
            # The client, and the other host, continue.
            memory = bytearray(SIZE)
            for _ in range(5):
                other.read_into(memoryview(memory)).get()
                assert memory == pattern(SIZE, 1)
            # One read may have had all of its bytes.
            assert reading.count <= before + 1
            assert all(waiting(f) for f in [*late, written])
        assert [f.get() for f in late] == [pattern(SIZE, 0), pattern(1000, n), pattern(SIZE, 0)]
        written.get()
        assert owners.slice(hosts=0).content.call_one(-2).get()[:4] == b"late"
        # In the other direction earlier requests wait.
        asked = inside.many.call_one(mine, 2, 50)
        with fault(hosts.slice(hosts=0), "cut"):
            for _ in range(5):
                other.read_into(memoryview(memory)).get()
        assert asked.get() == pattern(SIZE, 9)
    reading.end()


@isolated
def test_memory_of_a_host_of_the_same_machine():
    with configured(host_loss_timeout="60s"), local_hosts(2) as hosts:
        cut_and_healed(hosts, "cma")


@isolated
def test_streams_to_memory():
    with configured(host_loss_timeout="60s"), other_hosts(2) as hosts:
        cut_and_healed(hosts, "tcp")


def lost(hosts: Any) -> Any:
    """A reader that had used memory of the host, which is not cut off any more."""
    monarch.actor.unhandled_fault_hook = lambda failure: None
    warnings.simplefilter("ignore", RDMATcpFallbackWarning)
    buffer = hosts.spawn_procs().spawn("owner", Owner).share.call_one(SIZE, 0).get()
    reader = this_host().spawn_procs().spawn("reader", Reader)
    assert reader.keep.call_one(buffer).get()
    with fault(hosts, "cut"):
        kind, text, reason = reader.read_kept.call_one().get()
        assert (kind, reason) == ("RDMAPeerLostError", "host_lost"), text
    return reader


@isolated
def test_local_memory_of_a_lost_host_is_unavailable():
    with configured(host_loss_timeout="1s"), local_hosts(1) as hosts:
        lost(hosts)


@isolated
def test_streams_to_a_host_that_is_lost():
    with configured(host_loss_timeout="1s"), other_hosts() as hosts:
        # The host is back, but counts as lost.
        assert lost(hosts).read_kept.call_one().get()[0] == "RDMAPeerLostError"
