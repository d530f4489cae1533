"""Joining without input or output: when the clock runs, what is reported, which host is blamed."""

from __future__ import annotations

import pytest

from monarch.job import HostStatus, JobStatus
from monarch.job._job.join import LINE_SECONDS, Join
from monarch.job._job.launcher import Host


def running(*hosts: HostStatus) -> JobStatus:
    return JobStatus("running", "", list(hosts))


def waiting(mesh: str, rank: int, detail: str) -> HostStatus:
    return HostStatus(mesh, rank, "node1", "waiting", None, detail)


PENDING = JobStatus("pending", "Priority", [])


def test_join_timeout_does_not_count_pending_time() -> None:
    join = Join("slurm job x", {"a": 2}, 10, 0, False)
    join.seen(PENDING, 0)
    assert not join.overdue(1e9)
    join.seen(running(), 1e9)
    assert not join.overdue(1e9 + 10)
    assert join.overdue(1e9 + 10.001)
    join.seen(PENDING, 1e9 + 9)  # preempted and queued again
    assert not join.overdue(2e9)
    join.seen(running(), 2e9)
    assert not join.overdue(2e9 + 9)
    join.joined_host("a", 0)
    assert join.overdue(2e9 + 11)
    join.joined_host("a", 1)
    assert not join.overdue(3e9)


def test_join_without_a_timeout_is_never_overdue() -> None:
    join = Join("x", {"a": 1}, None, 0, False)
    join.seen(running(), 0)
    assert not join.overdue(1e12)


def test_status_line_appears_every_thirty_seconds_without_terminal() -> None:
    join = Join("slurm job x", {"a": 2}, None, 0, False)
    join.seen(PENDING, 0)
    said = [(now, join.line(now)) for now in range(100)]
    assert [now for now, line in said if line] == [LINE_SECONDS, 2 * LINE_SECONDS, 3 * LINE_SECONDS]
    assert said[30][1] == "slurm job x: pending (Priority), 0 of 2 hosts joined"
    join.joined_host("a", 0)
    join.joined_host("a", 1)
    assert join.line(1000) is None


def test_terminal_shows_each_change_once() -> None:
    join = Join("x", {"a": 2}, None, 0, True)
    join.seen(PENDING, 0)
    assert join.line(0) == "x: pending (Priority), 0 of 2 hosts joined"
    assert join.line(1000) is None
    join.seen(running(), 0)
    join.joined_host("a", 1)
    assert join.line(0) == "x: running, 1 of 2 hosts joined"
    join.joined_host("a", 0)
    assert join.line(0) == "x: running, 2 of 2 hosts joined"


def test_pauses_grow_to_a_second_within_the_timeout() -> None:
    join = Join("x", {"a": 1}, 100, 0, False)
    pauses = [join.pause(0) for _ in range(50)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0
    join.seen(running(), 0)
    assert join.pause(99.9) == pytest.approx(0.101)
    join.joined_host("a", 0)
    assert join.pause(0) < 0.02


def test_error_names_missing_hosts_with_their_output() -> None:
    join = Join("slurm job x", {"a": 2, "b": 1}, 120, 0, False)
    join.seen(running(waiting("b", 0, "connection refused by tcp://node1:22222")), 0)
    join.joined_host("a", 1)
    error = join.error({Host("a", 0): "Traceback:\nImportError: monarch"})
    assert str(error) == (
        "slurm job x: 1 of 3 hosts joined within 120 s\n"
        "  a[0]:\n"
        "    Traceback:\n"
        "    ImportError: monarch\n"
        "  b[0]: connection refused by tcp://node1:22222\n"
        "hint: `monarch logs` has all that the workers printed; `monarch heal` starts those again that ended"
    )
    assert (error.joined, error.total) == (1, 3)
    assert error.hosts == {"a[0]": "Traceback:\nImportError: monarch", "b[0]": "connection refused by tcp://node1:22222"}
    assert Join("x", {"a": 1}, 1, 0, False).error({}).hosts == {"a[0]": "no output"}


def test_many_missing_hosts_are_abbreviated() -> None:
    text = str(Join("x", {"a": 1000}, 1, 0, False).error({}))
    assert "... and 992 more" in text
    assert len(text.splitlines()) == 11
