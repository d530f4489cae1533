"""The slices of transfers: their sizes, their rails, and the outcome of one that fails. Decisions only: no device, no thread.

Up to 32 KiB go as one slice on the nearest rail: there the way there and back is what takes time. More is cut into slices of 1 MiB, each
taken when there is room, by the rail with the earliest predicted end: bytes under way over measured bandwidth, times a penalty for its
distance, and how long it has shown no progress. Late choice makes good for predictions that are wrong.

A slice that fails is tried by a rail that it has not been tried by, three times in all. A rail with 3 errors in 10 s rests for 30 s, the
next time for twice as long, up to 300 s. When no rail is left, the transfer gives up, and who owns it can go on by another path with
what is `left()`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

SMALL = 32 << 10
SLICE = 1 << 20
TRIES = 3
ERRORS, WITHIN = 3, 10.0
REST, LONGEST_REST = 30.0, 300.0
# The most bytes in flight on a rail: the product of bandwidth and delay of the fastest is 1 MiB; more bytes would only have to be sent
# again after a failure.
WINDOW = 8 << 20
# The weight of one measurement of bandwidth.
_WEIGHT = 0.25


class RailState:
    """The state of a route to one process: a rail here and one there. `penalty` is 1.0 for the nearest."""

    def __init__(self, name: str, penalty: float = 1.0, bandwidth: float = 10e9, window: int = WINDOW) -> None:
        self.name = name
        self.penalty = penalty
        self.bandwidth = bandwidth
        self.ready = True  # whether there is a connected queue
        self.under_way = 0
        self.last_arrival = 0.0  # the time of the last arrival, or of the first send of the data in flight
        self.rests_until = float("-inf")
        self._window = window
        self._errors: deque[float] = deque(maxlen=ERRORS)
        self._rest = REST
        self._troubled = float("-inf")  # the time of the last failure, or of the end of the last rest
        self._progress = 0.0
        self._measured = 0

    def resting(self, now: float) -> bool:
        return now < self.rests_until

    def has_room(self, nbytes: int) -> bool:
        return not self.under_way or self.under_way + nbytes <= self._window

    def predicted_end(self, now: float, nbytes: int) -> float:
        """Seconds from now until `nbytes` more would have arrived."""
        took = (self.under_way + nbytes) / self.bandwidth * self.penalty
        if not self.under_way:
            return took
        # The data in flight should have made progress after one slice.
        return took + max(0.0, now - self._progress - SLICE / self.bandwidth)

    def sent(self, now: float, nbytes: int) -> None:
        if not self.under_way:
            self._progress, self._measured = now, 0
            self.last_arrival = now
        self.under_way += nbytes

    def arrived(self, now: float, nbytes: int) -> None:
        self.under_way -= nbytes
        self._measured += nbytes
        self.last_arrival = now
        # Short intervals measure the delay more than the bandwidth.
        if self._measured >= SLICE and now > self._progress:
            self.bandwidth += _WEIGHT * (self._measured / (now - self._progress) - self.bandwidth)
            self._progress, self._measured = now, 0

    def returned(self, nbytes: int) -> None:
        self.under_way -= nbytes

    def failed(self, now: float) -> None:
        """Counts one error, after which the rail may have to rest."""
        if now - self._troubled > LONGEST_REST:
            self._rest = REST
        self._troubled = now
        self._errors.append(now)
        if len(self._errors) == ERRORS and now - self._errors[0] <= WITHIN:
            self.rests_until = self._troubled = now + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
            self._errors.clear()


class Slice:
    """A part of a piece; `tried` has the rails that failed."""

    __slots__ = ("nbytes", "offset", "piece", "tried")

    def __init__(self, piece: int, offset: int, nbytes: int) -> None:
        self.piece = piece
        self.offset = offset
        self.nbytes = nbytes
        self.tried: tuple[int, ...] = ()


class Attempt(NamedTuple):
    """A try that failed."""

    rail: str
    status: str
    piece: int
    offset: int
    nbytes: int


class Slices:
    """The slices of one transfer of pieces of these sizes, over rails that it shares with others, nearest first."""

    def __init__(self, rails: Sequence[RailState], sizes: Sequence[int], clock: Callable[[], float], largest: int = SLICE) -> None:
        self._rails = rails
        self._sizes = sizes
        self._clock = clock
        self._largest = min(max(largest, SMALL), SLICE)
        self._piece = 0
        self._offset = 0
        self._again: deque[Slice] = deque()
        self._under_way: set[Slice] = set()
        self.asked = sum(sizes)
        self.done = 0
        self.attempts: list[Attempt] = []
        self.stopped = False

    @property
    def ended(self) -> bool:
        """Nothing is under way, and nothing will be."""
        return not self._under_way and (self.stopped or self.done == self.asked)

    @property
    def complete(self) -> bool:
        return self.done == self.asked

    def take(self, full: Sequence[bool] = ()) -> tuple[Slice, int] | None:
        """The next slice, and the number of its rail; None where it has to wait for room, or there is nothing.

        `full` has the rails whose queues take no more, however little is under way.
        """
        if self.stopped:
            return None
        cut = self._again[0] if self._again else self._next()
        if cut is None:
            return None
        now = self._clock()
        rail = self._choose(cut, now, full)
        if rail is None:
            return None
        if self._again:
            self._again.popleft()
        else:
            self._advance(cut)
        self._under_way.add(cut)
        self._rails[rail].sent(now, cut.nbytes)
        return cut, rail

    def arrived(self, cut: Slice, rail: int) -> None:
        self._under_way.remove(cut)
        self._rails[rail].arrived(self._clock(), cut.nbytes)
        self.done += cut.nbytes

    def returned(self, cut: Slice, rail: int) -> None:
        """It was not tried, for no fault of its own or of the rail's."""
        self._under_way.remove(cut)
        self._rails[rail].returned(cut.nbytes)
        self._again.append(cut)

    def failed(self, cut: Slice, rail: int, status: str, *, final: bool = False) -> None:
        """`final`: no rail would do better, and this one is not to blame."""
        self.returned(cut, rail)
        self.blame(cut, rail, status)
        if final:
            self.stopped = True

    def blame(self, cut: Slice, rail: int, status: str) -> None:
        """It was returned, but the rail is at fault."""
        self.attempts.append(Attempt(self._rails[rail].name, status, cut.piece, cut.offset, cut.nbytes))
        cut.tried += (rail,)
        if len(cut.tried) >= TRIES:
            self.stopped = True

    def stop(self) -> None:
        """Takes no more slices."""
        self.stopped = True

    def left(self) -> Iterator[tuple[int, int, int]]:
        """What has not arrived: piece, offset and bytes. To be asked when it has ended."""
        for cut in self._again:
            yield cut.piece, cut.offset, cut.nbytes
        offset = self._offset
        for piece in range(self._piece, len(self._sizes)):
            if offset < self._sizes[piece]:
                yield piece, offset, self._sizes[piece] - offset
            offset = 0

    def _next(self) -> Slice | None:
        while self._piece < len(self._sizes):
            rest = self._sizes[self._piece] - self._offset
            if rest > 0:
                whole = self._sizes[self._piece]
                return Slice(self._piece, self._offset, whole if whole <= SMALL else min(rest, self._largest))
            self._piece, self._offset = self._piece + 1, 0
        return None

    def _advance(self, cut: Slice) -> None:
        self._offset = cut.offset + cut.nbytes

    def _choose(self, cut: Slice, now: float, full: Sequence[bool]) -> int | None:
        small, tried = cut.nbytes <= SMALL, cut.tried
        awake, best, lowest = False, None, (False, 0.0)
        for i, rail in enumerate(self._rails):
            if now < rail.rests_until:
                continue
            awake = True
            if not rail.ready:
                continue
            # Rails that have been tried for this cut come after all others.
            cost = i in tried, rail.penalty if small else rail.predicted_end(now, cut.nbytes)
            if best is None or cost < lowest:
                best, lowest = i, cost
        if not awake:
            self.stopped = True
        if best is None or (full and full[best]) or not self._rails[best].has_room(cut.nbytes):
            return None
        return best
