"""Which upstream a host asks for which chunk, and when: no input or output, and the caller's clock.

Each tree has an ordered list of upstreams, and another order for pieces of large files that no read waits for (`bulk`). A chunk that is
wanted is asked of the first usable one. Wants of one chunk share one request.
Up to `WINDOW` requests are in flight; the last quarter is for urgent ones (reads), which go before pushed ones. A request has as many ids
as make about a MiB by the mean size of the tree's chunks so far.

An upstream is left in five cases:
- It has ended, or has sent a content that does not hash to its id: it is removed from all lists.
- It has not joined the tree within `KEEPALIVE` seconds: others are asked for a second, and after three times it is removed from the list
  of this tree.
- It has been silent for `SILENCE` seconds with a request outstanding: what it was asked for goes to the next one, and it is asked no more
  until it has answered. Its late answers count. Where no other is left, the host waits for it.
- It has failed for this chunk: the next one is asked for this chunk alone. A failure of the client is final. That of a host
  is not: the client is asked next.
- It has answered for `_EMPTY_TIMEOUTS` seconds that it has nothing yet: the next one is asked for this chunk, and this one last for a
  while. The client is never left so. When it answers again after a silence, for which hosts could do nothing, all start anew.

A healthy upstream that waits for a chunk itself answers with nothing within `KEEPALIVE` seconds, so silence means a stopped process.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from monarch.fs._relay.failure import FetchFailure

WINDOW = 64
SILENCE = 2.0
KEEPALIVE = 0.75
_COOL = 1.0
# Seconds for which a host may have no content yet, by whether a read waits: for a host that gave no content in this time, and for one that
# did.
_EMPTY_TIMEOUTS = {True: (10.0, 30.0), False: (60.0, float("inf"))}
# Seconds for which such a host is asked after all others.
_SLOW_SECONDS = 60.0
# Seconds for which a failure of the client answers all requests for the chunk, and the most failures that are kept.
_KNOWN_SECONDS = 2.0
_MOST_KNOWN = 4096
_STRIKES = 3
_TARGET_BYTES = 1 << 20
_URGENT_IDS = 8
_MOST_IDS = 512
# The most requests that wait for a tree: as many as a child has in flight, for each of some hundred children of one host.
_MOST_EARLY = 8192
# The most trees left by this host that are kept, newest last.
_MOST_LEFT = 256


class Ask(NamedTuple):
    """A request to send."""

    number: int
    upstream: Hashable
    tree: str
    ids: tuple[bytes, ...]
    urgent: bool
    bulk: bool = False


class Done(NamedTuple):
    """A chunk that has come, or not."""

    tree: str
    id: bytes
    waiters: list[Hashable]
    failure: FetchFailure | None


@dataclass(slots=True)
class _Want:
    urgent: bool
    bulk: bool = False
    waiters: list[Hashable] = field(default_factory=list[Hashable])
    tried: set[Hashable] = field(default_factory=set[Hashable])
    # The number of its pending request; 0: it is queued or parked.
    number: int = 0
    failure: FetchFailure | None = None
    # The upstream of the last request, and the time of the first request to it.
    holder: Hashable = None
    since: float = 0.0


@dataclass(slots=True)
class _Tree:
    upstreams: list[Hashable]
    # The same in the order for pieces of large files.
    chain: list[Hashable]
    # The last upstream, even after its end.
    client: Hashable
    wants: dict[bytes, _Want] = field(default_factory=dict[bytes, _Want])
    urgent: deque[bytes] = field(default_factory=deque[bytes])
    pushed: deque[bytes] = field(default_factory=deque[bytes])
    parked: list[bytes] = field(default_factory=list[bytes])
    # The time until which an upstream that has not joined gets no requests, and how often that happened.
    cool: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    strikes: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    # Failures of the client, and the times at which they expire: a host that had a part of an answer asks again.
    known: dict[bytes, tuple[FetchFailure, float]] = field(default_factory=dict[bytes, tuple[FetchFailure, float]])
    # The time until which an upstream is asked last.
    slow: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    mean: float = 128 << 10
    gone: str = "no upstream is left"

    def order(self, want: _Want) -> list[Hashable]:
        return self.chain if want.bulk and not want.urgent else self.upstreams

    def remove(self, upstream: Hashable) -> None:
        for order in (self.upstreams, self.chain):
            if upstream in order:
                order.remove(upstream)


@dataclass(slots=True)
class _Sent:
    upstream: Hashable
    tree: str
    ids: tuple[bytes, ...]
    at: float
    arrived: bool = False
    # The upstream is silent: the request does not count in the window.
    late: bool = False


@dataclass(slots=True)
class _Upstream:
    last_progress: float = float("-inf")
    # The time of its last content.
    gave: float = float("-inf")
    silent: bool = False
    sent: dict[int, None] = field(default_factory=dict[int, None])


class Relay:
    """The requests of one host to its upstreams, for all trees."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._trees: dict[str, _Tree] = {}
        self._upstreams: dict[Hashable, _Upstream] = {}
        self._sent: dict[int, _Sent] = {}
        self._number = 0
        self._live = 0
        self._done: list[Done] = []
        # Requests that were sent to another upstream than the first, and upstreams removed for wrong bytes.
        self.repairs = self.refused = 0
        # Upstreams, with the tree, that had no content for too long; the observer of the relay removes them from here.
        self.withheld: list[tuple[str, Hashable]] = []

    def has_tree(self, tree: str) -> bool:
        return tree in self._trees

    def join(self, tree: str, upstreams: Sequence[Hashable], chain: Sequence[Hashable] = ()) -> None:
        """The upstreams of a tree, in the place of those it had; chunks that are wanted go on. `chain`: their order for large files."""
        found = self._trees.get(tree)
        client = upstreams[-1] if upstreams else None
        if found is None:
            self._trees[tree] = _Tree(list(upstreams), list(chain or upstreams), client)
            return
        found.upstreams, found.chain, found.client = list(upstreams), list(chain or upstreams), client
        found.strikes.clear()
        self._start_anew(found)

    def _start_anew(self, tree: _Tree) -> None:
        """All upstreams may be asked for all chunks that are wanted."""
        tree.cool.clear()
        tree.slow.clear()
        for want in tree.wants.values():
            want.tried.clear()
            want.holder = None
        self._unpark(tree)

    def leave(self, tree: str) -> None:
        """No chunk of the tree is wanted any more: those that are fail."""
        found = self._trees.pop(tree, None)
        if found is not None:
            failure = FetchFailure(errno.EIO, "the mount has been closed")
            for id, want in found.wants.items():
                self._done.append(Done(tree, id, want.waiters, failure))

    def want(self, tree: str, ids: Iterable[bytes], waiter: Hashable, *, urgent: bool, bulk: bool = False) -> None:
        """A waiter gets a `Done` for each; `KeyError` for a tree that was not joined."""
        found = self._trees[tree]
        for id in ids:
            want = found.wants.get(id)
            if want is None:
                want = found.wants[id] = _Want(urgent, bulk)
                (found.urgent if urgent else found.pushed).append(id)
            elif urgent and not want.urgent:
                want.urgent = True
                if not want.number:
                    found.urgent.append(id)
            if waiter is not None:
                want.waiters.append(waiter)

    def unwait(self, tree: str, ids: Iterable[bytes], waiter: Hashable) -> None:
        """The waiter waits no more; the chunks are wanted all the same."""
        found = self._trees.get(tree)
        for id in ids if found is not None else ():
            want = found.wants.get(id) if found is not None else None
            if want is not None and waiter in want.waiters:
                want.waiters.remove(waiter)

    def ready(self, now: float) -> list[Ask]:
        """The requests to send now; also looks for silent upstreams."""
        self._look(now)
        asks: list[Ask] = []
        for urgent in (True, False):
            for name, tree in self._trees.items():
                queue = tree.urgent if urgent else tree.pushed
                while queue and self._live < (self._window if urgent else self._window * 3 // 4):
                    ask = self._next(name, tree, queue, urgent, now)
                    if ask is not None:
                        asks.append(ask)
        return asks

    def finished(self) -> list[Done]:
        """The chunks that have come or failed since the last call."""
        done, self._done = self._done, []
        return done

    def deadline(self) -> float | None:
        """When `ready` has to be called although nothing has happened."""
        found = [at for tree in self._trees.values() if tree.parked for at in tree.cool.values()]
        for upstream in self._upstreams.values():
            first = None if upstream.silent else self._oldest(upstream)
            if first is not None:
                found.append(max(first, upstream.last_progress) + SILENCE)
        return min(found, default=None)

    def arrived(self, number: int, now: float) -> None:
        """An answer has come, and is being verified."""
        sent = self._sent.get(number)
        if sent is None:
            return
        sent.arrived = True
        self.progressed(sent.upstream, now)

    def progressed(self, upstream: Hashable, now: float) -> None:
        """The upstream has done a part of what it was asked for."""
        found = self._upstreams.get(upstream)
        if found is None:
            return
        found.last_progress = now
        if found.silent:
            found.silent = False
            for tree in self._trees.values():
                if tree.client == upstream:
                    self._start_anew(tree)
            self._unpark_all()

    def answered(self, number: int, contents: Mapping[bytes, int], failures: Mapping[bytes, FetchFailure], now: float) -> None:
        """The verified contents of an answer, with their sizes; what is in neither is asked again."""
        self.arrived(number, now)
        sent = self._close(number)
        tree = None if sent is None else self._trees.get(sent.tree)
        if sent is None or tree is None:
            return
        tree.strikes.pop(sent.upstream, None)
        if contents:
            self._upstreams[sent.upstream].gave = now
            tree.mean = 0.75 * tree.mean + 0.25 * sum(contents.values()) / len(contents)
        for id in reversed(sent.ids):
            want = tree.wants.get(id)
            if want is None:
                continue
            if id in contents:
                self._finish(sent.tree, tree, id, None)
            elif id in failures:
                want.failure = failures[id]
                if want.failure.final and sent.upstream == tree.client:
                    if len(tree.known) >= _MOST_KNOWN:
                        tree.known.clear()
                    tree.known[id] = want.failure, now + _KNOWN_SECONDS
                    self._finish(sent.tree, tree, id, want.failure)
                    continue
                want.tried.add(sent.upstream)
                if want.failure.final:
                    want.tried.update(upstream for upstream in tree.order(want) if upstream != tree.client)
                if want.number == number or not want.number:
                    self._again(tree, id, want)
            elif want.number == number:
                self._check_empty_timeout(sent, tree, want, now)
                self._again(tree, id, want)

    def _check_empty_timeout(self, sent: _Sent, tree: _Tree, want: _Want, now: float) -> None:
        """An upstream has nothing yet: whether it is asked for this chunk again."""
        upstream = sent.upstream
        idle, busy = _EMPTY_TIMEOUTS[want.urgent]
        if want.holder != upstream:
            want.holder, want.since = upstream, now
        elif upstream != tree.client and now - want.since >= (idle if self._upstreams[upstream].gave <= want.since else busy):
            want.tried.add(upstream)
            want.failure = FetchFailure(errno.EIO, "the hosts that were asked for it had nothing yet for too long")
            tree.slow[upstream] = now + _SLOW_SECONDS
            self.withheld.append((sent.tree, upstream))

    def failed(self, tree: str, id: bytes, failure: FetchFailure) -> None:
        """This host itself cannot keep a chunk, of any upstream."""
        found = self._trees.get(tree)
        if found is not None and id in found.wants:
            self._finish(tree, found, id, failure)

    def unjoined(self, number: int, now: float) -> None:
        """The upstream has not joined the tree, or could not answer."""
        self.arrived(number, now)
        sent = self._sent.get(number)
        tree = None if sent is None else self._trees.get(sent.tree)
        if sent is not None and tree is not None:
            tree.cool[sent.upstream] = now + _COOL
            tree.strikes[sent.upstream] = tree.strikes.get(sent.upstream, 0) + 1
            if tree.strikes[sent.upstream] >= _STRIKES:
                tree.remove(sent.upstream)
        self._requeue(number)

    def ended(self, upstream: Hashable) -> None:
        """The process of the upstream has ended: all it was asked for goes to others."""
        self._remove(upstream, "source left")

    def wrong(self, upstream: Hashable) -> None:
        """The upstream has sent bytes that are not the content of their id, or malformed ones."""
        # Several answers of it may be in progress.
        self.refused += any(upstream in tree.upstreams or upstream in tree.chain for tree in self._trees.values())
        self._remove(upstream, "no upstream is left: the last one sent wrong bytes")

    def counts(self) -> tuple[int, int]:
        """Chunks wanted, and requests in flight."""
        return sum(len(tree.wants) for tree in self._trees.values()), self._live

    def _remove(self, upstream: Hashable, reason: str) -> None:
        for tree in self._trees.values():
            if upstream in tree.upstreams or upstream in tree.chain:
                tree.remove(upstream)
                tree.gone = reason
        found = self._upstreams.get(upstream)
        for number in list(found.sent) if found is not None else ():
            self._requeue(number)
        self._upstreams.pop(upstream, None)
        self._unpark_all()

    def _requeue(self, number: int) -> None:
        sent = self._close(number)
        tree = None if sent is None else self._trees.get(sent.tree)
        if sent is not None and tree is not None:
            for id in reversed(sent.ids):
                want = tree.wants.get(id)
                if want is not None and want.number == number:
                    self._again(tree, id, want)

    def _again(self, tree: _Tree, id: bytes, want: _Want) -> None:
        want.number = 0
        (tree.urgent if want.urgent else tree.pushed).appendleft(id)

    def _close(self, number: int) -> _Sent | None:
        sent = self._sent.pop(number, None)
        if sent is not None:
            self._live -= not sent.late
            self._upstreams[sent.upstream].sent.pop(number, None)
        return sent

    def _finish(self, name: str, tree: _Tree, id: bytes, failure: FetchFailure | None) -> None:
        want = tree.wants.pop(id)
        self._done.append(Done(name, id, want.waiters, failure))

    def _next(self, name: str, tree: _Tree, queue: deque[bytes], urgent: bool, now: float) -> Ask | None:
        most = min(max(int(_TARGET_BYTES / max(tree.mean, 1)), 1), _URGENT_IDS if urgent else _MOST_IDS)
        ids: list[bytes] = []
        chosen: Hashable = None
        bulk = False
        while queue and len(ids) < most:
            id = queue[0]
            want = tree.wants.get(id)
            if want is None or want.number or want.urgent != urgent:
                queue.popleft()
                continue
            known = tree.known.get(id)
            if known is not None and now < known[1]:
                queue.popleft()
                self._finish(name, tree, id, known[0])
                continue
            order = tree.order(want)
            usable = [upstream for upstream in order if upstream not in want.tried]
            if not usable:
                queue.popleft()
                self._finish(name, tree, id, want.failure or FetchFailure(errno.EIO, tree.gone))
                continue
            usable.sort(key=lambda u: tree.slow.get(u, now) > now)
            upstream = next((u for u in usable if tree.cool.get(u, now) <= now and not self._is_silent(u)), None)
            if upstream is None:
                queue.popleft()
                tree.parked.append(id)
                continue
            if ids and (upstream != chosen or want.bulk != bulk):
                break
            queue.popleft()
            if not ids:
                self.repairs += upstream != order[0]
            chosen, bulk = upstream, want.bulk
            ids.append(id)
            want.number = self._number + 1
            if want.holder != upstream:
                want.holder, want.since = upstream, now
        if not ids:
            return None
        self._number += 1
        self._live += 1
        self._sent[self._number] = _Sent(chosen, name, tuple(ids), now)
        self._upstreams.setdefault(chosen, _Upstream()).sent[self._number] = None
        return Ask(self._number, chosen, name, tuple(ids), urgent, bulk)

    def _is_silent(self, upstream: Hashable) -> bool:
        found = self._upstreams.get(upstream)
        return found is not None and found.silent

    def _look(self, now: float) -> None:
        for tree in self._trees.values():
            passed = [upstream for upstream, at in tree.cool.items() if at <= now]
            for upstream in passed:
                del tree.cool[upstream]
            if passed:
                self._unpark(tree)
        for key, upstream in self._upstreams.items():
            first = None if upstream.silent else self._oldest(upstream)
            if first is not None and now >= max(first, upstream.last_progress) + SILENCE:
                upstream.silent = True
                for number in upstream.sent:
                    self._put_off(number, key)

    def _put_off(self, number: int, upstream: Hashable) -> None:
        """A request to an upstream that has become silent: another one is asked where there is one."""
        sent = self._sent[number]
        if sent.arrived:
            return
        sent.late = True
        self._live -= 1
        tree = self._trees.get(sent.tree)
        for id in reversed(sent.ids) if tree is not None else ():
            want = tree.wants.get(id) if tree is not None else None
            if tree is not None and want is not None and want.number == number and set(tree.order(want)) - want.tried - {upstream}:
                self._again(tree, id, want)

    def _oldest(self, upstream: _Upstream) -> float | None:
        return next((self._sent[number].at for number in upstream.sent if not self._sent[number].arrived), None)

    def _unpark_all(self) -> None:
        for tree in self._trees.values():
            self._unpark(tree)

    def _unpark(self, tree: _Tree) -> None:
        parked, tree.parked = tree.parked, []
        for id in parked:
            want = tree.wants.get(id)
            if want is not None and not want.number:
                (tree.urgent if want.urgent else tree.pushed).append(id)


class Serving:
    """The requests of other hosts that this host cannot answer yet: for chunks that it lacks itself, or of a tree that it has not joined.

    Hosts of a tree join at their own times, so a child may ask before its parent has joined: it would ask the client then. The parent keeps
    such a request until it joins, at most `KEEPALIVE` seconds. A tree that it has left is refused at once.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, tuple[str, Collection[bytes], float]] = {}
        self._early: dict[Hashable, tuple[str, float]] = {}
        self._left: deque[str] = deque(maxlen=_MOST_LEFT)

    def asked(self, key: Hashable, tree: str, ids: Collection[bytes], now: float) -> None:
        self._waiting[key] = tree, ids, now + KEEPALIVE

    def done(self, done: Done) -> list[Hashable]:
        """The requests that wait for this chunk; they wait no more."""
        return [key for key in done.waiters if self._waiting.pop(key, None) is not None]

    def due(self, now: float) -> list[tuple[Hashable, str, Collection[bytes]]]:
        """The requests (with tree and chunks) that have waited so long that they are answered with nothing; the sender asks again."""
        due = [(key, tree, ids) for key, (tree, ids, at) in self._waiting.items() if at <= now]
        for key, _, _ in due:
            del self._waiting[key]
        return due

    def early(self, key: Hashable, tree: str, now: float) -> bool:
        """A request of a tree that was not joined waits; False: it is to be refused."""
        if tree in self._left or len(self._early) >= _MOST_EARLY:
            return False
        self._early[key] = tree, now + KEEPALIVE
        return True

    def joined(self, tree: str) -> list[Hashable]:
        """The requests that waited for it."""
        if tree in self._left:
            self._left.remove(tree)
        return self._take_early(lambda name, _: name == tree)

    def left(self, tree: str) -> None:
        self._left.append(tree)

    def unjoined(self, now: float) -> list[Hashable]:
        """The requests that have waited so long for a tree that they are to be refused."""
        return self._take_early(lambda _, at: at <= now)

    def _take_early(self, chosen: Callable[[str, float], bool]) -> list[Hashable]:
        keys = [key for key, (tree, at) in self._early.items() if chosen(tree, at)]
        for key in keys:
            del self._early[key]
        return keys

    def deadline(self) -> float | None:
        # The first one of each has waited longest.
        found = [at for _, _, at in islice(self._waiting.values(), 1)] + [at for _, at in islice(self._early.values(), 1)]
        return min(found, default=None)
