"""The diagnosis of tables alone, as a capture has them."""

from __future__ import annotations

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


def test_healthy_tables_have_no_cause() -> None:
    diagnosis = found(job.healthy())
    assert not diagnosis.causes and not diagnosis.missing
    assert (diagnosis.healthy_procs, diagnosis.procs, diagnosis.hosts) == (8, 8, 4)
