"""What a user may set: values that switch a thing off, and what is more of two sets of options."""

from __future__ import annotations

import pyarrow as pa
import pytest

from monarch.telemetry import TelemetryError
from monarch.telemetry._collector.options import Options
from monarch.telemetry._collector.snapshots import Schedule
from monarch.telemetry._store.store import Store


def test_zero_switches_the_bound_of_time_off() -> None:
    options = Options.of(retention_secs=0)
    assert options.retention == float("inf")
    now = 0.0
    schema = pa.schema([("n", pa.int64())])
    kept = Store({"rows": schema}, {}, clock=lambda: now, retention=options.retention)
    kept.append("rows", pa.record_batch([[1]], schema=schema))
    now = 1e9
    kept.append("rows", pa.record_batch([[2]], schema=schema))
    assert sum(batch.num_rows for batch in kept.snapshot(["rows"])["rows"]) == 2


def test_zero_switches_snapshots_off() -> None:
    options = Options.of(snapshot_interval_secs=0)
    schedule = Schedule()
    schedule.every(options.snapshot_interval)
    assert schedule.due(1e9) is None and schedule.wait(1e9, 0.2) == 0.2


def test_more_of_two_options_is_what_runs() -> None:
    never, minute = Options.of(retention_secs=0, snapshot_interval_secs=0), Options.of(retention_secs=60, snapshot_interval_secs=5)
    for both in (never.widened(minute), minute.widened(never)):
        assert (both.retention_secs, both.snapshot_interval_secs) == (0, 5)
    assert never.widened(never).snapshot_interval is None


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), True, "5"])
@pytest.mark.parametrize("name", ["retention_secs", "snapshot_interval_secs"])
def test_other_values_are_refused_with_what_zero_means(name: str, value: object) -> None:
    with pytest.raises(TelemetryError, match=f"{name}=.*expected a number greater than 0, or 0 for no"):
        Options.of(None, **{name: value})


def test_other_options_have_no_zero() -> None:
    with pytest.raises(TelemetryError, match="budget_bytes=0: expected a number greater than 0$"):
        Options.of(budget_bytes=0)
