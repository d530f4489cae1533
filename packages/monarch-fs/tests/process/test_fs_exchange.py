"""Exchanges in processes: chunks go down a tree of procs, around a process that is killed, stopped, wrong, or gone."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.extension import serve
from monarch.extension.directory_tree import blake3
from monarch.fs._relay.chunk_protocol import ChunkAnswer, ChunkRequest, decode_request, encode_answer
from monarch.fs._relay.exchange import Exchange, Peer, Refusal
from monarch.fs._relay.failure import FetchFailure
from monarch.fs._relay.host_tree import CLIENT, upstreams_of
from monarch.fs._relay.origin import Origin
from monarch.fs._relay.peer import peer_here
from monarch.fs._store.store import Store
from tools.frozen import freeze

TREE = "0123456789abcdef"


# Answers of an upstream that violates the protocol.
HOSTILE: dict[str, Callable[[ChunkRequest], bytes]] = {
    "nothing": lambda _: encode_answer(ChunkAnswer({}, {})),
    "garbage": lambda _: b"\xff" * 50,
    "refusal": lambda asked: encode_answer(ChunkAnswer({}, dict.fromkeys(asked.ids, FetchFailure(5, "source left", final=True)))),
    "zero": lambda asked: encode_answer(ChunkAnswer({}, dict.fromkeys(asked.ids, FetchFailure(0, "success", final=True)))),
    "handles": lambda asked: encode_answer(ChunkAnswer({}, {}, offered=dict.fromkeys(asked.ids, (1000, b"?" * 200)))),
    "long": lambda asked: encode_answer(ChunkAnswer(dict.fromkeys(asked.ids, b"?" * 5000), {})),
    "others": lambda _: encode_answer(ChunkAnswer({b"?" * 32: b"?"}, {})),
}


class Failed(NamedTuple):
    paths: list[str]
    reason: str
    stale: bool


class Source:
    """Contents in memory, and how often each was read."""

    def __init__(self, contents: Sequence[bytes]) -> None:
        self.contents = {blake3(content): content for content in contents}
        self.reads: list[bytes] = []

    def read(self, ids: Sequence[bytes]) -> list[bytes | Failed]:
        self.reads += ids
        return [self.contents.get(id, Failed(["a/file"], "it has changed", True)) for id in ids]


class HostService(Actor):
    def __init__(self, folder: str, limit: int = 1 << 30) -> None:
        self.store = Store(Path(folder, str(os.getpid())), limit)
        self.exchange = Exchange(self.store)
        self.wrong = Origin()

    @endpoint
    async def peer(self) -> Peer:
        return self.exchange.peer()

    @endpoint
    async def wrong_peer(self) -> Peer:
        self.wrong.serve(TREE, lambda ids: [b"not the content"] * len(ids))
        return self.wrong.peer()

    @endpoint
    async def hostile_peer(self, how: str) -> Peer:
        serve(f"hostile.{how}", lambda request: request.answer(HOSTILE[how](decode_request(request.body))))
        return peer_here(f"hostile.{how}")

    @endpoint
    async def join(self, upstreams: list[Peer]) -> None:
        self.exchange.join(TREE, upstreams)

    @endpoint
    async def fetch(self, ids: list[bytes], urgent: bool = False) -> tuple[dict[bytes, str], dict[bytes, bytes], int]:
        found = await self.exchange.fetch(TREE, ids, urgent=urgent)
        return {id: failure.reason for id, failure in found.failed.items()}, found.passed, len(found.unstored)

    @endpoint
    async def begin(self, ids: list[bytes]) -> None:
        # A waiting endpoint would delay the following ones.
        self.begun = self.exchange.fetch(TREE, ids)

    @endpoint
    async def begun_failures(self) -> dict[bytes, str]:
        return {id: failure.reason for id, failure in (await self.begun).failed.items()}

    @endpoint
    async def held(self, ids: list[bytes]) -> int:
        return sum(self.store.verify(id) for id in ids)

    @endpoint
    async def counters(self) -> dict[str, int]:
        return self.exchange.counters()

    @endpoint
    async def refusals(self) -> list[Refusal]:
        return self.exchange.refusals()

    @endpoint
    async def break_store(self) -> None:
        def put(id: bytes, content: bytes | memoryview) -> bool:
            raise OSError(errno.EIO, "the disk")

        self.store.put = put  # pyright: ignore[reportAttributeAccessIssue]

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def end(self) -> None:
        self.exchange.close()


class Procs:
    """Procs with an exchange each, joined to a tree below an origin of this process."""

    def __init__(self, count: int, folder: Path, fanout: int = 1, limit: int = 1 << 30) -> None:
        # One mesh per host: killing one does not end the others.
        self.meshes: list[ProcMesh] = [this_host().spawn_procs(name=f"host{rank}") for rank in range(count)]
        self.services = [mesh.spawn("service", HostService, str(folder), limit) for mesh in self.meshes]
        self.peers = [service.peer.call_one().get() for service in self.services]
        self.origin = Origin()
        self.join(
            [[self.origin.peer() if rank == CLIENT else self.peers[rank] for rank in upstreams_of(i, count, fanout)] for i in range(count)]
        )

    def join(self, upstreams: Sequence[list[Peer]]) -> None:
        for service, peers in zip(self.services, upstreams, strict=True):
            service.join.call_one(peers).get()

    def close(self) -> None:
        self.origin.close()
        for mesh in self.meshes:
            mesh.stop().get()


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Procs]:
    procs = Procs(4, tmp_path)
    yield procs
    procs.close()


def _ignored(failure: object) -> None:
    """The client goes on although a proc was killed."""


def noise(count: int, size: int) -> Source:
    return Source([os.urandom(size) for _ in range(count)])


def test_chunks_go_down_a_chain(four: Procs) -> None:
    source = Source([b"%d text\n" % number * 100 for number in range(2000)] + [os.urandom(1 << 20) for _ in range(20)])
    four.origin.serve(TREE, source.read)
    ids = list(source.contents)
    fetches = [service.fetch.call_one(ids) for service in four.services]
    assert [fetch.get() for fetch in fetches] == [({}, {}, 0)] * 4
    assert [service.held.call_one(ids).get() for service in four.services] == [len(ids)] * 4
    total = sum(map(len, source.contents.values()))
    assert four.origin.bytes_sent(TREE) == total
    for rank, service in enumerate(four.services):
        counters = service.counters.call_one().get()
        assert (counters["bytes_from_client"], counters["bytes_from_hosts"]) == ((total, 0) if rank == 0 else (0, total))
        assert counters["refused"] == counters["repairs"] == 0
    # All contents are here: nothing is requested.
    four.origin.withdraw(TREE)
    assert four.services[3].fetch.call_one(ids).get() == ({}, {}, 0)


def test_read_pulls_through_all_hosts(four: Procs) -> None:
    source = noise(3, 5000)
    four.origin.serve(TREE, source.read)
    [id, *_] = source.contents
    assert four.services[3].fetch.call_one([id], True).get() == ({}, {}, 0)
    assert [service.held.call_one([id]).get() for service in four.services] == [1] * 4
    assert four.origin.bytes_sent(TREE) == 5000


def test_killed_parent_is_repaired(four: Procs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", _ignored)
    source = noise(100, 1 << 20)
    four.origin.serve(TREE, source.read)
    ids = list(source.contents)
    pid = four.services[1].pid.call_one().get()
    for rank in (2, 3):
        four.services[rank].begin.call_one(ids).get()
    assert four.services[3].fetch.call_one(ids[:1], True).get() == ({}, {}, 0)
    os.kill(pid, signal.SIGKILL)
    assert [four.services[rank].begun_failures.call_one().get() for rank in (2, 3)] == [{}, {}]
    assert [four.services[rank].held.call_one(ids).get() for rank in (2, 3)] == [100, 100]
    assert four.origin.bytes_sent(TREE) <= 2 * (100 << 20)
    assert four.services[3].counters.call_one().get()["repairs"] == 0


def test_stopped_parent_is_passed(four: Procs) -> None:
    source = noise(10, 10_000)
    four.origin.serve(TREE, source.read)
    ids = list(source.contents)
    pid = four.services[1].pid.call_one().get()
    freeze(pid)
    try:
        assert four.services[3].fetch.call_one(ids, True).get() == ({}, {}, 0)
        assert four.services[2].counters.call_one().get()["repairs"] > 0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert four.services[1].fetch.call_one(ids).get() == ({}, {}, 0)


def test_wrong_bytes_drop_the_upstream(four: Procs) -> None:
    source = noise(10, 10_000)
    four.origin.serve(TREE, source.read)
    ids = list(source.contents)
    wrong = four.services[1].wrong_peer.call_one().get()
    four.services[2].join.call_one([wrong, four.origin.peer()]).get()
    assert four.services[2].fetch.call_one(ids).get() == ({}, {}, 0)
    counters = four.services[2].counters.call_one().get()
    assert counters["refused"] == 1 and counters["bytes_from_client"] == 100_000
    refusals = four.services[2].refusals.call_one().get()
    assert refusals and all(refusal[:2] == (TREE, wrong) for refusal in refusals)
    assert four.services[2].refusals.call_one().get() == []
    assert four.services[2].held.call_one(ids).get() == 10


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_upstream_is_passed(four: Procs, how: str) -> None:
    source = noise(10, 10_000)
    four.origin.serve(TREE, source.read)
    ids = list(source.contents)
    four.services[2].join.call_one([four.services[1].hostile_peer.call_one(how).get(), four.origin.peer()]).get()
    assert four.services[2].fetch.call_one(ids, True).get() == ({}, {}, 0)
    # The child of that host is not affected.
    assert four.services[3].fetch.call_one(ids).get() == ({}, {}, 0)
    assert [four.services[rank].held.call_one(ids).get() for rank in (2, 3)] == [10, 10]


def test_host_that_cannot_store_refuses_no_file(four: Procs) -> None:
    source = noise(3, 1000)
    four.origin.serve(TREE, source.read)
    ids = list(source.contents)
    four.services[2].break_store.call_one().get()
    failed, _, _ = four.services[2].fetch.call_one(ids, True).get()
    assert failed == dict.fromkeys(ids, "the store cannot be written: [Errno 5] the disk")
    assert four.services[3].fetch.call_one(ids, True).get() == ({}, {}, 0)


def test_changed_file_fails_with_its_reason(four: Procs) -> None:
    source = noise(2, 1000)
    four.origin.serve(TREE, source.read)
    ids = [*source.contents, b"?" * 32]
    failed, _, _ = four.services[3].fetch.call_one(ids, True).get()
    assert failed == {b"?" * 32: "it has changed"}
    # Each host gets it from the client itself, and requests it once.
    assert source.reads.count(b"?" * 32) == 4


def test_gone_source_fails_what_is_missing(four: Procs) -> None:
    source = noise(2, 1000)
    four.origin.serve(TREE, source.read)
    first, second = source.contents
    four.services[0].fetch.call_one([first]).get()
    four.origin.withdraw(TREE)
    failed, _, _ = four.services[3].fetch.call_one([first, second]).get()
    assert failed == {second: "source left"} and four.services[3].held.call_one([first]).get() == 1


def test_killed_origin_fails_promptly(four: Procs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", _ignored)
    other = this_host().spawn_procs(name="origin")
    service = other.spawn("service", HostService, str(tmp_path))
    four.services[0].join.call_one([service.wrong_peer.call_one().get()]).get()
    os.kill(service.pid.call_one().get(), signal.SIGKILL)
    failed, _, _ = four.services[3].fetch.call_one([b"x" * 32], True).get()
    assert list(failed) == [b"x" * 32]
    failed, _, _ = four.services[0].fetch.call_one([b"x" * 32], True).get()
    assert failed == {b"x" * 32: "source left"}


def test_closed_exchange_fails_what_runs(four: Procs) -> None:
    pid = four.services[2].pid.call_one().get()
    freeze(pid)
    try:
        four.services[3].join.call_one([four.peers[2]]).get()
        four.services[3].begin.call_one([b"x" * 32]).get()
        four.services[3].end.call_one().get()
        assert four.services[3].begun_failures.call_one().get() == {b"x" * 32: "the service ends"}
        failed, _, _ = four.services[3].fetch.call_one([b"y" * 32]).get()
        assert failed == {b"y" * 32: "the service ends"}
    finally:
        os.kill(pid, signal.SIGCONT)


def test_tree_that_was_not_joined_is_refused(four: Procs, tmp_path: Path) -> None:
    source = noise(1, 1000)
    four.origin.serve(TREE, source.read)
    ids = list(source.contents)
    four.services[0].fetch.call_one(ids).get()
    store = Store(tmp_path / "own", 1 << 20)
    exchange = Exchange(store)
    with pytest.raises(LookupError, match="another"):
        exchange.fetch("another", ids)
    # The host has the chunk, but not this tree.
    exchange.join("another", [four.peers[0]])
    found = exchange.fetch("another", ids).get()
    assert list(found.failed) == ids and not store.has(ids[0])
    exchange.join("another", [four.origin.peer()])
    assert exchange.fetch("another", ids).get().failed[ids[0]].reason == "source left"
    exchange.close()
    store.close()


def test_late_host_gets_its_chunks_from_its_parent(four: Procs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The order of a push reaches a child before its parent. A machine that is suspended for a moment changes nothing here.
    monkeypatch.setattr("monarch.fs._relay.relay.KEEPALIVE", 20.0)
    monkeypatch.setattr("monarch.fs._relay.relay.SILENCE", 30.0)
    source = noise(3, 5000)
    four.origin.serve(TREE, source.read)
    ids = list(source.contents)
    stores = [Store(tmp_path / name, 1 << 20) for name in ("parent", "child")]
    parent, child = (Exchange(store) for store in stores)
    child.join(TREE, [parent.peer(), four.origin.peer()])
    fetch = child.fetch(TREE, ids)
    while child.counters()["requests"] < 1:  # polls: there is no event for a sent request
        time.sleep(0.002)  # sleeps: between two looks
    with pytest.raises(TimeoutError):
        fetch.get(timeout=0.2)
    parent.join(TREE, [four.origin.peer()])
    assert fetch.get(timeout=20).failed == {}
    assert (child.counters()["bytes_from_client"], four.origin.bytes_sent(TREE)) == (0, 15_000)
    # A request for the tree that it left is refused at once: the limit above would end the test.
    parent.leave(TREE)
    child.join(TREE, [parent.peer()])
    assert list(child.fetch(TREE, [b"?" * 32]).get(timeout=15).failed) == [b"?" * 32]
    for exchange, store in zip((parent, child), stores, strict=True):
        exchange.close()
        store.close()


def test_full_store_passes_contents_on(tmp_path: Path) -> None:
    procs = Procs(3, tmp_path, limit=1000)
    try:
        source = noise(5, 20_000)
        procs.origin.serve(TREE, source.read)
        ids = list(source.contents)
        failed, passed, unstored = procs.services[2].fetch.call_one(ids, True).get()
        assert (failed, passed, unstored) == ({}, source.contents, 0)
        assert procs.services[2].fetch.call_one(ids).get() == ({}, {}, 5)
    finally:
        procs.close()
