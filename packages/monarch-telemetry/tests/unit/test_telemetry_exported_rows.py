"""What leaves a collector: rows in order, metrics when they are due, errors as rows; and what a client asks for by its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from monarch.config import configured
from monarch.extension import HostId, JobId, ProcId
from monarch.telemetry._arrow import pa
from monarch.telemetry._collector.exporting import Exporting
from monarch.telemetry._collector.keeping import Keeping
from monarch.telemetry._collector.options import Options
from monarch.telemetry._export.otlp import OtlpExporter
from monarch.telemetry._export.otlp_pipeline import Status
from monarch.telemetry._export.otlp_settings import Signal
from monarch.telemetry._sql.context import Session
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry.errors import TelemetryError

ASKED = (("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@receiver:4318"),)
NO_PROCS: dict[ProcId, JobId] = {}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Exporter:
    """Keeps what it gets, by table; with an error it raises, with a problem it reports a signal that has failed."""

    def __init__(self, error: Exception | None = None, problem: str = "") -> None:
        self.tables: list[str] = []
        self.closed = 0
        self.bases: list[tuple[Mapping[str, Any], Mapping[str, str]]] = []
        self._error, self._problem = error, problem

    def start(self, base: Mapping[str, Any], *, environment: Mapping[str, str]) -> OtlpExporter | None:
        self.bases.append((base, environment))
        return cast("OtlpExporter", self)

    def add(self, rows: Mapping[str, Sequence[Any]]) -> None:
        if self._error is not None:
            raise self._error
        self.tables += rows

    def status(self) -> dict[Signal, Status]:
        return {"logs": Status(0, 0, 0, 0, 0, 0, 0, self._problem)}

    def close(self, timeout: float) -> bool:
        self.closed += 1
        return True


def keeping(clock: Clock) -> Keeping:
    return Keeping(JobId(255), HostId(2), "node", ProcId(3), lambda: NO_PROCS, clock=clock)


def batch(table: str, **row: Any) -> Any:
    schema = TABLES[table].schema()
    filled = {field.name: None if field.nullable else "" if field.type == pa.string() else 0 for field in schema}
    return pa.RecordBatch.from_pylist([{**filled, **row}], schema=schema)


def stored(kept: Keeping, table: str) -> list[dict[str, Any]]:
    return [row for one in kept.store.snapshot([table])[table] for row in one.to_pylist()]


def totals(kept: Keeping) -> list[dict[str, Any]]:
    _, batches = kept.tables(["metric_totals"])["metric_totals"]
    return [row for one in batches for row in one.to_pylist()]


def problems(kept: Keeping) -> list[tuple[str, str]]:
    fields = [json.loads(row["fields_json"]) for row in stored(kept, "events") if row["name"] == "telemetry.export"]
    return [(one["what"], one["problem"]) for one in fields]


def test_rows_are_exported_after_their_entities() -> None:
    clock, exporter = Clock(), Exporter()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(255), "node", start=exporter.start, clock=clock)
    kept.store.append("logs", batch("logs", line="before anything was asked for"))
    exporting.follow(Options(otel=ASKED))
    kept.store.append("logs", batch("logs", line="a"))
    kept.store.append("logs", batch("logs", line="b"))
    kept.store.append("messages", batch("messages"))
    kept.store.put("hosts", 2, {"state": "ready"})
    kept.store.append("logs", batch("logs", line="c"))
    assert exporter.tables == ["hosts", "procs", "meshes", "logs", "logs", "hosts", "logs"]
    assert exporter.bases == [({"host.name": "node", "monarch.job": f"{255:016x}"}, dict(ASKED))]
    exporting.follow(Options(otel=ASKED))
    exporting.rest()
    kept.store.append("logs", batch("logs", line="after the rest"))
    assert exporter.closed == len(exporter.bases) == 1 and exporter.tables[-1] != "logs"


def test_idle_host_runs_few_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = Session.frame

    def frame(self: Session, sql: str) -> Any:
        asked.append(sql)
        return real(self, sql)

    monkeypatch.setattr(Session, "frame", frame)
    clock = Clock()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(255), "node", clock=clock)
    exporting.follow(Options())
    for _ in range(3):
        clock.now += 20
        asked.clear()
        exporting.step()
    # Hosts have not changed, the state of the tables needs no plan, all other tables are empty.
    assert not asked
    idle = {row["name"]: row["value_f64"] for row in totals(kept)}
    kept.store.append("sent_messages", batch("sent_messages", timestamp_us=int((clock.now + 10) * 1e6)))
    kept.store.put("links", 1, {"from_host": "a", "to_host": "b", "state": "up", "rtt_us": 3, "reconnects": 0, "bytes_out": 5})
    clock.now += 20
    asked.clear()
    exporting.step()
    assert len(asked) == 2
    busy = {row["name"]: row["value_u64"] or row["value_f64"] or row["value_i64"] for row in totals(kept)}
    assert busy["actor.messages_sent"] == 1 and busy["channel.connections"] == 1
    assert idle.keys() == busy.keys() - {name for name in busy if name.startswith("channel.")}
    # Rows without a time are requested again only after a change. Two windows later no message is near.
    for _ in range(2):
        clock.now += 60
        exporting.step()
    for rtt, count in ((3, 0), (7, 1)):
        if rtt == 7:
            kept.store.put("links", 1, {"rtt_us": rtt})
        clock.now += 20
        asked.clear()
        exporting.step()
        assert len(asked) == count
        latest = [row for row in totals(kept) if row["name"] == "channel.latency.us"]
        assert [row["value_f64"] or row["value_u64"] or row["value_i64"] for row in latest] == [rtt]


def test_nothing_is_exported_at_level_off() -> None:
    clock, exporter = Clock(), Exporter()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(1), "node", start=exporter.start, clock=clock)
    exporting.follow(Options(otel=ASKED, level="off"))
    clock.now += 100
    exporting.step()
    assert not exporter.bases and kept.store.listener is None and not stored(kept, "metric_gauges")


def test_metrics_count_each_row_once() -> None:
    clock = Clock()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(1), "node", clock=clock)
    exporting.follow(Options())
    counted: list[int] = []
    for _ in range(5):
        kept.store.append("sent_messages", batch("sent_messages", timestamp_us=int(clock.now * 1e6)))
        clock.now += 5.0
        exporting.step()
        sums = [row for row in stored(kept, "metric_sums") if row["name"] == "actor.messages_sent"]
        counted.append(sum(row["sum_u64"] for row in sums))
    assert counted == [1, 1, 3, 3, 5]
    assert {row["unit"] for row in stored(kept, "metric_sums") if row["name"] == "actor.messages_sent"} == {"{message}"}
    clock.now += 1.0
    # Later than the end of the window of a measurement in progress.
    kept.store.append("sent_messages", batch("sent_messages", timestamp_us=int(clock.now * 1e6) - 1))
    exporting.rest()
    assert sum(row["sum_u64"] for row in stored(kept, "metric_sums") if row["name"] == "actor.messages_sent") == 6
    assert [(row["kind"], row["value_u64"]) for row in totals(kept) if row["name"] == "actor.messages_sent"] == [("sum", 6)]


def test_totals_outlive_the_rows_and_gauges_do_not() -> None:
    clock = Clock()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(1), "node", clock=clock)
    exporting.follow(Options(retention_secs=60.0))
    kept.configure(Options(retention_secs=60.0))
    for host in ("node", "other"):
        kept.store.append("resources", batch("resources", timestamp_us=int(clock.now * 1e6), host=host, rss_bytes=7))
    kept.store.append("sent_messages", batch("sent_messages", timestamp_us=int(clock.now * 1e6)))
    clock.now += 12.0
    exporting.step()
    assert {row["attributes_json"] for row in totals(kept) if row["name"] == "monarch.host.memory"} == {
        '{"host": "node"}',
        '{"host": "other"}',
    }
    for _ in range(10):
        clock.now += 12.0
        kept.store.append("resources", batch("resources", timestamp_us=int(clock.now * 1e6) - 3_000_000, host="node", rss_bytes=7))
        exporting.step()
    kept.store.expire()
    assert not any(row["sum_u64"] for row in stored(kept, "metric_sums") if row["name"] == "actor.messages_sent")
    found = {row["name"]: row for row in totals(kept)}
    assert found["actor.messages_sent"]["value_u64"] == 1
    assert [row["attributes_json"] for row in totals(kept) if row["name"] == "monarch.host.memory"] == ['{"host": "node"}']


def test_undelivered_messages_are_found_among_many() -> None:
    clock = Clock()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(1), "node", clock=clock)
    exporting.follow(Options())
    now = int(clock.now * 1e6)
    states = [(1, "active", now - 3_000_000_000), (1, "failed", now), (2, "queued", now), (2, "failed", now), (3, "active", now)]
    for number, (message, status, us) in enumerate(states):
        kept.store.append(
            "message_status_events", batch("message_status_events", id=number, message_id=message, status=status, timestamp_us=us)
        )
    clock.now += 5.0
    exporting.step()
    found = [row["sum_u64"] for row in stored(kept, "metric_sums") if row["name"] == "mailbox.undeliverable_messages"]
    assert found == [1]


def test_failed_exporter_loses_no_rows_and_is_stated() -> None:
    clock = Clock()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(1), "node", start=Exporter(ValueError("broken")).start, clock=clock)
    exporting.follow(Options(otel=ASKED))
    for line in "abc":
        kept.store.append("logs", batch("logs", line=line))
    assert [row["line"] for row in stored(kept, "logs")] == ["a", "b", "c"]
    assert problems(kept) == [("rows", "rows are not exported any more: ValueError: broken")]


def test_refusing_receiver_is_stated_once() -> None:
    clock = Clock()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(1), "node", start=Exporter(problem="http://receiver: 401").start, clock=clock)
    exporting.follow(Options(otel=ASKED))
    for _ in range(3):
        clock.now += 20.0
        exporting.step()
    assert problems(kept) == [("logs", "http://receiver: 401")]


def test_failed_exporter_start_is_stated() -> None:
    clock = Clock()
    kept = keeping(clock)

    def start(*_: Any, **__: Any) -> OtlpExporter | None:
        return None

    exporting = Exporting(kept, JobId(1), "node", start=start, clock=clock)
    exporting.follow(Options(otel=ASKED))
    ((what, problem),) = problems(kept)
    assert what == "start" and "pip install" in problem and kept.store.listener is None


def test_failed_measurement_is_stated_and_the_next_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    kept = keeping(clock)
    exporting = Exporting(kept, JobId(1), "node", clock=clock)
    exporting.follow(Options())

    def tables(_: object) -> dict[str, Any]:
        raise KeyError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(kept, "tables", tables)
        for _ in range(2):
            clock.now += 20.0
            exporting.step()
    assert problems(kept) == [("measuring", "KeyError: 'gone'")] and not stored(kept, "metric_gauges")
    clock.now += 20.0
    exporting.step()
    assert stored(kept, "metric_gauges")


def test_options_include_the_clients_exporter_variables() -> None:
    assert Options().with_client({"OTEL_SERVICE_NAME": "x", "PATH": "/bin"}).otel == ()
    found = Options().with_client({"PATH": "/bin", **dict(ASKED)}, "train")
    assert dict(found.otel) == {**dict(ASKED), "OTEL_METRIC_EXPORT_INTERVAL": "1000"}
    assert (found.job, found.metric_interval_secs, found.memory_interval_secs) == ("train", 1.0, 300.0)
    assert "secret" not in repr(found) and "secret" not in str(found) and "OTEL_EXPORTER_OTLP_ENDPOINT" in repr(found)
    own = found.with_client({**dict(ASKED), "OTEL_METRIC_EXPORT_INTERVAL": "60000"})
    assert dict(own.otel)["OTEL_METRIC_EXPORT_INTERVAL"] == "60000" and own.job == "train"


def test_settings_of_a_client_go_with_its_options() -> None:
    with configured(
        enable_otel_tracing=False, enable_otel_metrics=False, otel_metric_export_interval="3s", process_memory_metric_interval="7s"
    ):
        found = Options().with_client(dict(ASKED))
    more = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_METRIC_EXPORT_INTERVAL": "3000"}
    assert dict(found.otel) == {**dict(ASKED), **more}
    assert (found.metric_interval_secs, found.memory_interval_secs) == (3.0, 7.0)


def test_saved_options_are_restored_without_shown_values() -> None:
    saved = json.loads(json.dumps(Options(otel=ASKED, job="train")._asdict()))
    assert Options.of(None, **saved) == Options(otel=ASKED, job="train")
    with pytest.raises(TelemetryError, match="otel: expected pairs") as raised:
        Options.of(otel=[["OTEL_EXPORTER_OTLP_HEADERS", 1234567]])
    assert "1234567" not in str(raised.value)
    with pytest.raises(TelemetryError, match="memory_interval_secs=0"):
        Options.of(memory_interval_secs=0)


def test_widened_options_keep_the_receiver_and_shorter_intervals() -> None:
    first, second = Options(otel=ASKED, metric_interval_secs=5.0), Options(otel=(("OTEL_X", "y"),), metric_interval_secs=2.0, job="b")
    both = first.widened(second)
    assert (both.otel, both.metric_interval_secs, both.job) == (ASKED, 2.0, "b")
    assert Options().widened(first).otel == ASKED
