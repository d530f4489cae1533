"""All that this process has to do with devices, from the first use on."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING

from monarch import extension
from monarch.rdma._process.process import this_process
from monarch.rdma.verbs.owner import Owner
from monarch.rdma.verbs.peer import Peer
from monarch.rdma.verbs.rails import Rails
from monarch.rdma.verbs.service import Service

if TYPE_CHECKING:
    from monarch.extension import Request
    from monarch.extension.bulk import Bulk


class Fabric:
    def __init__(self, native: Bulk) -> None:
        self._native = native
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._rails: Rails | None = None
        self._trouble = ""
        self._peers: dict[int, Peer] = {}
        self.service = Service(native.fileno(), self._look)
        affinity = extension.setting("rdma_peer_device_affinity")
        self.owner = Owner(native, self.rails, affinity, lambda uid: self.service.when_ended(uid, lambda: self.owner.forget(uid)))

    def rails(self) -> Rails:
        """Those of this process, opened once; `OSError` where none can be."""
        with self._opening:
            if self._trouble:
                raise OSError(self._trouble)
            if self._rails is None:
                try:
                    self._rails = Rails(self._native)
                except OSError as e:
                    self._trouble = str(e)
                    raise
            return self._rails

    def peer(self, uid: int) -> Peer:
        with self._lock:
            found = self._peers.get(uid)
            if found is None:
                found = self._peers[uid] = Peer(uid, self.rails, int(extension.setting("rdma_max_chunk_size_mb")) << 20)
                self.service.when_ended(uid, lambda: self._ended(uid))
            return found

    def answer(self, request: Request) -> None:
        """Another process asks, on the extension thread; the answer is made on the thread of the devices."""

        def run() -> None:
            try:
                value = self.owner.answer(request.proc, request.body)
            except (OSError, ValueError) as e:
                request.fail(str(e).encode())
            else:
                request.answer(value)

        request.defer()
        self.service.run(run)

    def close(self) -> None:
        """At exit: nothing may touch memory of an interpreter that is going."""
        self.service.close()
        for peer in list(self._peers.values()):
            peer.close()
        if self._rails is not None:
            for _, poller, _ in self._rails.ways:
                poller.close()

    def _ended(self, uid: int) -> None:
        with self._lock:
            peer = self._peers.pop(uid)
        peer.close()

    def _look(self) -> None:
        """Buffers have ended, or memory of ours that devices may know was freed."""
        ids, freed = self._native.ended()
        self.owner.let_go(ids)
        if self._rails is not None:
            for address, nbytes in freed:
                self._rails.registrations.forget(address, nbytes)


_lock = threading.Lock()
_fabric: tuple[Bulk, Fabric] | None = None


def fabric() -> Fabric:
    """That of this process."""
    global _fabric
    process = this_process()
    found = _fabric
    if found is None or found[0] is not process.bulk:
        with _lock:
            found = _fabric
            if found is None or found[0] is not process.bulk:
                found = _fabric = process.bulk, Fabric(process.bulk)
                # Functions of atexit run in reverse: before the process closes its memory.
                atexit.register(found[1].close)
    return found[1]
