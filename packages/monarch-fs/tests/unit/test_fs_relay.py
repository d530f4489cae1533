"""The relay on a simulated clock: each chunk from the nearest host, repair around hosts that are dead, stopped or wrong."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import cast

import pytest

from monarch.fs._relay.failure import FetchFailure
from monarch.fs._relay.host_tree import CLIENT, chain_of, upstreams_of
from monarch.fs._relay.relay import KEEPALIVE, SILENCE, Ask, Done, Relay, Serving

TREE = "t"
LATENCY = 0.001


class Host:
    def __init__(self, rank: int, world: World) -> None:
        self.rank, self.world = rank, world
        self.relay, self.serving = Relay(), Serving()
        self.held: set[bytes] = set()
        self.failed: dict[bytes, FetchFailure] = {}
        self.state = "up"
        # Contents in its answers.
        self.given = 0
        self.backlog: list[Callable[[], None]] = []
        self.alarm = float("inf")

    def settle(self) -> None:
        now = self.world.now
        while True:
            for ask in self.relay.ready(now):
                self.world.send(self, ask)
            done = self.relay.finished()
            if not done:
                break
            self.take(done)
        for key, tree, ids in self.serving.due(now):
            self.relay.unwait(tree, ids, key)
            self.reply(key)
        for at in (self.relay.deadline(), self.serving.deadline()):
            if at is not None and not now < self.alarm <= at:
                self.alarm = max(at, now + 1e-6)
                self.world.at(self.alarm, self, self.settle)

    def take(self, outcomes: list[Done]) -> None:
        ready: list[object] = []
        for done in outcomes:
            if done.failure is None:
                self.held.add(done.id)
                self.world.last = self.world.now
            else:
                self.failed[done.id] = done.failure
            ready += self.serving.done(done)
        for key in ready:
            self.reply(key)

    def asked(self, sender: Host, ask: Ask) -> None:
        lacking = [id for id in ask.ids if id not in self.held]
        waits = len(lacking) == len(ask.ids)
        key = (sender, ask)
        if lacking:
            self.relay.want(TREE, lacking, key if waits else None, urgent=ask.urgent, bulk=ask.bulk)
        if waits:
            self.serving.asked(key, TREE, lacking, self.world.now)
        else:
            self.reply(key)
        self.settle()

    def reply(self, key: object) -> None:
        sender, ask = cast("tuple[Host, Ask]", key)
        contents = {id: len(id) for id in ask.ids if id in self.held}
        self.given += len(contents)
        failures = {id: self.failed[id] for id in ask.ids if id in self.failed}
        wrong = self.state == "wrong"

        def deliver() -> None:
            if wrong:
                sender.relay.arrived(ask.number, self.world.now)
                sender.relay.wrong(self.rank)
            else:
                sender.relay.answered(ask.number, contents, failures, self.world.now)
            sender.settle()

        self.world.at(self.world.now + LATENCY, sender, deliver)


class World:
    """Hosts, the client, and what is under way between them."""

    def __init__(self, hosts: int, ids: list[bytes], fanout: int = 4) -> None:
        self.now = 0.0
        self.sent = dict.fromkeys(ids, 0)
        self.failing: dict[bytes, FetchFailure] = {}
        self.asks = 0
        # The time at which a host got its last chunk.
        self.last = 0.0
        self._events: list[tuple[float, int, Host, Callable[[], None]]] = []
        self._numbers = count()
        self.hosts = [Host(rank, self) for rank in range(hosts)]
        for host in self.hosts:
            host.relay.join(TREE, upstreams_of(host.rank, hosts, fanout), chain_of(host.rank, hosts, fanout))

    def at(self, time: float, host: Host, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), host, event))

    def send(self, sender: Host, ask: Ask) -> None:
        self.asks += 1
        if ask.upstream == CLIENT:
            self.at(self.now + LATENCY, sender, lambda: self.client(sender, ask))
            return
        assert isinstance(ask.upstream, int)
        receiver = self.hosts[ask.upstream]
        if receiver.state == "dead":
            self.at(self.now + LATENCY, sender, lambda: self.ended(sender, receiver))
        else:
            self.at(self.now + LATENCY, receiver, lambda: receiver.asked(sender, ask))

    def client(self, sender: Host, ask: Ask) -> None:
        contents = {id: len(id) for id in ask.ids if id not in self.failing}
        for id in contents:
            self.sent[id] += 1
        failures = {id: self.failing[id] for id in ask.ids if id in self.failing}

        def deliver() -> None:
            sender.relay.answered(ask.number, contents, failures, self.now)
            sender.settle()

        self.at(self.now + LATENCY, sender, deliver)

    def ended(self, host: Host, dead: Host) -> None:
        host.relay.ended(dead.rank)
        host.settle()

    def kill(self, rank: int) -> None:
        dead = self.hosts[rank]
        dead.state = "dead"
        for host in self.hosts:
            if host is not dead:
                self.at(self.now + LATENCY, host, lambda host=host: self.ended(host, dead))

    def resume(self, rank: int) -> None:
        host = self.hosts[rank]
        host.state, backlog, host.backlog = "up", host.backlog, []
        for event in backlog:
            event()

    def run(self, until: float = float("inf"), steps: int = 3_000_000) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, host, event = heapq.heappop(self._events)
            steps -= 1
            assert steps > 0, "the hosts go on asking for ever"
            if host.state == "stopped":
                host.backlog.append(event)
            elif host.state != "dead":
                event()
        self.now = max(self.now, until) if until != float("inf") else self.now

    def want_everywhere(self, ids: list[bytes], *, urgent: bool = False, bulk: bool = False) -> None:
        for host in self.hosts:
            host.relay.want(TREE, ids, None, urgent=urgent, bulk=bulk)
            host.settle()


def chunks(number: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in range(1, number + 1)]


def test_thousand_hosts_get_all_once() -> None:
    ids = chunks(64)
    world = World(1024, ids)
    world.want_everywhere(ids)
    world.run()
    assert all(host.held == set(ids) for host in world.hosts)
    assert set(world.sent.values()) == {1}
    assert sum(host.relay.repairs for host in world.hosts) == 0
    # In simulated seconds: five levels of hosts.
    assert world.last < SILENCE


@pytest.mark.parametrize("dead", [0, 1, 7, 200])
def test_children_of_killed_host_repair(dead: int) -> None:
    ids = chunks(64)
    world = World(1024, ids)
    world.want_everywhere(ids)
    world.run(until=3 * LATENCY)
    world.kill(dead)
    world.run()
    assert all(host.held == set(ids) for host in world.hosts if host.rank != dead)
    assert max(world.sent.values()) <= 2
    # Only its children had asked it.
    repaired = [host.rank for host in world.hosts if host.relay.repairs and host.rank != dead]
    assert set(repaired) <= set(range(4 * dead + 1, 4 * dead + 5))


def test_half_of_hosts_killed_at_random() -> None:
    ids = chunks(32)
    world = World(256, ids)
    world.want_everywhere(ids)
    chance = random.Random(5)
    for rank in chance.sample(range(256), 128):
        world.run(until=world.now + LATENCY / 8)
        world.kill(rank)
    world.run()
    assert all(host.held == set(ids) for host in world.hosts if host.state == "up")


def test_stopped_parent_is_passed_and_may_return() -> None:
    ids = chunks(16)
    world = World(64, ids)
    world.hosts[1].state = "stopped"
    world.want_everywhere(ids)
    world.run(until=2.5 * SILENCE)
    assert all(host.held == set(ids) for host in world.hosts if host.rank != 1)
    assert max(world.sent.values()) <= 2
    world.resume(1)
    world.run()
    assert world.hosts[1].held == set(ids)
    # It was not dropped: a later chunk is from it.
    more = [b"m" * 32]
    world.sent[more[0]] = 0
    before = world.hosts[5].relay.repairs
    world.want_everywhere(more)
    world.run()
    assert world.hosts[5].held >= set(more) and world.hosts[5].relay.repairs == before


def test_waiting_parent_is_not_left() -> None:
    ids = chunks(4)
    world = World(8, ids)
    world.hosts[0].state = "stopped"
    world.want_everywhere(ids)
    world.run(until=SILENCE * 0.9)
    # Host 5 waits for host 1, which waits for host 0: host 1 answers that it has no content yet.
    assert not world.hosts[5].held and world.hosts[5].relay.repairs == 0
    world.run(until=3 * SILENCE)
    assert all(host.held == set(ids) for host in world.hosts if host.rank) and world.hosts[5].relay.repairs == 0


def test_wrong_bytes_drop_their_sender() -> None:
    ids = chunks(16)
    world = World(64, ids)
    world.hosts[1].state = "wrong"
    world.want_everywhere(ids)
    world.run()
    assert all(host.held == set(ids) for host in world.hosts)
    # Its children, and no other host: the siblings get their contents from host 0.
    assert {host.rank: host.relay.refused for host in world.hosts if host.relay.refused} == dict.fromkeys((5, 6, 7, 8), 1)


def test_host_sends_each_chunk_once() -> None:
    ids = chunks(64)
    world = World(1024, ids)
    world.want_everywhere(ids, bulk=True)
    world.run()
    assert all(host.held == set(ids) for host in world.hosts)
    assert set(world.sent.values()) == {1}
    assert [host.given for host in world.hosts] == [len(ids)] * 1023 + [0]
    # In simulated seconds: a message from each host to the next, and the pauses of hosts with long waits.
    assert world.last < 1024 * LATENCY + SILENCE


@pytest.mark.parametrize("dead", [[0], [500], [7, 8, 9, 10, 11]])
def test_chain_closes_around_killed_hosts(dead: list[int]) -> None:
    ids = chunks(64)
    world = World(1024, ids)
    world.want_everywhere(ids, bulk=True)
    world.run(until=10 * LATENCY)
    for rank in dead:
        world.kill(rank)
    world.run()
    assert all(host.held == set(ids) for host in world.hosts if host.rank not in dead)
    assert max(world.sent.values()) <= 2


def test_urgent_read_goes_up_the_tree() -> None:
    ids = chunks(2)
    world = World(1024, ids)
    last = world.hosts[-1]
    last.relay.want(TREE, ids, None, urgent=False, bulk=True)
    last.settle()
    last.relay.want(TREE, ids[:1], "read", urgent=True)
    last.settle()
    # A message takes two seconds along the chain and back.
    world.run(until=1.0)
    assert last.held == set(ids[:1])


def test_failure_of_client_is_final() -> None:
    ids = chunks(3)
    world = World(64, ids)
    world.failing[ids[1]] = FetchFailure(5, "changed", stale=True, final=True)
    world.want_everywhere(ids)
    world.run()
    assert all(host.failed[ids[1]].reason == "changed" and host.held == {ids[0], ids[2]} for host in world.hosts)


def asks_of(relay: Relay, now: float = 0.0) -> list[Ask]:
    return relay.ready(now)


def test_equal_ids_share_a_request() -> None:
    relay = Relay()
    relay.join(TREE, ["up"])
    [id] = chunks(1)
    relay.want(TREE, [id], "a", urgent=False)
    [ask] = asks_of(relay)
    relay.want(TREE, [id], "b", urgent=True)
    assert asks_of(relay) == []
    relay.answered(ask.number, {id: 1}, {}, 0.1)
    assert relay.finished() == [Done(TREE, id, ["a", "b"], None)]


def test_urgent_request_passes_a_full_window() -> None:
    relay = Relay()
    relay.join(TREE, ["up"])
    ids = [bytes([1, 1]) + id[2:] for id in chunks(5000)]
    relay.want(TREE, ids, None, urgent=False)
    pushed = asks_of(relay)
    assert len(pushed) == 48 and not any(ask.urgent for ask in pushed)
    relay.want(TREE, ids[-1:], "read", urgent=True)
    [read] = asks_of(relay)
    assert read.urgent and read.ids == (ids[-1],)


def test_last_upstream_gone_gives_reason() -> None:
    relay = Relay()
    relay.join(TREE, ["parent", "client"])
    [id] = chunks(1)
    relay.want(TREE, [id], "w", urgent=True)
    assert [ask.upstream for ask in asks_of(relay)] == ["parent"]
    relay.ended("parent")
    assert [ask.upstream for ask in asks_of(relay)] == ["client"]
    relay.ended("client")
    assert asks_of(relay) == []
    [done] = relay.finished()
    assert done.failure is not None and done.failure.reason == "source left"


def test_unjoined_upstream_is_asked_later() -> None:
    relay = Relay()
    relay.join(TREE, ["parent"])
    [id] = chunks(1)
    relay.want(TREE, [id], "w", urgent=True)
    for strike in range(3):
        [ask] = asks_of(relay, strike * 10.0)
        relay.unjoined(ask.number, strike * 10.0)
        assert asks_of(relay, strike * 10.0 + 0.5) == []
    [done] = relay.finished()
    assert done.failure is not None


def test_request_before_the_tree_waits_for_it() -> None:
    serving = Serving()
    assert [serving.early(key, TREE, at) for key, at in (("a", 0.0), ("b", 0.5))] == [True, True]
    assert serving.early("c", "other", 0.6)
    assert (serving.unjoined(KEEPALIVE - 0.01), serving.deadline()) == ([], KEEPALIVE)
    # The oldest has reached the limit: its sender asks another host.
    assert serving.unjoined(KEEPALIVE) == ["a"]
    assert serving.joined(TREE) == ["b"] and serving.joined(TREE) == []
    assert serving.deadline() == 0.6 + KEEPALIVE


def test_left_tree_is_refused_until_it_is_joined() -> None:
    serving = Serving()
    serving.left(TREE)
    assert not serving.early("a", TREE, 0.0)
    assert serving.joined(TREE) == []
    assert serving.early("a", TREE, 0.0)


def test_flood_of_requests_for_unknown_trees_is_refused() -> None:
    serving = Serving()
    kept = sum(serving.early(number, f"tree {number}", 0.0) for number in range(20_000))
    assert 0 < kept < 20_000
    assert len(serving.unjoined(KEEPALIVE)) == kept and serving.early("again", TREE, 1.0)


def test_leaving_fails_what_is_wanted() -> None:
    relay = Relay()
    relay.join(TREE, ["up"])
    ids = chunks(2)
    relay.want(TREE, ids, "w", urgent=False)
    [ask] = asks_of(relay)
    relay.leave(TREE)
    assert [done.id for done in relay.finished() if done.failure] == ids
    relay.answered(ask.number, {ids[0]: 1}, {}, 0.0)
    assert relay.finished() == [] and relay.counts() == (0, 0)


@pytest.mark.parametrize("fanout", [1, 2, 4])
def test_upstreams_have_lower_ranks(fanout: int) -> None:
    for rank in range(300):
        found = upstreams_of(rank, 300, fanout)
        assert found[-1] == CLIENT and len(set(found)) == len(found) and all(other < rank for other in found)
        chained = chain_of(rank, 300, fanout)
        assert set(chained) >= set(found) and chained[-1] == CLIENT and len(set(chained)) == len(chained)
        assert chained[0] == (rank - 1 if rank else CLIENT) and all(other < rank for other in chained)
    with pytest.raises(ValueError, match="rank 3 of 3 hosts"):
        upstreams_of(3, 3, fanout)
