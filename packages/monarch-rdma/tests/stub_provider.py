"""A fabric in memory that does what real ones do rarely: completions come late, in another order, with errors, or never; posts and
connections are refused. Requests move bytes when they complete, so that what completes late also arrives late."""

from __future__ import annotations

import ctypes
import itertools
import os
from queue import SimpleQueue

from monarch.rdma.verbs.connect_record import RC, SRD, QueueRecord
from monarch.rdma.verbs.devices import ETHERNET, UNKNOWN, Port
from monarch.rdma.verbs.provider import FLUSHED, SUCCESS, Completion

_numbers = itertools.count(1)


def stub_port(name, *, efa=False, gid=b""):
    link = UNKNOWN if efa else ETHERNET
    return Port(name, 1, link, True, "ACTIVE", 100e9, gid.rjust(16, b"\1"), 1, "RoCE v2", None, "")


class StubRegion:
    def __init__(self, rail, key, address, nbytes, write):
        self.rail, self.key, self.remote_key = rail, key, key
        self.address, self.nbytes, self.write = address, nbytes, write
        rail.fabric[key] = self

    def close(self):
        del self.rail.fabric[self.key]

    def holds(self, address, nbytes):
        return self.address <= address and address + nbytes <= self.address + self.nbytes


class StubQueue:
    def __init__(self, rail, depth):
        self.rail, self.depth = rail, depth
        self.number = next(_numbers)
        self.requests = []
        self.broken = self.stuck = False
        self.closed = False
        self.peer = None
        transport = SRD if rail.unordered else RC
        self.record = QueueRecord(rail.port.device, 1, transport, rail.port.gid, 0, self.number, 0, 0, 1024, 16)

    def connect(self, remote):
        if self.rail.refuses_connections:
            raise OSError("refused")
        self.peer = remote

    def post(self, requests):
        assert not self.closed and self.peer is not None and requests[-1].signaled
        assert len(self.requests) + len(requests) <= self.depth
        if self.rail.refuses_posts:
            return False
        self.requests.extend(requests)
        self.rail.posted += len(requests)
        self.rail.posts.put(len(requests))
        if self.rail.at_once:
            self.rail.tell()
        return True

    def finish(self, which=0, status=SUCCESS, silent=False):
        """One request completes. `silent`: bytes have moved, but the completion is lost, as with a device that is gone."""
        request = self.requests.pop(which if self.rail.unordered else 0)
        if status == SUCCESS and self.broken:
            status = FLUSHED
        if status == SUCCESS:
            status = self._move(request)
        if status != SUCCESS and not self.rail.unordered:
            self.broken = True
        if not silent and (request.signaled or status != SUCCESS):
            self.rail.complete(Completion(request.number, status))

    def _move(self, request):
        here, there = self.rail.fabric.get(request.key), self.rail.fabric.get(request.remote_key)
        if here is None or not here.holds(request.address, request.nbytes):
            return 4
        if there is None or not there.holds(request.remote_address, request.nbytes) or (request.write and not there.write):
            return 10
        target, source = request.address, request.remote_address
        if request.write:
            target, source = source, target
        ctypes.memmove(target, source, request.nbytes)
        return SUCCESS

    def close(self):
        assert not self.closed
        self.closed = True
        self.rail.queues.remove(self)
        assert not self.rail.unordered or not self.requests


class StubRail:
    """`fabric` maps keys to regions; it is shared by rails that reach each other."""

    def __init__(self, name, fabric, *, unordered=False, at_once=False):
        self.port = stub_port(name, efa=unordered)
        self.fabric = fabric
        self.unordered = unordered
        self.at_once = at_once
        self.queues = []
        self.completions = []
        self.posted = 0
        self.posts = SimpleQueue()
        self.refuses_posts = self.refuses_connections = self.refuses_memory = False
        self.dead = None
        self._armed = False
        self._event = os.eventfd(0, os.EFD_CLOEXEC)

    def register(self, address, nbytes, *, remote_read=False, remote_write=False):
        if self.refuses_memory:
            raise OSError(12, "cannot allocate memory")
        return StubRegion(self, next(_numbers), address, nbytes, remote_write)

    def queue(self, depth):
        made = StubQueue(self, depth)
        self.queues.append(made)
        return made

    def complete(self, completion):
        self.completions.append(completion)
        self.tell()

    def tell(self):
        if self._armed:
            self._armed = False
            os.eventfd_write(self._event, 1)

    def poll(self, most):
        if self.dead is not None:
            raise self.dead
        if self.at_once:
            for queue in self.queues:
                while queue.requests and not queue.stuck:
                    queue.finish()
        found, self.completions = self.completions[:most], self.completions[most:]
        return found

    def fileno(self):
        return self._event

    def arm(self):
        self._armed = True

    def acknowledge(self):
        os.eventfd_read(self._event)

    def break_down(self, error):
        """The next look at its completions fails."""
        self.dead = error
        os.eventfd_write(self._event, 1)

    def close(self):
        os.close(self._event)
