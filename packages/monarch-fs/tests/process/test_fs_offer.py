"""Large contents that are read from the memory of the process that has them."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from monarch.actor import Actor, Future, ProcMesh, endpoint, this_host
from monarch.extension import Promise, promise
from monarch.extension.directory_tree import blake3
from monarch.fs._relay.exchange import Exchange, Peer
from monarch.fs._relay.offer import OFFER_SECONDS, Offers, Pulled, Puller
from monarch.fs._relay.origin import Origin
from monarch.fs._store.store import Store

TREE = "offered"
CONTENTS = [os.urandom(1 << 20) for _ in range(12)]
IDS = [blake3(content) for content in CONTENTS]


class Host(Actor):
    """A host with an exchange; `spoil` changes what it offers."""

    def __init__(self, folder: str, spoil: str) -> None:
        self.store = Store(Path(folder, str(os.getpid())), 1 << 30)
        self.exchange = Exchange(self.store)
        offers = self.exchange._offers
        offer = offers.offer
        if spoil == "ended":

            def ended(id: bytes, content: bytes) -> bytes | None:
                packed = offer(id, content)
                offers._offered[id][0].drop().get()
                return packed

            offers.offer = ended
        elif spoil == "wrong bytes":
            offers.offer = lambda id, content: offer(id, bytes(len(content)))
        elif spoil == "no handle":
            offers.offer = lambda id, content: b"no handle"
        elif spoil == "refused":
            offers.offer = lambda id, content: None

    @endpoint
    async def peer(self) -> Peer:
        return self.exchange.peer()

    @endpoint
    async def join(self, upstreams: list[Peer]) -> None:
        self.exchange.join(TREE, upstreams)

    @endpoint
    async def fetch(self, ids: list[bytes]) -> tuple[dict[bytes, str], int, dict[str, int]]:
        found = await self.exchange.fetch(TREE, ids)
        held = sum(self.store.verify(id) for id in ids)
        return {id: failure.reason for id, failure in found.failed.items()}, held, self.exchange.counters()

    @endpoint
    async def offered(self) -> int:
        return len(self.exchange._offers._offered)

    @endpoint
    async def unreadable(self) -> int:
        return len(self.exchange._unreadable)

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


class Pair:
    """An origin here, a parent below it, and a child of the parent that may ask the origin too."""

    def __init__(self, folder: Path, spoil: str) -> None:
        self.meshes: list[ProcMesh] = [this_host().spawn_procs(name=name) for name in ("parent", "child")]
        self.parent, self.child = (mesh.spawn("host", Host, str(folder), kind) for mesh, kind in zip(self.meshes, (spoil, ""), strict=True))
        self.origin = Origin()
        self.origin.serve(TREE, self._read)
        self.parent.join.call_one([self.origin.peer()]).get()
        self.child.join.call_one([self.parent.peer.call_one().get(), self.origin.peer()]).get()

    def _read(self, ids: Sequence[bytes]) -> list[bytes]:
        return [CONTENTS[IDS.index(id)] for id in ids]

    def close(self) -> None:
        self.origin.close()
        for mesh in self.meshes:
            mesh.stop().get()


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, getattr(request, "param", ""))
    yield made
    made.close()


def test_large_contents_are_offered(pair: Pair) -> None:
    failed, held, counters = pair.child.fetch.call_one(IDS).get()
    assert not failed and held == len(IDS) and counters["bytes_from_hosts"] == len(IDS) << 20 and not counters["repairs"]
    # By the parent to its child, and by this process to the parent, once each.
    assert pair.parent.offered.call_one().get() == len(IDS)
    assert len(pair.origin._offers._offered) == len(IDS)
    assert pair.origin.bytes_sent(TREE) == len(IDS) << 20
    pair.origin.close()
    assert not pair.origin._offers._offered


@pytest.mark.parametrize("pair", ["ended", "no handle", "refused"], indirect=True)
def test_unreadable_offer_is_sent_instead(pair: Pair) -> None:
    failed, held, counters = pair.child.fetch.call_one(IDS).get()
    assert not failed and held == len(IDS)
    assert counters["bytes_from_hosts"] == len(IDS) << 20 and counters["refused"] == 0
    assert pair.child.unreadable.call_one().get() == 0


@pytest.mark.parametrize("pair", ["wrong bytes"], indirect=True)
def test_wrong_bytes_of_an_upstream_are_refused(pair: Pair) -> None:
    failed, held, counters = pair.child.fetch.call_one(IDS).get()
    assert not failed and held == len(IDS)
    assert counters["refused"] == 1 and counters["bytes_from_client"] > 0


def _ignored(failure: object) -> None:
    """The client goes on although a proc was killed."""


def test_killed_upstream_costs_another_request(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", _ignored)
    pid = pair.parent.pid.call_one().get()
    assert not pair.parent.fetch.call_one(IDS).get()[0]
    fetched = pair.child.fetch.call_one(IDS)
    os.kill(pid, signal.SIGKILL)
    failed, held, _ = fetched.get()
    assert not failed and held == len(IDS)


def test_last_contents_stay_offered() -> None:
    offers = Offers(2)
    first, second, third = (bytes([number]) * 32 for number in range(3))
    handles = [offers.offer(id, id * 10_000) for id in (first, second)]
    assert None not in handles and offers.handle(first) == handles[0]
    assert offers.offer(third, third * 10_000) is not None
    assert offers.handle(second) is None and offers.handle(first) == handles[0]
    offers.close()
    assert offers.handle(first) is None and offers.offer(first, first) is None


def test_stopped_process_does_not_block_other_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bytes] = []
    pending: list[Promise[None]] = []
    has_begun = threading.Event()

    class Buffer:
        """Reads of handles that begin with "stopped" never end."""

        def __init__(self, handle: bytes) -> None:
            self.handle = handle

        @classmethod
        def from_bytes(cls, handle: bytes) -> Buffer:
            return cls(handle)

        def size(self) -> int:
            return 4

        def read_into(self, content: memoryview) -> Future[None]:
            started.append(self.handle)
            made: Promise[None] = promise(self.handle.decode())
            if self.handle.startswith(b"stopped"):
                pending.append(made)
            else:
                content[:] = b"text"
                made.set_result(None)
            if self.handle == b"stopped urgent":
                has_begun.set()
            return made.future

    monkeypatch.setattr("monarch.rdma.RDMABuffer", Buffer)
    puller, found = Puller(), queue.SimpleQueue[bytes | None]()
    for number in range(20):
        puller.read("stopped", b"stopped %d" % number, 4, lambda content: found.put(content and bytes(content)))
    puller.read("stopped", b"stopped urgent", 4, lambda content: found.put(content and bytes(content)), urgent=True)
    puller.read("other", b"other", 4, lambda content: found.put(content and bytes(content)))
    assert found.get(timeout=10) == b"text"
    assert len(started) == 9 and b"stopped urgent" not in started
    # The next one to start is the urgent one.
    pending[0].set_exception(OSError("it has ended"))
    assert found.get(timeout=10) is None
    assert has_begun.wait(10) and started[-1] == b"stopped urgent"
    for made in pending[1:]:
        made.set_exception(OSError("it has ended"))


def test_many_invalid_handles_fail_in_order() -> None:
    puller, found = Puller(), list[memoryview | None]()
    with puller._lock:
        # All are present before the first one starts.
        puller._beginning.add("upstream")
    for _ in range(5000):
        puller.read("upstream", b"no handle", 4, found.append)
    assert found == []
    puller._beginning.clear()
    puller._begin("upstream")
    assert found == [None] * 5000 and not puller._waiting and not puller._running


def test_offers_that_no_host_asks_for_end() -> None:
    now = [0.0]
    offers = Offers(8, clock=lambda: now[0])
    first, second = IDS[:2]
    assert offers.offer(first, CONTENTS[0]) and offers.offer(second, CONTENTS[1])
    now[0] = OFFER_SECONDS - 1
    assert offers.handle(first) is not None
    now[0] = OFFER_SECONDS
    offers.expire()
    assert offers.handle(first) is not None and offers.handle(second) is None
    offers.close()
    assert offers.handle(first) is None


def test_contents_that_came_last_are_kept_once() -> None:
    given: list[bytes] = []
    pulled = Pulled(2, lambda content: given.append(bytes(content)))
    for name in (b"a", b"b", b"a", b"c"):
        pulled.keep(name, memoryview(name * 2))
    # The second "a" replaces the first, and "b" was the oldest.
    assert given == [b"aa", b"bb"]
    assert bytes(pulled.take(b"a") or b"") == b"aa" and pulled.take(b"a") is None
    pulled.clear()
    assert pulled.take(b"c") is None
