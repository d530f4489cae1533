"""Transfers over a fabric that fails: byte-exact where they complete, ended otherwise, and quiet once they have ended."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_provider import StubRail

from monarch.rdma.verbs.acceptor import Acceptor, Export
from monarch.rdma.verbs.connection import CLOSED, COMPLETE, EXHAUSTED, REFUSED, STALLED, TIMED_OUT, Connection, Piece
from monarch.rdma.verbs.memory import Range
from monarch.rdma.verbs.slices import SLICE, SMALL, TRIES

# The period of the pattern divides no slice.
PATTERN = bytes(range(251)) * (20 * SLICE // 251 + 1)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Poller:
    """One that is notified when to look for completions."""

    def __init__(self, rail):
        self.rail, self.clients, self.lookers, self.busy = rail, {}, [], 0

    def attach(self, serial, client):
        self.clients[serial] = client

    def detach(self, serial):
        del self.clients[serial]

    def look_for(self, client):
        self.lookers.append(client)

    def leave(self, client):
        self.lookers.remove(client)

    def begin(self):
        self.busy += 1

    def end(self):
        self.busy -= 1

    def wake(self, at):
        pass

    def turn(self):
        for completion in self.rail.poll(1000):
            if client := self.clients.get(completion.number >> 32):
                client.completed(completion.number >> 32, [completion])


class Pair:
    """Two processes with a rail each for every name; the second owns memory."""

    def __init__(self, *unordered, size=1):
        self.clock = Clock()
        fabric = {}
        self.rails = [StubRail(f"near{i}", fabric, unordered=u) for i, u in enumerate(unordered)]
        self.far = [StubRail(f"far{i}", fabric, unordered=u) for i, u in enumerate(unordered)]
        self.acceptor = Acceptor(self.far)
        self.refuses = False
        self.pollers = [Poller(rail) for rail in self.rails]
        ways = [(rail, poller, 1.0 + i) for i, (rail, poller) in enumerate(zip(self.rails, self.pollers, strict=True))]
        self.connection = Connection(ways, self.dial, clock=self.clock, start=lambda job: job())
        self.local, self.remote = bytearray(size), bytearray(PATTERN[:size])
        self.original = bytes(self.remote)
        self.here = ctypes.addressof(ctypes.c_char.from_buffer(self.local))
        self.there = ctypes.addressof(ctypes.c_char.from_buffer(self.remote))
        self.export = Export(self.far, Range(self.there, size), writable=True)
        self.regions = [rail.register(self.here, size) for rail in self.rails]
        self.ended = []

    def dial(self, offers):
        if self.refuses:
            raise OSError("nobody answers")
        return self.acceptor.answer("peer", offers)

    def piece(self, offset, nbytes, write=False):
        keys = [region.key for region in self.regions]
        return Piece(write, self.here + offset, nbytes, keys, self.there + offset, self.export.record.keys)

    def submit(self, pieces, timeout=60.0):
        return self.connection.submit(pieces, timeout, self.ended.append)

    @property
    def under_way(self):
        return [queue for rail in self.rails for queue in rail.queues if queue.requests]

    def settle(self):
        """All that is under way completes, in order, until there is no more."""
        for _ in range(10000):
            for poller in self.pollers:
                poller.turn()
            if not self.under_way:
                return
            self.under_way[0].finish()
        raise AssertionError("it goes on and on")

    def close(self):
        self.connection.close()
        for rail in (*self.rails, *self.far):
            rail.close()


@pytest.fixture
def pair(request):
    made = Pair(*request.param, size=20 * SLICE)
    made.connection.open()
    yield made
    made.close()


def unordered(*rails):
    return pytest.mark.parametrize("pair", [rails], indirect=True)


@unordered(False, False)
def test_read_and_write(pair):
    transfer = pair.submit([pair.piece(0, 10 * SLICE + 5)])
    pair.settle()
    assert transfer.state == COMPLETE and pair.ended == [transfer]
    assert pair.local[: 10 * SLICE + 5] == pair.original[: 10 * SLICE + 5] and not any(pair.local[10 * SLICE + 5 :])
    assert all(rail.posted for rail in pair.rails)
    pair.local[:100] = bytes(100)
    pair.submit([pair.piece(0, 100, write=True)])
    pair.settle()
    assert pair.remote[:101] == bytes(100) + pair.original[100:101]
    assert [poller.busy for poller in pair.pollers] == [0, 0]


@unordered(False)
def test_one_completion_covers_sixteen_small_requests(pair):
    pair.submit([pair.piece(i * 64, 64) for i in range(40)])
    (queue,) = pair.under_way
    assert [i for i, request in enumerate(queue.requests) if request.signaled] == [15, 31, 39]
    pair.settle()
    assert pair.local[: 40 * 64] == pair.original[: 40 * 64] and pair.ended[0].state == COMPLETE


@unordered(True)
def test_completions_in_any_order_complete_the_transfer(pair):
    transfer = pair.submit([pair.piece(0, 8 * SLICE)])
    while pair.under_way:
        pair.under_way[0].finish(-1)
        pair.pollers[0].turn()
    assert transfer.state == COMPLETE and pair.local[: 8 * SLICE] == pair.original[: 8 * SLICE]


@unordered(False, False)
def test_failed_rail_is_replaced_during_a_transfer(pair):
    pair.rails[0].refuses_connections = True
    transfer = pair.submit([pair.piece(0, 20 * SLICE)])
    first = pair.rails[0].queues[0]
    first.finish()
    first.finish(status=12)
    pair.pollers[0].turn()
    assert first.closed and not transfer.state
    pair.settle()
    assert transfer.state == COMPLETE and bytes(pair.local) == pair.original
    assert [(one.rail, one.status) for one in transfer.attempts] == [("near0", "no answer after all retries (status 12)")]
    # The rail is back with the next check, because it has not failed often.
    pair.rails[0].refuses_connections = False
    again = pair.submit([pair.piece(0, 20 * SLICE)])
    pair.connection.look()
    assert pair.connection.ready == [True, True]
    pair.settle()
    assert again.state == COMPLETE and not again.attempts


@unordered(False)
def test_only_rail_is_tried_three_times(pair):
    transfer = pair.submit([pair.piece(0, SLICE)])
    for _ in range(TRIES):
        assert not transfer.state
        (queue,) = pair.under_way
        queue.finish(status=12)
        pair.pollers[0].turn()
        pair.connection.look()
    assert transfer.state == EXHAUSTED and len(transfer.attempts) == TRIES
    assert list(transfer.left()) == [(0, 0, SLICE)]
    # Now it rests, and the next transfer uses another transport at once.
    assert pair.submit([pair.piece(0, SLICE)]).state == EXHAUSTED
    pair.clock.now += 31
    pair.submit([pair.piece(0, SLICE)])
    pair.connection.look()
    pair.settle()
    assert pair.ended[-1].state == COMPLETE


@unordered(False, False)
def test_memory_that_is_not_there_any_more(pair):
    pair.export.close()
    transfer = pair.submit([pair.piece(0, 3 * SLICE)])
    pair.settle()
    assert transfer.state == REFUSED and "remote access error" in transfer.attempts[0].status
    assert not any(pair.local)
    pair.export = Export(pair.far, Range(pair.there, len(pair.remote)), writable=False)
    pair.connection.look()
    write = pair.submit([pair.piece(0, 10, write=True)])
    pair.connection.look()
    pair.settle()
    assert write.state == REFUSED and bytes(pair.remote) == pair.original


@unordered(False, False)
def test_time_is_up(pair):
    transfer = pair.submit([pair.piece(0, 20 * SLICE)], timeout=1.0)
    other = pair.submit([pair.piece(0, 10)], timeout=5.0)
    queues = pair.under_way
    pair.clock.now = 1.5
    pair.connection.look()
    assert transfer.state == TIMED_OUT and transfer.done == 0 and all(queue.closed for queue in queues)
    before = bytes(pair.local)
    assert pair.ended == [transfer] and pair.connection.next_look() is not None
    pair.settle()
    assert other.state == COMPLETE and pair.local[10:] == before[10:]
    assert pair.connection.next_look() is None


@unordered(False, False)
def test_silent_device_is_replaced(pair):
    transfer = pair.submit([pair.piece(0, SLICE)])
    (silent,) = pair.under_way
    pair.clock.now = STALLED - 0.1
    pair.connection.look()
    assert not silent.closed
    pair.clock.now = STALLED
    pair.connection.look()
    assert silent.closed and [one.status for one in transfer.attempts] == ["nothing received for 5 s"]
    (other,) = pair.under_way
    assert other.rail is not silent.rail
    pair.settle()
    assert transfer.state == COMPLETE


@unordered(False, False)
def test_removed_device_is_replaced(pair):
    transfer = pair.submit([pair.piece(0, 20 * SLICE)])
    pair.connection.lost(pair.rails[0], OSError("gone"))
    assert pair.pollers[1].lookers == [pair.connection]
    pair.settle()
    assert transfer.state == COMPLETE and bytes(pair.local) == pair.original
    pair.connection.lost(pair.rails[1], OSError("gone"))
    assert pair.submit([pair.piece(0, 10)]).state == EXHAUSTED


@unordered(False)
def test_close_ends_what_is_under_way(pair):
    transfer = pair.submit([pair.piece(0, 20 * SLICE)])
    pair.connection.close()
    assert transfer.state == CLOSED and not pair.under_way
    assert pair.submit([pair.piece(0, 10)]).state == CLOSED
    pair.pollers[0].lookers.append(pair.connection)


def test_connection_without_a_peer_fails():
    pair = Pair(False, False)
    pair.refuses = True
    with pytest.raises(OSError, match="nobody answers"):
        pair.connection.open()
    pair.refuses = False
    pair.rails[0].refuses_connections = True
    pair.connection.open()
    assert pair.connection.ready == [False, True]
    pair.close()


@given(st.data())
@settings(deadline=None)
def test_model(data):
    """Completions in any order, with errors, late or never; posts, connections and answers refused; time passes, peers come back."""
    draw = data.draw
    pair = Pair(*draw(st.lists(st.booleans(), min_size=1, max_size=3)), size=6 * SLICE)
    pair.connection.open()
    whole = []
    for start in (0, 2 * SLICE, 4 * SLICE):
        nbytes = draw(st.sampled_from([1, SMALL, SMALL + 1, SLICE, 2 * SLICE]))
        write = draw(st.booleans())
        if write:
            pair.local[start : start + nbytes] = bytes([start // SLICE + 1]) * nbytes
        transfer = pair.submit([pair.piece(start, nbytes, write)], draw(st.sampled_from([5.0, 1000.0])))
        whole.append((transfer, start, nbytes, write))
    for _ in range(draw(st.integers(0, 40))):
        busy = pair.under_way
        what = draw(st.sampled_from(["complete"] * 6 + ["fail", "lose", "refuse", "wait", "look", "turn"]))
        if what in ("complete", "fail", "lose") and busy:
            queue = draw(st.sampled_from(busy))
            which = draw(st.integers(0, len(queue.requests) - 1))
            status = draw(st.sampled_from([2, 6, 11, 12, 21])) if what == "fail" else 0
            # A datagram's completion comes in any case.
            queue.finish(which, status, silent=what == "lose" and not queue.rail.unordered)
        elif what == "refuse":
            rail = draw(st.sampled_from(pair.rails))
            rail.refuses_posts, rail.refuses_connections = draw(st.booleans()), draw(st.booleans())
            pair.refuses = draw(st.booleans())
        elif what == "wait":
            pair.clock.now += draw(st.sampled_from([0.01, 1.0, 10.0]))
        elif what == "look":
            pair.connection.look()
        else:
            draw(st.sampled_from(pair.pollers)).turn()
        for transfer, start, nbytes, _ in whole:
            if transfer.state:
                requests = [request for queue in pair.under_way for request in queue.requests]
                assert not any(pair.here + start <= request.address < pair.here + start + nbytes for request in requests)
    # The fault is over: everything ends.
    pair.refuses = False
    for rail in pair.rails:
        rail.refuses_posts = rail.refuses_connections = False
    for _ in range(100):
        pair.settle()
        pair.clock.now += 20
        pair.connection.look()
    assert sorted(map(id, pair.ended)) == sorted(id(transfer) for transfer, *_ in whole)
    for transfer, start, nbytes, write in whole:
        tries = {}
        for one in transfer.attempts:
            tries[one.piece, one.offset] = tries.get((one.piece, one.offset), 0) + 1
        assert max(tries.values(), default=0) <= TRIES
        assert transfer.state in (COMPLETE, TIMED_OUT, EXHAUSTED)
        if transfer.state == COMPLETE:
            expected = bytes([start // SLICE + 1]) * nbytes if write else pair.original[start : start + nbytes]
            assert pair.local[start : start + nbytes] == pair.remote[start : start + nbytes] == expected
        else:
            assert sum(n for _, _, n in transfer.left()) == nbytes - transfer.done
    assert [poller.busy for poller in pair.pollers] == [0] * len(pair.rails)
    pair.close()
