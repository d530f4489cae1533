"""The owner's side: answers who wants to reach memory of this process, and takes it from the devices when a buffer ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.extension.bulk import BulkFailed
from monarch.rdma._gpu.device_handle import described
from monarch.rdma.verbs import question
from monarch.rdma.verbs.acceptor import Acceptor, Export
from monarch.rdma.verbs.connect_record import RegionRecord
from monarch.rdma.verbs.memory import Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.extension.bulk import Bulk
    from monarch.rdma.verbs.rails import Rails


def _described(address: int) -> Range:
    """Memory of a GPU, by what is registered in its place."""
    memory = described(address)
    if memory is None:
        raise OSError("what is registered there describes no memory of a GPU")
    return Range(memory.address, memory.nbytes, memory.device)


class Owner:
    """All on one thread. `rails` opens them, `OSError` where it cannot; `watch` has `forget` called when a process ends."""

    def __init__(self, native: Bulk, rails: Callable[[], Rails], affinity: str, watch: Callable[[int], None]) -> None:
        self._native = native
        self._rails = rails
        self._affinity = affinity
        self._watch = watch
        self._acceptor: Acceptor | None = None
        self._peers: set[int] = set()
        self._exports: dict[bytes, Export] = {}

    def answer(self, sender: int, body: bytes) -> bytes:
        """`ValueError` for what is no question, `OSError` where devices cannot be used."""
        if body[:1] == bytes([question.CONNECT]):
            return self._connect(sender, body)
        return question.pack_keys([self._export(wanted) for wanted in question.buffers(body)])

    def forget(self, peer: int) -> None:
        """It has ended."""
        self._peers.discard(peer)
        if self._acceptor is not None:
            self._acceptor.forget(peer)

    def let_go(self, ids: list[bytes]) -> None:
        """These buffers have ended."""
        for id in ids:
            export = self._exports.pop(id, None)
            if export is not None:
                export.close()
            self._native.unexport(id)

    def count(self) -> tuple[int, int]:
        """Buffers that devices know, and processes that may reach them."""
        return len(self._exports), len(self._peers)

    def _connect(self, sender: int, body: bytes) -> bytes:
        offers = question.offers(body)
        if self._acceptor is None:
            self._acceptor = Acceptor(self._rails().rails, self._affinity)
        if sender not in self._peers:
            self._peers.add(sender)
            self._watch(sender)
        return question.pack_accepted(self._acceptor.answer(sender, offers))

    def _export(self, wanted: question.Wanted) -> RegionRecord | question.Refusal:
        id, epoch, on_device = wanted
        try:
            # The native code is queried each time, since the buffer may have ended without a notice here.
            address, nbytes, readonly = self._native.export(id, epoch)
        except BulkFailed as e:
            return question.Refusal(question.FAILED, e.args[0])
        export = self._exports.get(id)
        if export is None:
            try:
                memory = _described(address) if on_device else Range(address, nbytes)
                export = self._exports[id] = Export(self._rails().rails, memory, writable=not readonly)
            except OSError as e:
                self._native.unexport(id)
                return question.Refusal(question.UNKNOWN, str(e).encode())
        return export.record
