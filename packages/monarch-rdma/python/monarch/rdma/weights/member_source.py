"""Weights that a member of the job publishes: a proc, or the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.rdma.weights.announcements import Announcements
from monarch.rdma.weights.memories import Copies, Live
from monarch.rdma.weights.published import Published, add, check_free
from monarch.rdma.weights.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.actor import Future
    from monarch.rdma.weights.memories import Memories


class MemberSource(Updates):
    """The trainer's thread updates the weights, the extension thread answers requests."""

    def __init__(self, name: str, memories: Memories, wait: float) -> None:
        announcements = Announcements()
        super().__init__(name, memories, announcements.values, wait)
        self.published = Published(name, memories.table, memories.words, memories.slots, announcements, wait, lambda: self.version)

    def arrived(self) -> None:
        self.published.arrived()

    def close(self) -> list[Future[None]]:
        self.is_closed = True
        return self.published.close()


def publish(name: str, state: Mapping[str, Any], buffers: int, columns: int, wait: float) -> MemberSource:
    check_free(name)
    made = MemberSource(name, Live(state) if buffers == 1 else Copies(state, buffers, columns), wait)
    with made.updating:
        made.begin()
        made.end(0)
    add(made.published)
    return made
