"""The host's end of the relay: fetches chunks into the store, and answers other hosts from it.

One thread owns the state machines (`relay.py`) and takes events in order: fetches, answers, requests. Worker threads read, verify and
write.
A chunk that another host asks for and that is not here is fetched first, once for all that wait. A content that the store has no room
for is handed on to those that wait for it at that moment: to hosts, and to urgent fetches.
"""

from __future__ import annotations

import errno
import queue
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from monarch.actor import Future
from monarch.extension import Promise, Request, is_ending, promise, serve
from monarch.extension.directory_tree import blake3
from monarch.fs._relay.chunk_protocol import (
    ANSWER_BYTES,
    ChunkAnswer,
    ChunkProtocolError,
    ChunkRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from monarch.fs._relay.failure import FetchFailure
from monarch.fs._relay.handler import handled
from monarch.fs._relay.offer import Offers, Pulled, Puller
from monarch.fs._relay.peer import PREFIX, Peer, PeerEnded, ask_peer, is_near, peer_here
from monarch.fs._relay.relay import KEEPALIVE, Ask, Done, Relay, Serving
from monarch.fs._relay.workers import Workers
from monarch.fs._store.store import Store
from monarch.fs._tree.node import ID_SIZE, WHOLE_BYTES

# Seconds between two checks whether the process is ending.
_LOOK_SECONDS = 1.0
# The most offered contents: as many as all children request at the same time.
_MOST_OFFERED = 192
# The most contents that are kept for the hosts that ask next, out of the pending requests of a host.
_MOST_PULLED = 32
# The most wrong answers that are kept for observers.
_REFUSALS = 64


class Fetched(NamedTuple):
    """What came of a fetch: the rest of its chunks is in the store."""

    failed: dict[bytes, FetchFailure]
    # Contents of an urgent fetch for which the store had no room.
    passed: dict[bytes, bytes]
    # Chunks of another fetch for which the store had no room: they were not kept.
    unstored: frozenset[bytes] = frozenset()


class Refusal(NamedTuple):
    """Why a process is left for another one, or asked after others."""

    tree: str
    sender: Peer
    reason: str


class _Fetch:
    """A fetch that runs; equality by identity: it is a waiter of the relay."""

    def __init__(self, tree: str, ids: Iterable[bytes], urgent: bool, bulk: bool) -> None:
        self.urgent, self.bulk = urgent, bulk
        self.left = set(ids)
        self.failed: dict[bytes, FetchFailure] = {}
        self.passed: dict[bytes, bytes] = {}
        self.unstored: set[bytes] = set()
        self.promise: Promise[Fetched] = promise(f"chunks of the tree {tree[:8]}")

    def finish(self) -> None:
        if not self.promise.is_set():
            self.promise.set_result(Fetched(self.failed, self.passed, frozenset(self.unstored)))


class _Served:
    """A request of another host that waits for chunks."""

    def __init__(self, request: Request, asked: ChunkRequest) -> None:
        self.request, self.asked = request, asked
        self.failures: dict[bytes, FetchFailure] = {}
        self.passed: dict[bytes, bytes | memoryview] = {}


class _Answered:
    """An answer of which contents are still to be read from the memory of the upstream."""

    def __init__(self) -> None:
        self.sizes: dict[bytes, int] = {}
        self.failures: dict[bytes, FetchFailure] = {}
        self.unstored: dict[bytes, bytes | memoryview] = {}
        # Failures of this host itself, for which no other upstream helps.
        self.unwritten: dict[bytes, FetchFailure] = {}
        self.left = 0
        self.wrong = False


class Exchange:
    """One in the service process of a host; thread safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = f"{PREFIX}{secrets.token_hex(16)}"
        self._relay, self._serving = Relay(), Serving()
        self._events: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._workers = Workers(3, "monarch-fs-exchange")
        self._offers, self._puller = Offers(_MOST_OFFERED), Puller()
        self._pulled_last = Pulled(_MOST_PULLED, self._puller.give_back)
        # Chunks whose handle could not be used: their content is requested.
        self._unreadable: set[bytes] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[_Fetch] = set()
        # The last upstream of each tree is the client.
        self._clients: dict[str, Peer] = {}
        self._joined: set[str] = set()
        self._counters = dict.fromkeys(
            ("bytes_from_hosts", "bytes_from_client", "bytes_served", "requests", "answers", "chunks", "unstored", "bytes_unstored"), 0
        )
        # Contents of the current answer for which the store had no room.
        self._unstored: dict[bytes, bytes | memoryview] = {}
        self._refusals: deque[Refusal] = deque(maxlen=_REFUSALS)
        handler = weakref.WeakMethod(self._asked)
        serve(self._name, lambda request: handled(handler, request))
        self._thread = threading.Thread(target=self._run, name="monarch-fs-relay", daemon=True)
        self._thread.start()

    def peer(self) -> Peer:
        """Where other hosts ask this one."""
        return peer_here(self._name)

    def join(self, tree: str, upstreams: Sequence[Peer], chain: Sequence[Peer] = ()) -> None:
        """Chunks of the tree may be fetched, from these in order, and asked for by others. Again: the list replaces the one before.

        `chain`: the order for pieces of large files, if it is another one.
        """
        ordered = [Peer(*peer) for peer in upstreams]
        chained = [Peer(*peer) for peer in chain]
        with self._lock:
            self._joined.add(tree)
            if ordered:
                self._clients[tree] = ordered[-1]
        self._events.put(lambda: self._join(tree, ordered, chained))

    def _join(self, tree: str, upstreams: Sequence[Peer], chain: Sequence[Peer]) -> None:
        self._relay.join(tree, upstreams, chain)
        for key in self._serving.joined(tree):
            if isinstance(key, _Served):
                self._begin_serving(key)

    def leave(self, tree: str) -> None:
        """Fetches of the tree fail, requests for it are refused."""
        with self._lock:
            self._joined.discard(tree)
            self._clients.pop(tree, None)
        self._events.put(lambda: self._leave(tree))

    def _leave(self, tree: str) -> None:
        self._relay.leave(tree)
        self._serving.left(tree)

    def fetch(self, tree: str, ids: Sequence[bytes], *, urgent: bool = False, bulk: bool = False) -> Future[Fetched]:
        """Brings chunks into the store; done when each is there, has failed, or was passed on. Urgent ones overtake others.

        `bulk`: pieces of large files, which come down the chain of hosts.

        A chunk of an urgent fetch that is in the store is verified there, and fetched anew where it is damaged. `ValueError` for a
        malformed identity, `LookupError` for a tree that was not joined.
        """
        if any(len(id) != ID_SIZE for id in ids):
            raise ValueError(f"fetch: an identity has {ID_SIZE} bytes")
        with self._lock:
            if tree not in self._joined and not self._closed:
                raise LookupError(f"fetch: the tree {tree[:8]} was not joined")
            found = _Fetch(tree, ids, urgent, bulk)
            if self._closed:
                found.failed = dict.fromkeys(ids, FetchFailure(errno.EIO, "the service ends"))
                found.finish()
                return found.promise.future
            self._running.add(found)
        self._workers.run(lambda: self._begin(found, tree, ids), urgent=urgent)
        return found.promise.future

    def counters(self) -> dict[str, int]:
        """Bytes of contents from hosts, from the client, and served to hosts; requests, repairs, refused upstreams."""
        with self._lock:
            return self._counters | {"repairs": self._relay.repairs, "refused": self._relay.refused}

    def refusals(self) -> list[Refusal]:
        """Since the last call; the last ones where they are many."""
        with self._lock:
            found, self._refusals = list(self._refusals), deque(maxlen=_REFUSALS)
            return found

    def close(self) -> None:
        """Fails what runs, and ends the threads."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._joined.clear()
        self._events.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(5)
        self._workers.close()
        self._offers.close()
        self._pulled_last.clear()
        self._fail_all()

    def _fail_all(self) -> None:
        with self._lock:
            running, self._running = self._running, set()
        for fetch in running:
            fetch.failed |= dict.fromkeys(fetch.left, FetchFailure(errno.EIO, "the service ends"))
            fetch.finish()

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=self._wait())
            except queue.Empty:
                event = _nothing
            if event is None or (event is _nothing and is_ending()):
                self._fail_all()
                return
            event()
            self._settle()
            if event is _nothing:
                self._release()

    def _release(self) -> None:
        """Nothing has come for a moment: memory of contents that are not asked for is free."""
        self._pulled_last.clear()
        self._offers.expire()

    def _wait(self) -> float:
        deadlines = [at for at in (self._relay.deadline(), self._serving.deadline()) if at is not None]
        return min(max(min(deadlines) - time.monotonic(), 0.0), _LOOK_SECONDS) if deadlines else _LOOK_SECONDS

    def _settle(self) -> None:
        """What follows from an event: outcomes, answers that are due, requests to send."""
        now = time.monotonic()
        while True:
            for ask in self._relay.ready(now):
                self._send(ask)
            done = self._relay.finished()
            if not done:
                break
            self._finish(done)
        self._unstored = {}
        for key, tree, ids in self._serving.due(now):
            self._relay.unwait(tree, ids, key)
            if isinstance(key, _Served):
                self._reply(key)
        for key in self._serving.unjoined(now):
            if isinstance(key, _Served):
                _refuse(key)

    def _finish(self, outcomes: Iterable[Done]) -> None:
        replies: dict[_Served, None] = {}
        for done in outcomes:
            content = self._unstored.get(done.id)
            ready = self._serving.done(done)
            for waiter in done.waiters:
                if isinstance(waiter, _Fetch):
                    self._count(waiter, done, content)
                elif isinstance(waiter, _Served):
                    if done.failure is not None:
                        waiter.failures[done.id] = done.failure
                    elif content is not None:
                        waiter.passed[done.id] = content
            replies.update((key, None) for key in ready if isinstance(key, _Served))
        for served in replies:
            self._reply(served)

    def _count(self, fetch: _Fetch, done: Done, content: bytes | memoryview | None) -> None:
        if done.failure is not None:
            fetch.failed[done.id] = done.failure
        elif content is not None and fetch.urgent:
            fetch.passed[done.id] = bytes(content)
        elif content is not None:
            fetch.unstored.add(done.id)
        fetch.left.discard(done.id)
        if not fetch.left:
            self._end(fetch)

    def _end(self, fetch: _Fetch) -> None:
        with self._lock:
            self._running.discard(fetch)
        fetch.finish()

    def _begin(self, fetch: _Fetch, tree: str, ids: Sequence[bytes]) -> None:
        """On a worker: what is missing."""
        try:
            missing = self._store.missing(dict.fromkeys(ids))
            if fetch.urgent:
                held = set(ids) - set(missing)
                missing += [id for id in held if any(id) and not self._store.verify(id)]
        except OSError as e:
            fetch.failed = dict.fromkeys(ids, FetchFailure(e.errno or errno.EIO, f"the store cannot be read: {e}"))
            missing = []
        if missing:
            self._events.put(lambda: self._want(fetch, tree, missing))
        else:
            self._end(fetch)

    def _want(self, fetch: _Fetch, tree: str, missing: Sequence[bytes]) -> None:
        # An answer in the meantime may have delivered some of them.
        missing = self._store.missing(missing)
        if not missing:
            self._end(fetch)
        elif self._relay.has_tree(tree):
            fetch.left = set(missing)
            self._relay.want(tree, missing, fetch, urgent=fetch.urgent, bulk=fetch.bulk)
        else:
            fetch.failed = dict.fromkeys(missing, FetchFailure(errno.EIO, "the mount has been closed"))
            self._end(fetch)

    def _send(self, ask: Ask) -> None:
        upstream = ask.upstream
        assert isinstance(upstream, Peer)
        with self._lock:
            self._counters["requests"] += 1
        try:
            offer = self._unreadable.isdisjoint(ask.ids)
            request = ChunkRequest(ask.tree, ask.ids, ask.urgent, compress=not is_near(upstream), offer=offer, bulk=ask.bulk)
            at = time.monotonic()
            ask_peer(upstream, encode_request(request), lambda answer: self._events.put(lambda: self._arrived(ask, request, at, answer)))
        except PeerEnded:
            self._relay.ended(upstream)

    def _arrived(self, ask: Ask, request: ChunkRequest, at: float, answer: bytes | Exception) -> None:
        upstream = ask.upstream
        assert isinstance(upstream, Peer)
        if isinstance(answer, PeerEnded):
            self._relay.ended(upstream)
        elif isinstance(answer, Exception):
            self._relay.unjoined(ask.number, time.monotonic())
        else:
            self._relay.progressed(upstream, time.monotonic())
            waited = time.monotonic() - at
            self._workers.run(lambda: self._take(ask, upstream, request, waited, answer), urgent=ask.urgent)

    def _take(self, ask: Ask, upstream: Peer, request: ChunkRequest, waited: float, raw: bytes) -> None:
        """On a worker: verifies and stores an answer that came after so many seconds, and reads what is offered."""
        taken = _Answered()
        known = True
        offered: list[tuple[bytes, int, bytes]] = []
        try:
            answer = decode_answer(raw)
            # A host that takes part has something, or waits for it.
            known = answer.known and bool(answer.contents or answer.offered or answer.failures or waited >= KEEPALIVE / 2)
            asked = set(ask.ids)
            taken.failures = {id: failure for id, failure in answer.failures.items() if id in asked}
            if not asked.issuperset(answer.contents) or not asked.issuperset(answer.offered):
                raise ChunkProtocolError("a chunk that was not asked for")
            if answer.offered and not request.offer:
                raise ChunkProtocolError("a handle in the place of a content that was asked for")
            for id, content in answer.contents.items():
                self._keep(taken, id, content)
            offered = [(id, size, handle) for id, (size, handle) in answer.offered.items()]
        except ValueError:  # also from `put`: the content does not have its id
            taken.wrong = True
        except OSError as e:
            taken.unwritten = _unwritten(e, [id for id in ask.ids if id not in taken.sizes])
        if not offered or taken.wrong:
            self._events.put(lambda: self._taken(ask, upstream, taken, known=known))
            return
        taken.left = len(offered)
        for id, size, handle in offered:
            self._puller.read(
                upstream, handle, size, lambda content, id=id: self._pulled(ask, upstream, taken, id, content), urgent=ask.urgent
            )

    def _keep(self, taken: _Answered, id: bytes, content: bytes | memoryview) -> None:
        """On a worker. `ValueError` where it is not the content of its id."""
        if not self._put(id, content):
            taken.unstored[id] = content
        taken.sizes[id] = len(content)

    def _pulled(self, ask: Ask, upstream: Peer, taken: _Answered, id: bytes, content: memoryview | None) -> None:
        """On any thread: a content was read from the memory of the upstream, or could not be."""

        def keep() -> None:
            if content is None:
                with self._lock:
                    self._unreadable.add(id)
            else:
                try:
                    self._keep(taken, id, content)
                except ValueError:
                    taken.wrong = True
                except OSError as e:
                    taken.unwritten |= _unwritten(e, [id])
                if id in taken.sizes and id not in taken.unstored:
                    self._pulled_last.keep(id, content)
            with self._lock:
                taken.left -= 1
                complete = not taken.left
            if complete:
                self._events.put(lambda: self._taken(ask, upstream, taken, known=True))
            elif content is not None:
                self._events.put(lambda: self._relay.progressed(upstream, time.monotonic()))

        self._workers.run(keep, urgent=ask.urgent)

    def _put(self, id: bytes, content: bytes | memoryview) -> bool:
        if self._store.put(id, content):
            return True
        if blake3(content) != id:  # no room, and not verified
            raise ValueError(id.hex())
        return False

    def _taken(self, ask: Ask, upstream: Peer, taken: _Answered, *, known: bool) -> None:
        """An answer is complete."""
        kind = "bytes_from_client" if self._clients.get(ask.tree) == upstream else "bytes_from_hosts"
        with self._lock:
            self._counters[kind] += sum(taken.sizes.values())
            self._counters["chunks"] += len(taken.sizes)
            self._counters["unstored"] += len(taken.unstored)
            self._counters["bytes_unstored"] += sum(map(len, taken.unstored.values()))
            self._unreadable.difference_update(taken.sizes, taken.failures, taken.unwritten)
            if taken.wrong:
                self._refusals.append(Refusal(ask.tree, upstream, "its bytes are not the content that was asked for"))
        self._unstored = taken.unstored
        for id, failure in taken.unwritten.items():
            self._relay.failed(ask.tree, id, failure)
        if known:
            self._relay.answered(ask.number, taken.sizes, taken.failures, time.monotonic())
        else:
            self._relay.unjoined(ask.number, time.monotonic())
        with self._lock:
            for tree, slow in self._relay.withheld:
                assert isinstance(slow, Peer)
                self._refusals.append(Refusal(tree, slow, "it had nothing yet for so long that others are asked"))
        self._relay.withheld.clear()
        if taken.wrong:
            self._relay.wrong(upstream)

    def _asked(self, request: Request) -> None:
        """On the extension thread: a request of another host."""
        try:
            asked = decode_request(request.body)
        except ValueError as e:
            request.fail(str(e).encode())
            return
        served = _Served(request, asked)
        with self._lock:
            joined = asked.tree in self._joined
        if joined:
            self._begin_serving(served)
        else:
            self._events.put(lambda: self._asked_early(served))

    def _asked_early(self, served: _Served) -> None:
        """A request of a tree that this host may join yet."""
        tree = served.asked.tree
        if self._relay.has_tree(tree):
            self._begin_serving(served)
        elif not self._serving.early(served, tree, time.monotonic()):
            _refuse(served)

    def _begin_serving(self, served: _Served) -> None:
        self._workers.run(lambda: self._serve(served, wait=True), urgent=served.asked.urgent)

    def _reply(self, served: _Served) -> None:
        self._workers.run(lambda: self._serve(served, wait=False), urgent=served.asked.urgent)

    def _serve(self, served: _Served, *, wait: bool) -> None:
        """On a worker: answers with what is here; with `wait`, what is not is fetched, and the answer waits where nothing is here."""
        asked = served.asked
        contents: dict[bytes, bytes | memoryview] = {}
        offered: dict[bytes, tuple[int, bytes]] = {}
        missing: list[bytes] = []
        size = 0
        for id in asked.ids:
            content = served.passed.get(id)
            if content is None and asked.offer and (offer := self._offer(id)) is not None:
                offered[id] = offer
                continue
            if content is not None and size and size + len(content) > ANSWER_BYTES:
                continue
            if content is None and id not in served.failures:
                if size >= ANSWER_BYTES and not wait:
                    break
                held = self._store.size(id)
                if size and size + (held or 0) > ANSWER_BYTES:
                    continue
                content = self._store.read(id, 0, held if held is not None else ANSWER_BYTES)
            if content is not None:
                contents[id] = content
                size += len(content)
            elif id not in served.failures and any(id):
                missing.append(id)
        if wait and missing:
            waits = not contents and not offered
            self._events.put(lambda: self._pull(served, missing, waits=waits))
            if waits:
                return
        with self._lock:
            self._counters["answers"] += 1
            self._counters["bytes_served"] += size + sum(length for length, _ in offered.values())
        served.request.answer(encode_answer(ChunkAnswer(contents, served.failures, offered=offered), compress=asked.compress))

    def _offer(self, id: bytes) -> tuple[int, bytes] | None:
        """The size and the handle of a large content that is here."""
        held = self._store.size(id)
        if held is None or held <= WHOLE_BYTES:
            return None
        handle = self._offers.handle(id)
        if handle is None:
            # A new content is in memory, and verified.
            content = self._pulled_last.take(id) or self._store.read(id, 0, held)
            handle = None if content is None else self._offers.offer(id, content)
        return None if handle is None else (held, handle)

    def _pull(self, served: _Served, missing: Sequence[bytes], *, waits: bool) -> None:
        tree = served.asked.tree
        if not self._relay.has_tree(tree):
            if waits:
                self._asked_early(served)
            return
        # An answer in the meantime may have delivered some of them.
        still = self._store.missing(missing)
        waits_on = waits and len(still) == len(missing)
        asked = served.asked
        self._relay.want(tree, still, served if waits_on else None, urgent=asked.urgent, bulk=asked.bulk)
        if waits and not waits_on:
            self._reply(served)
        elif waits:
            self._serving.asked(served, tree, missing, time.monotonic())


def _refuse(served: _Served) -> None:
    """The answer of a host that is not in the tree."""
    served.request.answer(encode_answer(ChunkAnswer({}, {}, known=False)))


def _unwritten(error: OSError, ids: Iterable[bytes]) -> dict[bytes, FetchFailure]:
    failure = FetchFailure(error.errno or errno.EIO, f"the store cannot be written: {error}")
    return dict.fromkeys(ids, failure)


def _nothing() -> None:
    """The event of a deadline."""


__all__ = ["Exchange", "FetchFailure", "Fetched", "Peer", "Refusal"]
