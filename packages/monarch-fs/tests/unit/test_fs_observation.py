"""What the service of a host reports of its mounts: rows and metrics of the differences between states."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from monarch.extension import ProcId
from monarch.fs._daemon.mounted_tree import ReadError
from monarch.fs._daemon.served_status import ServedStatus
from monarch.fs._hosts.observation import MountState, Observation
from monarch.fs._relay.exchange import Peer, Refusal

IDLE = ServedStatus("g", 0, 0, 0, 0, 0, [], "", 0, [], "device", False, "", {}, 7, 1, "")


class Reports:
    """The rows and metrics of an observation."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, dict[str, Any]]] = []
        self.metrics: list[tuple[str, float, dict[str, str]]] = []

    def record(self, target: str, event: str, **fields: Any) -> None:
        self.rows.append((target, event, fields))

    def count(self, name: str, amount: float, attributes: Mapping[str, str]) -> None:
        self.metrics.append((name, amount, dict(attributes)))

    def observation(self) -> Observation:
        return Observation(self.record, self.count)


def failure(number: int, path: str) -> ReadError:
    return ReadError(number, path, errno.EIO, "source left", 1.5)


def test_failed_read_has_one_row_with_reason() -> None:
    reports = Reports()
    seen = reports.observation()
    seen.served("/m", IDLE._replace(errors=1, failures=[failure(1, "a")]), 3)
    assert seen.seen("/m") == (7, 1) and seen.seen("/other") == (0, 0)
    seen.served("/m", IDLE._replace(errors=1, failures=[failure(1, "a")]), 3)
    assert reports.rows == [("/m", "error", {"path": "a", "detail": "EIO: source left", "at": 1.5})]


def test_failures_beyond_those_that_are_kept_are_counted() -> None:
    reports = Reports()
    seen = reports.observation()
    seen.served("/m", IDLE._replace(errors=10, failures=[failure(9, "a"), failure(10, "b")]), 3)
    assert reports.rows[0] == ("/m", "error", {"detail": "8 more reads failed"})
    assert [fields["path"] for _, _, fields in reports.rows[1:]] == ["a", "b"]


def test_metrics_are_the_growth_since_the_last_look() -> None:
    reports = Reports()
    seen = reports.observation()
    first = IDLE._replace(faults=2, reads=10, waited=1, bytes_read=100, bytes_fetched=40)
    seen.served("/m", first, 3)
    assert reports.metrics == [
        ("monarch.fs.faults", 2, {}),
        ("monarch.fs.cache_hits", 9, {}),
        ("monarch.fs.bytes", 60, {"from": "store"}),
    ]
    reports.metrics.clear()
    seen.served("/m", first, 3)
    assert reports.metrics == []
    seen.served("/m", first._replace(faults=3, reads=12, waited=2, bytes_read=120, bytes_fetched=50), 3)
    assert [amount for _, amount, _ in reports.metrics] == [1, 1, 10]


def test_replaced_server_has_a_row_and_fresh_counts() -> None:
    reports = Reports()
    seen = reports.observation()
    seen.served("/m", IDLE._replace(reads=5, errors=4, failures=[failure(4, "a")]), 3)
    reports.rows.clear()
    reports.metrics.clear()
    seen.served("/m", IDLE._replace(server=8, reads=2, errors=1, failures=[failure(1, "b")], daemon_error="it was killed"), 4)
    assert [(event, fields["detail"]) for _, event, fields in reports.rows] == [
        ("takeover", "the daemon 3 was replaced by 4"),
        ("takeover", "the mount server 7 was replaced by 8: it was killed"),
        ("error", "EIO: source left"),
    ]
    assert reports.metrics == [("monarch.fs.cache_hits", 2, {})]


def test_lost_mount_is_reported_once() -> None:
    reports = Reports()
    seen = reports.observation()
    for _ in range(2):
        seen.failed("/m", "unmounted by another process")
    seen.served("/m", IDLE, 3)
    seen.failed("/m", "unmounted by another process")
    assert [row[1] for row in reports.rows] == ["failed", "failed"]


def test_exchange_has_bytes_by_origin_and_error_rows() -> None:
    reports = Reports()
    seen = reports.observation()
    counters = {"bytes_from_client": 10, "bytes_from_hosts": 4, "unstored": 2, "bytes_unstored": 9}
    seen.relayed(counters, [Refusal("t", Peer(3, "", ()), "wrong bytes")], {"t": "/m"}.__getitem__)
    seen.relayed(counters, [], {"t": "/m"}.__getitem__)
    assert reports.metrics == [("monarch.fs.bytes", 10, {"from": "client"}), ("monarch.fs.bytes", 4, {"from": "host"})]
    assert [(target, event) for target, event, _ in reports.rows] == [("", "store_full"), ("/m", "refused")]
    assert reports.rows[1][2]["detail"] == f"process {ProcId(3)}: wrong bytes" and reports.rows[0][2]["bytes"] == 9


def test_failed_mount_keeps_what_was_known_of_it() -> None:
    shown: list[tuple[MountState, bool]] = []
    observation = Observation(lambda *_, **__: None, lambda *_: None, lambda mount, *, ended=False: shown.append((mount, ended)))
    observation.failed("/data", "it has gone")
    observation.mounted("/data", "/src", 1, 5, 1)
    observation.mounted("/data", "/src", 1, 5, 2)
    observation.mounted("/data", "/src", 2, 6, 2)
    observation.failed("/data", "it has gone")
    observation.forget("/data")
    observation.forget("/data")
    state = MountState("/data", "/src", 1, "live", 5, 1)
    assert shown == [
        (state, False),
        (state._replace(faults=2), False),
        (MountState("/data", "/src", 2, "live", 6, 2), False),
        (MountState("/data", "/src", 2, "failed", 6, 2), False),
        (MountState("/data", "/src", 2, "unmounted", 0, 2), True),
    ]
