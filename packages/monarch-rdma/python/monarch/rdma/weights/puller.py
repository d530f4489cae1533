"""The reads of a target: one batch for each source, between two looks at the versions.

The bytes go to a staging memory first, and from there to the target's tensors when all of them are known to be of one version, so a source
that ends or a version that goes in the middle leaves the tensors as they are. Without staging memory they go to the tensors directly.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from monarch import extension
from monarch.rdma._buffers.plan import OPENING, is_for_hosts, opened
from monarch.rdma._process.allocation import allocate
from monarch.rdma._transfer.operation import READ
from monarch.rdma.errors import RDMAError, RDMAPeerLostError, RDMAReleasedError, RDMATimeoutError
from monarch.rdma.weights.commit import Commit
from monarch.rdma.weights.operations import Kept, kept_by, plan_of
from monarch.rdma.weights.planner import Runs, Source, by_group, find_pieces, find_runs, merged
from monarch.rdma.weights.relay import Relay, staged_table
from monarch.rdma.weights.words import CLOSING, LOST, WHOLE, is_there, state_of, version_of, word

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.actor import Future
    from monarch.rdma._buffers.buffer import RDMABuffer
    from monarch.rdma._buffers.plan import RDMAPlan
    from monarch.rdma.weights.local_tensor import LocalTensors
    from monarch.rdma.weights.offer import Offer
    from monarch.rdma.weights.parent import Parent
    from monarch.rdma.weights.planner import Pieces
    from monarch.rdma.weights.table import Numbers, Table

# Seconds between two looks at versions: at first, and at most.
_FIRST, _MOST = 0.0005, 0.02
# The same while a source waits for this reader.
_HELD = 0.002
# Seconds, at most, for the batch of looks, which leaves time to find the source that does not answer.
_BATCH = 5.0
_NOT_WHOLE = "no version is whole on all ranks"
_APART = "ranks that update without waiting for each other drift apart: let them wait, or publish with wait=..."
# Seconds for the end of an announcement. The source waits about as long for readers.
_UNDO = 1.0


class Feed:
    """The source of one rank: its words, and the plan for each of its memories."""

    def __init__(self, label: str, offer: Offer) -> None:
        self.label = label
        self._slots = offer.slots
        self._announcement = offer.announcement
        self._announced = bytearray(8)
        # The word that was announced last, and when the source forgets it.
        self._oldest, self._wait, self._forgotten = 0, offer.wait, 0.0
        self._seen = bytearray(offer.words.size())
        self.values: Numbers = np.frombuffer(self._seen, np.int64)
        self._words = offer.words
        self._of_program = offer.of_program
        self._runs: list[tuple[int, Runs]] = []
        self._kept: Sequence[Kept] | None = None
        self._keep: object = None
        self._plans: dict[int, RDMAPlan] = {}

    def read(self, runs: Runs, region: Numbers, kept: Sequence[Kept] | None, keep: object) -> None:
        """What is read of it: runs of these regions."""
        self._runs, self._kept, self._keep = by_group(runs, region), kept, keep

    def look(self, timeout: float) -> Future[None]:
        """Reads the words into `values`."""
        return self._words.read_into(memoryview(self._seen), timeout=timeout)

    def words(self) -> tuple[RDMABuffer, Runs]:
        """The copy that a look is, for a batch with those of others. The words arrive in `values`."""
        none = np.zeros(1, np.int64)
        return self._words, Runs.contiguous(none, none, none + self.values.ctypes.data, none + self.values.nbytes)

    def lost(self, error: RDMAError | None = None) -> RDMAError | None:
        """The error, or the end of the source's program that explains it; None if there is neither.

        The end of a program leaves its words in the process that ran it, until that ends in good order.
        """
        if not self._of_program or isinstance(error, RDMAPeerLostError):
            return error
        if isinstance(error, RDMAReleasedError):
            with suppress(RDMAError):
                self.look(_UNDO).get()
        is_ended = error is not None and extension.end_of(self._words.__core__.parts()[2]) is not None
        return RDMAPeerLostError("its program has ended") if is_ended or (self.values == LOST).any() else error

    def announce(self, oldest: int, timeout: float) -> Future[None] | None:
        """Writes the oldest version that is taken to the source; None if it knows, or if it does not wait for readers."""
        value = word(oldest, 0)
        now = time.monotonic()
        if self._announcement is None or (self._oldest >= value and now < self._forgotten):
            return None
        self._oldest, self._forgotten = max(value, self._oldest), now + self._wait
        return self._write(self._oldest, timeout)

    def introduce(self, timeout: float) -> Future[None] | None:
        """Opens the word of announcements."""
        return None if self._announcement is None else self._write(0, timeout)

    def withdraw(self, timeout: float) -> Future[None] | None:
        """Ends the announcement."""
        if not self._oldest:
            return None
        self._oldest = 0
        return self._write(0, timeout)

    def overtaken(self) -> None:
        """A version went while it was read: the source may have forgotten the announcement."""
        self._forgotten = 0.0

    def _write(self, value: int, timeout: float) -> Future[None]:
        assert self._announcement is not None
        self._announced[:] = value.to_bytes(8, sys.byteorder)
        return self._announcement.write_from(memoryview(self._announced), timeout=timeout)

    def fetch(self, version: int, until: float) -> Future[None]:
        """Reads the weights of the version."""
        plan = self._plan(self._slot(version), until)
        return plan.submit(timeout=_left(until))

    def prepare(self, until: float) -> None:
        """Plans the reads of all memories, and opens them, so that later reads need no answer of the source."""
        for slot in range(len(self._slots)):
            self._plan(slot, until)

    def _plan(self, slot: int, until: float) -> RDMAPlan:
        plan = self._plans.get(slot)
        if plan is None:
            copies = [(self._slots[slot][region], runs) for region, runs in self._runs]
            plan = self._plans[slot] = opened(plan_of(READ, copies, self._kept, self._keep), _left(until))
        return plan

    def _slot(self, version: int) -> int:
        return next(i for i, value in enumerate(self.values.tolist()) if is_there(value, version))

    def versions(self) -> set[int]:
        """The versions that may be read: also one that is closing, after an announcement."""
        states = (WHOLE, CLOSING) if self._oldest else (WHOLE,)
        return {version_of(value) for value in self.values.tolist() if state_of(value) in states}

    @property
    def is_announced(self) -> bool:
        return self._oldest != 0

    def has(self, version: int) -> bool:
        """Whether the version is still there."""
        return any(is_there(value, version) for value in self.values.tolist())


class Puller:
    """Reads versions into the tensors of a target; one thread at a time.

    `room` makes the staging memory. Without tensors the bytes stay there.
    """

    def __init__(
        self,
        name: str,
        tensors: LocalTensors | None,
        pieces: Pieces,
        feeds: dict[int, Feed],
        room: Callable[[int], memoryview] | None = allocate,
    ) -> None:
        self.name = name
        self.version: int | None = None
        self.nbytes = pieces.nbytes
        self.retries = 0
        self.from_sources = self.from_targets = 0
        self._lock = Lock()
        self._tensors = tensors
        self._memory: memoryview | None = None
        self._relay: Relay | None = None
        self._parent: Parent | None = None
        # Where bytes of a parent go.
        self._into: Table | None = None
        # Without bytes to read, a version is whole when all ranks have it.
        used = np.unique(pieces.source).tolist() or sorted(feeds)
        self._feeds = [feeds[i] for i in used]
        # With devices, one batch of looks costs a fraction of a read for each source. By streams and shared memory it costs no less.
        self._looks: RDMAPlan | None = None
        self._is_near = False
        self._commit: Commit | None = None
        far = pieces.start, pieces.strides
        if room is None:
            assert tensors is not None
            runs = find_runs(pieces.extent, pieces.itemsize, far, (pieces.local, pieces.local_strides))
            self._assign(feeds, pieces, runs, kept_by(tensors, pieces.tensor), None)
            return
        memory = room(max(pieces.staging, 1))
        self._memory = memory
        base = int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
        staging = (pieces.dense + base, pieces.dense_strides)
        self._assign(feeds, pieces, find_runs(pieces.extent, pieces.itemsize, far, staging), None, memory)
        if tensors is not None:
            self._commit = Commit(tensors, pieces, memory)

    def _assign(self, feeds: dict[int, Feed], pieces: Pieces, runs: Runs, kept: Sequence[Kept] | None, keep: object) -> None:
        # Runs of one source and region that follow each other are one read.
        group = pieces.source * (int(pieces.region.max(initial=0)) + 1) + pieces.region
        if kept is not None:
            # Memories of two tensors that happen to touch are kept by two objects.
            group = group * (int(pieces.tensor.max(initial=0)) + 1) + pieces.tensor
        for i, found in by_group(merged(runs, group), pieces.source):
            feeds[i].read(found, pieces.region, kept, keep)

    def serve(self, table: Table, pieces: Pieces) -> Relay | None:
        """Offers the staging memory to other targets; None if there is none."""
        if self._memory is None:
            self._into = table
            return None
        staged = staged_table(table, pieces)
        if staged is None:
            return None
        base = int(np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0])
        self._into = staged._replace(start=staged.start + base)
        self._relay = Relay(staged, self._memory)
        return self._relay

    def follow(self, parent: Parent) -> None:
        """Reads from this target, where that is as good."""
        if self._into is not None:
            self._parent = parent
            parent.join()

    def _prepare(self, offer: Offer) -> Feed:
        """Plans the reads from a parent."""
        assert self._into is not None
        feed = Feed("another target", offer)
        pieces = find_pieces(self._into, [Source(offer.table, 1, "another target")])
        # A reader without tensors has a staging memory.
        kept = None if self._tensors is None or self._memory is not None else kept_by(self._tensors, pieces.tensor)
        runs = find_runs(pieces.extent, pieces.itemsize, (pieces.start, pieces.strides), (pieces.local, pieces.local_strides))
        self._assign({0: feed}, pieces, runs, kept, self._memory)
        return feed

    def open(self, until: float) -> None:
        """Opens the words and memories of the sources. The first pull opens what has not been opened in time, and raises errors."""
        until = min(until, time.monotonic() + OPENING)
        with suppress(RDMAError):
            self._newest(until)
            self._all([feed.introduce(_left(until)) for feed in self._feeds])
        for feed in self._feeds:
            feed.prepare(until)

    def _begin(self, version: int) -> None:
        """Bytes of the version begin to arrive."""
        if self._memory is None:
            self.version = None
        if self._relay is not None:
            self._relay.begin(version)

    def _take(self, oldest: int, until: float) -> int | None:
        """Reads a version from the parent."""
        if self._parent is None:
            return None
        found = self._parent.take(oldest, until, self._prepare, self._begin)
        if found is not None:
            self.from_targets += self.nbytes
            self._finish(found)
        return found

    def _finish(self, version: int) -> None:
        """All bytes of the version have arrived."""
        if self._relay is not None:
            self._relay.end(version)
        if self._commit is not None:
            self._commit.run()
        self.version = version

    def pull(self, timeout: float) -> int:
        """Reads the newest whole version, and returns its number."""
        until = time.monotonic() + timeout
        if not self._lock.acquire(timeout=timeout):
            raise self._late(timeout, "another pull of this target is in progress")
        try:
            pause, why, is_first = _FIRST, "", True
            while True:
                try:
                    version = self._newest(until)
                    if version is not None and version == self.version:
                        return version
                    if is_first:
                        is_first = False
                        oldest = self._oldest() if version is None else version
                        if self._relay is not None:
                            self._relay.wants(oldest)
                        taken = self._take(oldest, until)
                        if taken is not None:
                            return taken
                    if self._announce(version, until):
                        version = self._newest(until)
                except RDMATimeoutError:
                    if why:  # the time was up before this look
                        raise self._late(timeout, why) from None
                    raise
                if version is not None and version == self.version:
                    return version
                if version is not None and self._read(version, until):
                    return version
                why = _NOT_WHOLE if version is None else "each version was replaced before it was read"
                if time.monotonic() + pause >= until:
                    raise self._late(timeout, why)
                time.sleep(pause)
                # A trainer may wait for this reader.
                pause = min(2 * pause, _HELD if any(feed.is_announced for feed in self._feeds) else _MOST)
        finally:
            self._withdraw()
            if self._relay is not None:
                self._relay.rest()
            self._lock.release()

    def _late(self, timeout: float, why: str) -> RDMATimeoutError:
        ranks = ", ".join(f"{feed.label}: {sorted(feed.versions())}" for feed in self._feeds[:8])
        what = f"pull of weights '{self.name}': time-out of {timeout:g} s: {why}"
        return RDMATimeoutError(what, cause=f"whole versions: {ranks}", hint=_APART if why == _NOT_WHOLE else None)

    def _newest(self, until: float) -> int | None:
        """The newest version that all sources have."""
        self._look(until)
        for feed in self._feeds:
            lost = feed.lost()
            if lost is not None:
                raise _of_rank(lost, self.name, feed.label)
        common = set[int].intersection(*(feed.versions() for feed in self._feeds))
        return max(common, default=None)

    def _look(self, until: float) -> None:
        """Reads the words of all sources."""
        if not self._look_at_once(until):
            self._all([feed.look(_left(until)) for feed in self._feeds])

    def _look_at_once(self, until: float) -> bool:
        """The same as one batch. False: it has failed, with an error that has no rank; or reads by themselves cost little."""
        try:
            if self._is_near:
                return False
            if self._looks is None:
                words = [feed.words() for feed in self._feeds]
                self._is_near = is_for_hosts([buffer for buffer, _ in words])
                if self._is_near:
                    return False
                kept = [feed.values for feed in self._feeds]
                self._looks = opened(plan_of(READ, words, None, kept), _left(until) / 2)
            self._looks.submit(timeout=min(_left(until) / 2, _BATCH)).get()
        except RDMAError:
            return False
        return True

    def _announce(self, version: int | None, until: float) -> bool:
        """Makes the sources wait for this reader; false if they know.

        Where no version is common, ranks that are behind must not wait for it: nothing older than what another rank still has can be read.
        """
        oldest = max([self._oldest(), *(min(found) for feed in self._feeds if (found := feed.versions()))]) if version is None else version
        announced = [feed.announce(oldest, _left(until)) for feed in self._feeds]
        self._all(announced)
        return any(future is not None for future in announced)

    def _oldest(self) -> int:
        """The oldest version that the target does not have."""
        return 0 if self.version is None else self.version + 1

    def _withdraw(self) -> None:
        # A source that has ended reads no announcement.
        with suppress(RDMAError):
            self._all([feed.withdraw(_UNDO) for feed in self._feeds])

    def _read(self, version: int, until: float) -> bool:
        """Whether the tensors have the version now. False: it has gone meanwhile."""
        self._begin(version)
        start = time.monotonic()
        self.from_sources += self.nbytes
        self._all([feed.fetch(version, until) for feed in self._feeds])
        self._look(until)
        if not all(feed.has(version) for feed in self._feeds):
            self.retries += 1
            for feed in self._feeds:
                feed.overtaken()
            return False
        self._withdraw()
        if self._parent is not None:
            self._parent.took = time.monotonic() - start
        self._finish(version)
        return True

    def _all(self, futures: Sequence[Future[None] | None]) -> None:
        """Waits for all, since they use the memory of this target; raises the first error, which names the rank."""
        failed: RDMAError | None = None
        for feed, future in zip(self._feeds, futures, strict=True):
            try:
                if future is not None:
                    future.get()
            except RDMAError as e:
                failed = failed or _of_rank(feed.lost(e) or e, self.name, feed.label)
        if failed is not None:
            raise failed


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)


def _of_rank(error: RDMAError, name: str, label: str) -> RDMAError:
    """The same error, with the rank in its first line."""
    first, *others = str(error).splitlines()
    cause = "\n".join(line.removeprefix("  ") for line in others if not line.startswith("hint: "))
    made = type(error)(f"pull of weights '{name}' from {label}: {first}", cause=cause, hint=error.hint, code=error.code)
    vars(made).update({key: value for key, value in vars(error).items() if key not in vars(made)})
    return made
