"""All ways to one process, and the transfers that go over them.

A way is a rail here, a rail there, and a queue between them. A queue that fails is closed, which ends what is under way on it; those slices
go by other ways, while a thread makes a new one (`Dial`: one question to the other process for all queues that are missing). Deadlines are
kept by closing queues, too: once a transfer has ended, no byte of its memory is touched.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from monarch.rdma.verbs.provider import FLUSHED, SUCCESS, Completion, WorkRequest
from monarch.rdma.verbs.send_queue import SendQueue
from monarch.rdma.verbs.slices import SLICE, Attempt, RailState, Slice, Slices
from monarch.rdma.verbs.status import final, status_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monarch.rdma.verbs.connect_record import QueueRecord
    from monarch.rdma.verbs.poller import Poller
    from monarch.rdma.verbs.provider import Queue, Rail

# Sends this process's queues to the other process and returns the queues that it has connected to them, None for a failed one; `OSError` if
# it cannot be queried. It blocks, and runs on a dedicated thread.
Dial = Callable[[Sequence["QueueRecord"]], Sequence["QueueRecord | None"]]

DEPTH = 64
# Seconds between two checks of rails without progress, during transfers.
_LOOK = 0.05
# Seconds without any completion after which a device is broken: the slowest wire carries a slice in that time, and devices report a failure
# after half a second by themselves.
STALLED = 5.0
# Serial numbers of this process's queues, never used again, so that late completions of a closed queue belong to none.
_serials = itertools.count(1)

COMPLETE, TIMED_OUT, REFUSED, EXHAUSTED, CLOSED = "complete", "timed out", "refused", "exhausted", "closed"


class Piece(NamedTuple):
    """Contiguous bytes here and there. `keys` has our key for each rail of the connection, `remote_keys` theirs by the names of devices."""

    write: bool
    address: int
    nbytes: int
    keys: Sequence[int]
    remote_address: int
    remote_keys: Mapping[str, int]


class Transfer:
    """One submit. `state` is empty while it is under way; then one of the words above, and nothing touches its memory any more."""

    def __init__(self, pieces: Sequence[Piece], slices: Slices, deadline: float, ended: Callable[[Transfer], None]) -> None:
        self.pieces = pieces
        self.slices = slices
        self.deadline = deadline
        self.state = ""
        self._why = ""
        self._ended = ended

    @property
    def attempts(self) -> list[Attempt]:
        return self.slices.attempts

    @property
    def done(self) -> int:
        return self.slices.done

    @property
    def asked(self) -> int:
        return self.slices.asked

    def left(self) -> Iterator[tuple[int, int, int]]:
        """Piece, offset and bytes of what has not arrived, for another path."""
        return self.slices.left()

    def stop(self, why: str) -> None:
        self._why = self._why or why
        self.slices.stop()

    def finish(self) -> None:
        self.state = COMPLETE if self.slices.complete else self._why or EXHAUSTED
        self._ended(self)


class _Way:
    """`rail` here, and where it leads."""

    def __init__(self, rail: Rail, poller: Poller, penalty: float) -> None:
        self.rail = rail
        self.poller = poller
        self.state = RailState(rail.port.name, penalty)
        self.state.ready = False
        self.queue: Queue | None = None
        self.send: SendQueue[tuple[Transfer, Slice]] | None = None
        self.remote = ""  # device
        self.lost = False
        self.trouble = ""  # the last reason for a missing queue


def _start(job: Callable[[], None]) -> None:
    threading.Thread(target=job, name="rdma dial", daemon=True).start()


class Connection:
    """To one process, over `rails`, nearest first, each with its poller and its penalty."""

    def __init__(
        self,
        rails: Sequence[tuple[Rail, Poller, float]],
        dial: Dial,
        *,
        largest: int = SLICE,
        depth: int = DEPTH,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = _start,
    ) -> None:
        self._ways = [_Way(*one) for one in rails]
        self._states = [way.state for way in self._ways]
        self._dial = dial
        self._largest = largest
        self._depth = depth
        self._clock = clock
        self._lock = threading.Lock()
        self._active: list[Transfer] = []
        self._look_at = 0.0
        self._start = start
        self._dialing = False
        self._dialed = threading.Condition(self._lock)
        self._closed = False
        self._home = self._ways[0].poller
        self._home.look_for(self)

    @property
    def names(self) -> list[str]:
        """Of the rails, in their order."""
        return [state.name for state in self._states]

    @property
    def ready(self) -> list[bool]:
        return [state.ready for state in self._states]

    @property
    def troubles(self) -> list[str]:
        """Why rails without a queue have none."""
        return [f"{way.state.name}: {way.trouble}" for way in self._ways if way.trouble]

    def open(self) -> None:
        """Connects all rails in one question; `OSError` where none could be."""
        self._connect(self._missing())
        if not any(self.ready):
            raise OSError("; ".join(self.troubles) or "no rail")

    def repair(self, timeout: float) -> bool:
        """Connects rails that have no queue, if that is not being done; waits so long for it. Whether there is one then."""
        self._repair()
        with self._lock:
            self._dialed.wait_for(lambda: any(self.ready) or not self._dialing, timeout)
        return any(self.ready)

    def submit(self, pieces: Sequence[Piece], timeout: float, ended: Callable[[Transfer], None]) -> Transfer:
        """Starts a transfer; `ended` is called once, from any thread, maybe before this returns."""
        slices = Slices(self._states, [piece.nbytes for piece in pieces], self._clock, self._largest)
        transfer = Transfer(pieces, slices, self._clock() + timeout, ended)
        with self._lock:
            if self._closed:
                transfer.stop(CLOSED)
            if not self._active:
                self._look_at = self._clock() + _LOOK
                for way in self._ways:
                    way.poller.begin()
            self._active.append(transfer)
            over = self._pump()
        self._home.wake(min(transfer.deadline, self._look_at))
        for one in over:
            one.finish()
        if not transfer.state and not self._dialing:
            self._repair()
        return transfer

    def close(self) -> None:
        """Ends what is under way; on unordered rails that takes until their last completions are there. Waits for a question that is on
        its way to the other process: devices must not be closed while a thread makes queues of them."""
        with self._lock:
            self._closed = True
            for transfer in self._active:
                transfer.stop(CLOSED)
            for way in self._ways:
                self._shut(way)
            over = self._pump()
        for one in over:
            one.finish()
        with self._lock:
            self._dialed.wait_for(lambda: not self._dialing)
        self._home.leave(self)

    # The interface for pollers.

    def completed(self, serial: int, completions: list[Completion]) -> None:
        with self._lock:
            index = next((i for i, way in enumerate(self._ways) if way.send is not None and way.send.serial == serial), None)
            if index is None:
                return
            self._take(index, completions)
            over = self._pump()
            broken = self._ways[index].queue is None and bool(self._active)
        for one in over:
            one.finish()
        if broken:
            self._repair()

    def next_look(self) -> float | None:
        active = self._active
        return min(self._look_at, min(one.deadline for one in active)) if active else None

    def look(self) -> None:
        """Ends transfers whose time is up, and repairs."""
        now = self._clock()
        self._look_at = now + _LOOK
        with self._lock:
            late = [one for one in self._active if one.deadline <= now]
            for transfer in late:
                transfer.stop(TIMED_OUT)
            if late:
                for way in self._ways:
                    if not way.rail.unordered and way.send is not None and way.send.any(lambda item: item[0] in late):
                        self._shut(way)
            for way in self._ways:
                if way.state.under_way and now - way.state.last_arrival >= STALLED and not way.rail.unordered:
                    self._give_up(way)
            over = self._pump()
        for one in over:
            one.finish()
        self._repair()

    def lost(self, rail: Rail, error: OSError) -> None:
        with self._lock:
            for way in self._ways:
                if way.rail is rail:
                    way.lost, way.trouble = True, str(error)
                    way.state.rests_until = float("inf")
                    self._shut(way)
            over = self._pump()
            other = next((way.poller for way in self._ways if not way.lost), None)
            if self._home.rail is rail and other is not None:
                self._home = other
                other.look_for(self)
                other.wake(self._clock())
        for one in over:
            one.finish()

    # Called with the lock.

    def _take(self, index: int, completions: list[Completion]) -> None:
        way = self._ways[index]
        send = way.send
        assert send is not None
        for completion in completions:
            for (transfer, cut), status in send.completed(completion):
                if status == SUCCESS:
                    transfer.slices.arrived(cut, index)
                elif status == FLUSHED:
                    transfer.slices.returned(cut, index)
                else:
                    last = final(status)
                    transfer.slices.failed(cut, index, status_text(status, completion.vendor), final=last)
                    if last:
                        transfer.stop(REFUSED)
                    else:
                        way.state.failed(self._clock())
        if send.broken:
            self._shut(way)

    def _shut(self, way: _Way) -> None:
        """Closes its queue; slices that were under way are to be sent again. An unordered one ends with its last completion."""
        way.state.ready = False
        queue, send = way.queue, way.send
        if queue is None or send is None:
            return
        if way.rail.unordered and len(send) and not way.lost:
            send.broken = True
            return
        way.queue = way.send = None
        way.poller.detach(send.serial)
        queue.close()
        index = self._ways.index(way)
        for transfer, cut in send.forsaken():
            transfer.slices.returned(cut, index)

    def _give_up(self, way: _Way) -> None:
        """Not even a failure is reported."""
        send = way.send
        assert send is not None
        oldest, cut = send.oldest()
        way.state.failed(self._clock())
        self._shut(way)
        oldest.slices.blame(cut, self._ways.index(way), f"nothing received for {STALLED:g} s")

    def _pump(self) -> list[Transfer]:
        """Posts what there is room for; the transfers that are over."""
        while self._post():
            pass
        over = [one for one in self._active if one.slices.ended]
        if over:
            self._active = [one for one in self._active if not one.slices.ended]
            if not self._active:
                for way in self._ways:
                    way.poller.end()
        return over

    def _post(self) -> bool:
        """Whether a queue was refused, so that there is more to post elsewhere."""
        lists: list[list[WorkRequest]] = [[] for _ in self._ways]
        sends = [way.send for way in self._ways]
        full = [send is None or send.full for send in sends]
        for transfer in self._active:
            take, pieces = transfer.slices.take, transfer.pieces
            while taken := take(full):
                cut, index = taken
                send = sends[index]
                assert send is not None
                piece = pieces[cut.piece]
                remote_key = piece.remote_keys.get(self._ways[index].remote)
                if remote_key is None:
                    transfer.slices.failed(cut, index, f"the memory is not registered on {self._ways[index].remote}")
                    continue
                number, signaled = send.add((transfer, cut), cut.nbytes)
                here, there = piece.address + cut.offset, piece.remote_address + cut.offset
                lists[index].append(WorkRequest(number, piece.write, here, cut.nbytes, piece.keys[index], there, remote_key, signaled))
                if send.full:
                    full[index] = True
        refused = False
        for way, requests in zip(self._ways, lists, strict=True):
            if not requests:
                continue
            assert way.queue is not None and way.send is not None
            if not requests[-1].signaled:
                requests[-1] = requests[-1]._replace(signaled=True)
                way.send.signaled_last()
            if not way.queue.post(requests):
                refused = True
                way.state.failed(self._clock())
                if way.rail.unordered:
                    for transfer, cut in way.send.withdraw(len(requests)):
                        transfer.slices.returned(cut, self._ways.index(way))
                self._shut(way)
        return refused

    # Called without the lock.

    def _missing(self) -> list[_Way]:
        now = self._clock()
        return [way for way in self._ways if way.queue is None and not way.lost and not way.state.resting(now)]

    def _repair(self) -> None:
        """Has a thread connect the ways that have no queue."""
        with self._lock:
            missing = self._missing()
            if self._dialing or self._closed or not missing:
                return
            self._dialing = True
        self._start(lambda: self._redial(missing))

    def _redial(self, missing: list[_Way]) -> None:
        try:
            self._connect(missing)
        finally:
            with self._lock:
                self._dialing = False
                self._dialed.notify_all()
                over = self._pump()
            for one in over:
                one.finish()

    def _connect(self, ways: Sequence[_Way]) -> None:
        """Makes their queues, in one question to the other process. A failure is an error of the rail."""

        def fails(way: _Way, why: str) -> None:
            with self._lock:
                way.trouble = why
                way.state.failed(self._clock())

        made: list[tuple[_Way, Queue]] = []
        for way in ways:
            try:
                made.append((way, way.rail.queue(self._depth)))
            except OSError as e:
                fails(way, str(e))
        if not made:
            return
        refused = "the other process has no rail for it"
        try:
            answers = self._dial([queue.record for _, queue in made])
        except OSError as e:
            refused, answers = str(e), [None] * len(made)
        for (way, queue), answer in zip(made, answers, strict=True):
            if answer is None:
                queue.close()
                fails(way, refused)
                continue
            try:
                queue.connect(answer)
            except OSError as e:
                queue.close()
                fails(way, str(e))
                continue
            with self._lock:
                if self._closed or way.lost:
                    queue.close()
                    continue
                way.queue, way.remote, way.trouble = queue, answer.device, ""
                way.send = SendQueue(next(_serials), self._depth, way.rail.unordered)
                way.poller.attach(way.send.serial, self)
                way.state.ready = True
