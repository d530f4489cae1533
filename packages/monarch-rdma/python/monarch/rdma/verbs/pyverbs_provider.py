"""The provider on pyverbs.

Its calls hold the GIL, and its wait for an event would: so nothing here waits, the descriptor of the event channel is for `select`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import Any

from monarch.rdma.verbs.devices import Port
from monarch.rdma.verbs.endpoint_rc import RcQueue
from monarch.rdma.verbs.endpoint_srd import SrdEndpoint, SrdQueue, open_efa, supported
from monarch.rdma.verbs.provider import Completion
from monarch.rdma.verbs.pyverbs_library import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, failure, module, problem

# The most completions in a completion queue, and so requests in flight on all queue pairs of a rail.
COMPLETIONS = 4096
_CHANNEL = "anon_inode:[infinibandevent]"
_opening = threading.Lock()


class PyverbsRegion:
    """A memory region."""

    def __init__(self, region: Any) -> None:
        self._region = region
        self.key: int = region.lkey
        self.remote_key: int = region.rkey

    def close(self) -> None:
        self._region.close()


class PyverbsRail:
    """A device, with one completion queue for all its queue pairs."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.unordered = port.efa
        errors = module("pyverbs_error").PyverbsError
        try:
            self.context: Any = open_efa(port.device) if port.efa else module("device").Context(name=port.device)
            self.attributes: Any = self.context.query_device()
            self.port_attributes: Any = self.context.query_port(port.number)
            self.domain: Any = module("pd").PD(self.context)
            self._channel, self._descriptor = _event_channel(self.context)
            self._room = min(COMPLETIONS, self.attributes.max_cqe)
            self.completions: Any = module("cq").CQ(self.context, self._room, None, self._channel, 0)
        except errors as e:
            raise failure(e, f"opening {port.name}") from e
        self._errors = errors
        self._queues: set[RcQueue | SrdQueue] = set()
        self._endpoint: SrdEndpoint | None = None
        if port.efa:
            lacking = supported(self.context)
            if lacking:
                raise OSError(errno.EOPNOTSUPP, f"{port.name}: {lacking}")

    def register(self, address: int, nbytes: int, *, remote_read: bool = False, remote_write: bool = False) -> PyverbsRegion:
        access = LOCAL_WRITE | (REMOTE_READ if remote_read else 0) | (REMOTE_WRITE if remote_write else 0)
        try:
            return PyverbsRegion(module("mr").MR(self.domain, nbytes, access, address))
        except self._errors as e:
            raise failure(e, f"registering {nbytes:,} bytes on {self.port.name}") from e

    def register_dma_buffer(
        self, descriptor: int, offset: int, nbytes: int, *, remote_read: bool = False, remote_write: bool = False
    ) -> PyverbsRegion:
        """Memory of a GPU, which its driver has exported; addresses in work requests count from `offset`."""
        access = LOCAL_WRITE | (REMOTE_READ if remote_read else 0) | (REMOTE_WRITE if remote_write else 0)
        try:
            return PyverbsRegion(module("mr").DmaBufMR(self.domain, nbytes, access, descriptor, offset))
        except self._errors as e:
            raise failure(e, f"registering a dma-buf of {nbytes:,} bytes on {self.port.name}") from e

    def queue(self, depth: int) -> RcQueue | SrdQueue:
        taken = sum(queue.depth for queue in self._queues)
        if taken + depth > self._room:
            raise OSError(errno.ENOSPC, f"{self.port.name}: {taken} requests may be under way already, {self._room} at most")
        try:
            if self.unordered:
                if self._endpoint is None:
                    self._endpoint = SrdEndpoint(self)
                queue = SrdQueue(self, self._endpoint, depth)
            else:
                queue = RcQueue(self, depth)
        except self._errors as e:
            raise failure(e, f"a queue pair on {self.port.name}") from e
        self._queues.add(queue)
        return queue

    def closed(self, queue: RcQueue | SrdQueue) -> None:
        self._queues.discard(queue)

    def poll(self, most: int) -> Sequence[Completion]:
        count, found = self.completions.poll(most)
        if not count:
            return ()
        return [Completion(one.wr_id, one.status, one.vendor_err) for one in found]

    def fileno(self) -> int:
        return self._descriptor

    def arm(self) -> None:
        self.completions.req_notify()

    def acknowledge(self) -> None:
        self._channel.get_cq_event(self.completions)
        self.completions.ack_events(1)

    def close(self) -> None:
        for queue in list(self._queues):
            queue.close()
        if self._endpoint is not None:
            self._endpoint.close()
        # This closes all objects made from it.
        self.context.close()


class PyverbsProvider:
    """Opens rails of this machine."""

    def open(self, port: Port) -> PyverbsRail:
        if lacking := problem():
            raise OSError(errno.ENOPKG, lacking)
        return PyverbsRail(port)


def _event_channel(context: Any) -> tuple[Any, int]:
    """A completion channel and its descriptor, which pyverbs does not show: it is the one that is new."""
    with _opening:
        before = _channels()
        channel = module("cq").CompChannel(context)
        new = _channels() - before
    if len(new) != 1:
        raise OSError(errno.ENOENT, f"the descriptor of the completion channel cannot be told from others: {sorted(new)}")
    return channel, new.pop()


def _channels() -> set[int]:
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == _CHANNEL:
                found.add(int(name))
        except OSError:  # closed meanwhile
            continue
    return found
