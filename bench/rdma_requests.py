"""Processor time of a work request of the verbs transport, without a device: the provider of the tests, whose requests are done at once.

    python bench/rdma_requests.py

Requests of 4 KiB (signaled every 16) and slices of 1 MiB, on one rail and on four; microseconds of processor time each, the best of
five. The time of pyverbs for a request is additional, and only measured in an emulated machine, as a ratio (`bench/rdma_verbs.py`).
"""

from __future__ import annotations

import json
import queue
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "packages" / "monarch-rdma" / "tests"), str(ROOT / "packages" / "monarch-rdma" / "python")]

from stub_provider import StubRail  # noqa: E402

from monarch.rdma.verbs.acceptor import Acceptor  # noqa: E402
from monarch.rdma.verbs.connection import COMPLETE, Connection, Piece  # noqa: E402
from monarch.rdma.verbs.poller import Poller  # noqa: E402
from monarch.rdma.verbs.provider import Completion  # noqa: E402


class Instant(StubRail):
    """Moves nothing: a posted request is done, and reported at the next poll."""

    def poll(self, most: int) -> list[Completion]:
        found: list[Completion] = []
        for one in self.queues:
            while one.requests:  # others post meanwhile
                request = one.requests.pop(0)
                if request.signaled:
                    found.append(Completion(request.number, 0))
        return found


def measure(rails: int, nbytes: int, count: int) -> float:
    near, far = [Instant(f"near{i}", {}, at_once=True) for i in range(rails)], [StubRail(f"far{i}", {}) for i in range(rails)]
    acceptor = Acceptor(far)
    pollers = [Poller(rail) for rail in near]
    connection = Connection(
        [(rail, poller, 1.0) for rail, poller in zip(near, pollers, strict=True)], lambda offers: acceptor.answer("peer", offers)
    )
    connection.open()
    keys, remote = [0] * rails, {rail.port.device: 0 for rail in far}
    # One piece per request if they are small; otherwise one piece in slices.
    pieces = (
        [Piece(False, 0, nbytes, keys, 0, remote)] * count if nbytes <= 32 << 10 else [Piece(False, 0, nbytes * count, keys, 0, remote)]
    )
    best = float("inf")
    for _ in range(5):
        ended: queue.SimpleQueue[object] = queue.SimpleQueue()
        start = time.process_time()
        transfer = connection.submit(pieces, 600.0, ended.put)
        ended.get()
        best = min(best, (time.process_time() - start) / count)
        assert transfer.state == COMPLETE
    connection.close()
    for poller in pollers:
        poller.close()
    return best * 1e6


def main() -> None:
    for rails in (1, 4):
        for nbytes in (4 << 10, 1 << 20):
            print(json.dumps({"rails": rails, "bytes": nbytes, "us_per_request": round(measure(rails, nbytes, 10_000), 2)}), flush=True)


if __name__ == "__main__":
    main()
