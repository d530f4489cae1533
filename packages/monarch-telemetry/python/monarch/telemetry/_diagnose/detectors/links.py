"""Links between hosts, by the counters that the kernel has of each TCP connection: lost segments, and data that leaves too slowly.

A receiver that is slow itself closes its window. The kernel counts the time for which that limits a connection, so a slow receiver is
no slow link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The part of the sent segments that were sent again from which a link loses too many, and the least number of them.
_LOST, _LEAST_LOST = 0.02, 10
# Bytes that waited in both looks, and bytes per second below which a link is slow then.
_WAITING, _RATE = 128 << 10, 4 << 20
# A link has a full queue if its round trip is this many times its least one, and at least this many microseconds.
_QUEUED, _QUEUED_US = 10, 10_000
# The part of the time for which the receiver may have been the limit.
_RECEIVER = 0.2

# Above the weight of a host that does not answer.
_EXPLAINS_SILENCE = 87


class _Connection(NamedTuple):
    """A connection in both looks, with the process and host that reported it."""

    host: str
    proc: str
    there: str
    before: Mapping[str, Any]
    now: Mapping[str, Any]
    since: float

    def more(self, name: str) -> int:
        return int(self.now[name]) - int(self.before[name])


def bad(graph: WaitGraph) -> list[Finding]:
    """One finding for each pair of hosts; of several connections the one with most lost or waiting data counts."""
    addresses = _addresses(graph)
    found: dict[tuple[str, str], tuple[int, Finding]] = {}
    for one in _connections(graph):
        # The connection of an address without a process of the job leads out of it.
        there = addresses.get(one.there, one.there)
        made = _finding(one, there)
        if made is not None:
            if there in _silent(graph):
                # The link explains why the host does not answer.
                made = made[0], made[1]._replace(weight=_EXPLAINS_SILENCE)
            pair = (min(one.host, there), max(one.host, there))
            known = found.get(pair)
            if known is None or known[0] < made[0]:
                found[pair] = made
    return _merged(graph, {pair: finding for pair, (_, finding) in found.items()})


def _finding(one: _Connection, there: str) -> tuple[int, Finding] | None:
    """What is wrong with a connection, with the bytes or segments that are a measure of it."""
    lost, slow = _lost(one, there), _slow(one, there)
    if lost is None or slow is None:
        return lost or slow
    # The full queue of a slow link drops segments, and delays the others. A lossy link does not delay those that arrive.
    trip, least = int(one.now["round_trip_us"]), int(one.now["least_round_trip_us"])
    return slow if trip >= max(_QUEUED_US, _QUEUED * least) else lost


def _lost(one: _Connection, there: str) -> tuple[int, Finding] | None:
    sent, resent = int(one.now["sent_segments"]), int(one.now["resent"])
    if resent < _LEAST_LOST or resent < _LOST * sent or (one.more("resent") <= 0 and int(one.now["retries"]) == 0):
        return None
    sentence = f"{_link(one, there)} loses data: {resent:,} of {sent:,} segments were sent again ({resent / max(sent, 1):.0%})"
    text = f"round trip {int(one.now['round_trip_us']) / 1e3:.1f} ms, {one.more('resent')} segments sent again between both looks"
    return resent, _made(one, there, sentence, text, 68)


def _slow(one: _Connection, there: str) -> tuple[int, Finding] | None:
    waits = min(int(look["unsent_bytes"]) for look in (one.before, one.now))
    busy = one.more("busy_us")
    if waits < _WAITING or one.since <= 0 or one.more("receiver_limited_us") > _RECEIVER * max(busy, 1):
        return None
    rate = one.more("acknowledged_bytes") / one.since
    if rate >= _RATE:
        return None
    sentence = f"{_link(one, there)} is slow: {rate / (1 << 20):.2f} MiB/s while {waits / (1 << 20):.1f} MiB wait to be sent"
    text = (
        f"round trip {int(one.now['round_trip_us']) / 1e3:.1f} ms (least {int(one.now['least_round_trip_us']) / 1e3:.1f} ms),"
        f" {one.more('acknowledged_bytes'):,} bytes were acknowledged in {seconds(one.since)}, the receiver was not the limit"
    )
    return waits, _made(one, there, sentence, text, 64)


def _link(one: _Connection, there: str) -> str:
    return f"the link from host {one.host} to host {there}"


def _made(one: _Connection, there: str, sentence: str, text: str, weight: int) -> Finding:
    return Finding(sentence, (("host", there),), (Fact(text, f"TCP counters of host {one.host}"),), f"ping {one.there}", weight)


def _merged(graph: WaitGraph, found: Mapping[tuple[str, str], Finding]) -> list[Finding]:
    """The findings; where all links of one of several hosts are bad, the host of the most of them is named first."""
    counts: dict[str, int] = {}
    for pair in found:
        for name in pair:
            counts[name] = counts.get(name, 0) + 1
    worst = max(counts, key=lambda name: (counts[name], name), default="")
    if counts.get(worst, 0) < 2:
        return list(found.values())
    merged = [finding for pair, finding in found.items() if worst in pair]
    first = max(merged, key=lambda one: one.weight)
    facts = (*first.facts, Fact(f"all {len(merged)} bad links are of host {worst}", "TCP counters of all hosts"))
    rest = [finding for pair, finding in found.items() if worst not in pair]
    return [first._replace(nodes=(("host", worst),), facts=facts), *rest]


def _addresses(graph: WaitGraph) -> dict[str, str]:
    """The hosts by the addresses of their own ends of connections. The one host without a report has the only other address."""
    reports = list(_reports(graph))
    known = {str(one["here"][0]): host for host, _, _, resources in reports for one in resources.get("connections", ())}
    others = {str(one["there"][0]) for _, _, _, resources in reports for one in resources.get("connections", ())} - set(known)
    reported = {host for host, _, _, resources in reports if resources.get("connections")}
    unreported = [host.name for host in graph.index.snapshot.hosts if host.state == "joined" and host.name not in reported]
    if len(unreported) == len(others) == 1:
        known[others.pop()] = unreported[0]
    return known


def _silent(graph: WaitGraph) -> list[str]:
    return [host.name for host in graph.index.snapshot.hosts if host.state == "joined" and host.error]


def _connections(graph: WaitGraph) -> Iterator[_Connection]:
    for host, proc, earlier, resources in _reports(graph):
        before = {(tuple(one["here"]), tuple(one["there"])): one for one in earlier.get("connections", ())}
        clocks = resources.get("clock"), earlier.get("clock")
        since = clocks[0][1] - clocks[1][1] if clocks[0] and clocks[1] else 0.0
        for one in resources.get("connections", ()):
            known = before.get((tuple(one["here"]), tuple(one["there"])))
            if known is not None:
                yield _Connection(host, proc, str(one["there"][0]), known, one, since)


def _reports(graph: WaitGraph) -> Iterator[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
    """Host, process, and the resources of both looks, of each process and agent."""
    snapshot = graph.index.snapshot
    for host in snapshot.hosts:
        yield host.name, "agent", host.resources_before, host.resources
    for proc in snapshot.procs:
        # The client is the agent of its host.
        if proc.mesh is not None:
            yield proc.host, proc.uid, proc.resources_before, proc.resources


DETECTORS = (Detector("link", "TCP connections between hosts that lose segments, or whose data leaves slowly", bad),)
