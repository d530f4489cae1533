"""The diagnosis of tables alone, as a capture has them."""

from __future__ import annotations

from math import inf, nan

import pytest
from support import made_up_faults as job
from support.engine import Engine

from monarch.telemetry._diagnose.collect import collected
from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed

CAUSES = {
    "first_cause": "trainer rank 3 (host host1, pid 1003) ended: failed (ValueError: bad batch), 8 min ago",
    "crash_loop": "trainer fails again and again: 6 failures, the last ended: exit code 1 (no such device)",
    "lost_host": "host host3 was lost: no heartbeat for 3 s",
    "deadlock": "trainer rank 2 (host host1, pid 1002) waits for trainer rank 3 (give()), which waits for trainer rank 2 (give()):"
    " a cycle of 2 since 40 s",
}


def found(rows: job.Rows) -> Diagnosis:
    return diagnosed(collected(lambda: None, Engine(job.batches(rows))))


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_cause_in_tables_is_first(name: str) -> None:
    rows = job.healthy()
    job.FAULTS[name](rows)
    assert found(rows).causes[0].sentence == CAUSES[name]


def gauges(rank: int, *values: float, name: str = "loss") -> list[job.Row]:
    """A gauge of a rank, a value each second, and the step beside it."""
    resource = f'{{"monarch.mesh": "workers", "monarch.rank": {rank}, "process.pid": {1000 + rank}}}'
    rows: list[job.Row] = []
    for at, value in enumerate(values):
        row = {"timestamp_us": job.START + at * job.SECOND + rank, "resource_attributes_json": resource, "attributes_json": "{}"}
        rows += [{**row, "name": "step", "value_f64": float(at)}, {**row, "name": name, "value_f64": value}]
    return rows


def test_first_gauge_without_a_number_is_first() -> None:
    rows = job.healthy()
    # A gauge that never was a number, and one that is a number again, are none.
    rows["metric_gauges"] = [
        *gauges(0, 0.5, 0.4, nan),
        *gauges(5, 0.5, inf, nan),
        *gauges(1, nan, nan),
        *gauges(2, 1.0, inf, 2.0, name="norm"),
    ]
    [cause] = found(rows).causes
    assert cause.sentence.startswith("the metric loss of trainer rank 5 (host host2, pid 1005) is NaN since ")
    assert cause.sentence.endswith(" at step 1: it was finite before, and 1 other rank followed")


def test_healthy_tables_have_no_cause() -> None:
    diagnosis = found(job.healthy())
    assert not diagnosis.causes and not diagnosis.missing
    assert (diagnosis.healthy_procs, diagnosis.procs, diagnosis.hosts) == (8, 8, 4)
