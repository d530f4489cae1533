"""The other end: queues that others may reach our memory by. They take no work, so nothing waits here."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from monarch.rdma.verbs.connect_record import QueueRecord, RegionRecord
from monarch.rdma.verbs.memory import register

if TYPE_CHECKING:
    from monarch.rdma.verbs.memory import Range
    from monarch.rdma.verbs.provider import Queue, Rail


class Acceptor:
    """Answers offers with queues on these rails; `affinity` is the setting `rdma_peer_device_affinity`."""

    def __init__(self, rails: Sequence[Rail], affinity: str = "") -> None:
        self._rails = list(rails)
        self._affinity = affinity
        self._lock = threading.Lock()
        self._queues: dict[Hashable, dict[str, Queue]] = {}

    def answer(self, peer: Hashable, offers: Sequence[QueueRecord]) -> list[QueueRecord | None]:
        """A connected queue for each of theirs, None where no rail of ours fits. A new offer of a rail replaces its last one."""
        answers: list[QueueRecord | None] = []
        used = [0] * len(self._rails)
        for offer in offers:
            number = partner(offer, self._rails, used, self._affinity)
            if number is None:
                answers.append(None)
                continue
            used[number] += 1
            try:
                queue = self._rails[number].queue(0)
                try:
                    queue.connect(offer)
                except OSError:
                    queue.close()
                    raise
            except OSError:
                answers.append(None)
                continue
            with self._lock:
                old = self._queues.setdefault(peer, {}).pop(offer.device, None)
                self._queues[peer][offer.device] = queue
            if old is not None:
                old.close()
            answers.append(queue.record)
        return answers

    def forget(self, peer: Hashable) -> None:
        """It cannot reach this process any more."""
        with self._lock:
            queues = self._queues.pop(peer, {})
        for queue in queues.values():
            queue.close()


class Export:
    """Memory that others may reach, registered on all rails, for that range and no more (of a GPU: for its pages), until `close`."""

    def __init__(self, rails: Sequence[Rail], memory: Range, *, writable: bool) -> None:
        self._registered = register(rails, memory, remote_read=True, remote_write=writable)
        keys = {rail.port.device: region.remote_key for rail, region in zip(rails, self._registered.regions, strict=True)}
        self.record = RegionRecord(memory.address - self._registered.origin, memory.nbytes, writable, keys)

    def close(self) -> None:
        """The keys are good for nothing when this returns."""
        self._registered.close()


def partner(offer: QueueRecord, rails: Sequence[Rail], used: Sequence[int], affinity: str) -> int | None:
    """Which of our rails an offer is best connected to: of those that the setting allows, the one that was used least, then the one
    whose address is most like that of the offer, because rails of different hosts that have a switch in common are numbered alike.
    """
    fitting = [
        i
        for i, rail in enumerate(rails)
        if rail.unordered == bool(offer.transport) and _allowed(offer.device, rail.port.device, affinity) and _same_kind(offer, rail)
    ]
    return min(fitting, key=lambda i: (used[i], -_alike(offer.gid, rails[i].port.gid), i), default=None)


def _allowed(theirs: str, ours: str, affinity: str) -> bool:
    if affinity == "match_name":
        return theirs == ours
    kind, _, groups = affinity.partition(":")
    if kind != "groups":
        return True
    return any(theirs in names and ours in names for names in (group.split(",") for group in groups.split("|")))


def _same_kind(offer: QueueRecord, rail: Rail) -> bool:
    """InfiniBand ports have a local id, those of Ethernet have none."""
    return rail.unordered or bool(offer.lid) == (rail.port.link_layer == "InfiniBand")


def _alike(one: bytes, other: bytes) -> int:
    """Leading bits that two addresses have in common."""
    difference = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return 128 - difference.bit_length()
