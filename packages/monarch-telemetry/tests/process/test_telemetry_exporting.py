"""What collectors of a real job export by OTLP and measure as rows; a receiver that refuses costs no rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import telemetry_program
from test_telemetry_otlp import Receiver

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PROGRAM = """
import json, logging, os, sys
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, get_meter, span, this_host
from monarch.extension.trace import TraceContext, use_trace

class Stage(Actor):
    def __init__(self, following=None):
        self.following = following

    @endpoint
    async def step(self) -> int:
        with span("work"):
            logging.getLogger("stage").warning("in a trace")
        get_meter("loader").create_counter("rows").add(0.5)
        return os.getpid() if self.following is None else await self.following.step.call_one()

def rows(sql):
    return [tuple(row.values()) for row in telemetry.query(sql).to_pylist()]

def until(sql):
    # What another process records is there soon, and a test that waits for what never comes is ended by its time limit.
    while not (found := rows(sql)):
        logging.getLogger("test").debug("%s", found)
    return found

last = this_host().spawn_procs({"n": 2}, name="last").spawn("last", Stage)
first = this_host().spawn_procs(name="first").spawn("first", Stage, last.slice(n=1))
first.step.call_one().get()
running = telemetry.start(job="train")
with use_trace(TraceContext.from_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")):
    print("=", first.step.call_one().get())
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    found = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "pretraining")
    # The existing rows are exported before the end, which does not wait.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100ms")
    yield found
    found.close()


def attributes(listed: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in listed}


def of(requests: list[Any], resources: str, scopes: str, items: str) -> list[tuple[dict[str, Any], Any]]:
    """Each item of these requests with its resource attributes."""
    return [
        (attributes(resource.resource.attributes), item)
        for request in requests
        for resource in getattr(request, resources)
        for scope in getattr(resource, scopes)
        for item in getattr(scope, items)
    ]


def test_receiver_gets_metrics_logs_and_traces(receiver: Receiver) -> None:
    (pid,) = telemetry_program.shown(PROGRAM + "running.stop().get()\n")
    spans = of(receiver.decoded("/v1/traces"), "resource_spans", "scope_spans", "spans")
    assert {span.trace_id.hex() for _, span in spans} == {TRACE}
    by_id = {span.span_id: span for _, span in spans}
    links = sorted(
        (span.name, span.kind, by_id[span.parent_span_id].name if span.parent_span_id in by_id else span.parent_span_id.hex())
        for _, span in spans
    )
    client, server, internal = 3, 2, 1
    assert links == [
        ("first.step", server, "first.step"),
        ("first.step", client, "00f067aa0ba902b7"),
        ("last.step", server, "last.step"),
        ("last.step", client, "first.step"),
        ("work", internal, "first.step"),
        ("work", internal, "last.step"),
    ]
    assert all(span.status.code == 1 for _, span in spans if span.name != "work")
    (resource,) = [resource for resource, span in spans if (span.name, span.kind) == ("last.step", server)]
    where = {"service.name": "pretraining", "monarch.job": "train", "monarch.mesh": "last", "monarch.rank": 1, "process.pid": int(pid)}
    assert where.items() <= resource.items() and resource["host.name"]

    logs = of(receiver.decoded("/v1/logs"), "resource_logs", "scope_logs", "log_records")
    lines = [(resource, record) for resource, record in logs if record.body.string_value == "in a trace"]
    assert len(lines) == 2 and all(record.trace_id.hex() == TRACE and record.span_id in by_id for _, record in lines)
    assert any(where.items() <= resource.items() for resource, _ in lines)

    metrics = of(receiver.decoded("/v1/metrics"), "resource_metrics", "scope_metrics", "metrics")
    names = {metric.name for _, metric in metrics}
    assert {"rows", "proc_mesh.active_procs", "process.memory.rss_bytes", "process.memory.vm_bytes", "monarch.job.hosts"} <= names
    procs = [point.as_int for _, metric in metrics if metric.name == "proc_mesh.active_procs" for point in metric.gauge.data_points]
    # The client and the three procs.
    assert procs[-1] == 4
    throughput = {metric.name: metric.sum.data_points[0].as_int for _, metric in metrics if metric.name.startswith("endpoint_call_one_th")}
    assert throughput == {"endpoint_call_one_throughput": 1}
    rows = [resource for resource, metric in metrics if metric.name == "rows" and metric.sum.data_points[0].as_double == 0.5]
    assert any(where.items() <= resource.items() for resource in rows)


def test_metrics_are_rows_without_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_OTEL_METRIC_EXPORT_INTERVAL", "100ms")
    _, found, job = telemetry_program.shown(f"""{PROGRAM}
found = until("SELECT DISTINCT name, unit FROM metric_gauges WHERE name = 'process.memory.vm_bytes'")
print("=", json.dumps(found))
print("=", rows("SELECT count(DISTINCT attributes_json) FROM metric_gauges WHERE name = 'process.memory.vm_bytes'"))
""")
    assert json.loads(found) == [["process.memory.vm_bytes", "By"]] and job == "[(4,)]"


def test_unreachable_receiver_is_reported_once_without_lost_rows(receiver: Receiver) -> None:
    receiver.close()
    shown = telemetry_program.shown(f"""{PROGRAM}
until("SELECT 1 FROM events WHERE name = 'telemetry.export' AND fields_json LIKE '%logs%'")
print("=", rows("SELECT count(*) FROM logs WHERE line = 'in a trace'"), rows("SELECT count(*) > 0 FROM metric_gauges"))
print("=", rows("SELECT count(*) FROM events WHERE name = 'telemetry.export' AND fields_json LIKE '%logs%'"))
print("=", rows("SELECT count(*) > 0 FROM events WHERE name = 'telemetry.export' AND fields_json LIKE '%refused%'"))
running.stop().get()
""")
    assert shown[1:] == ["[(2,)] [(True,)]", "[(1,)]", "[(True,)]"]


def test_invalid_export_variable_is_reported_in_events(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "no url with a secret")
    _, found = telemetry_program.shown(f"""{PROGRAM}
found = until("SELECT fields_json FROM events WHERE name = 'telemetry.export'")
print("=", found[0][0])
running.stop().get()
""")
    assert "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT" in found and "secret" not in found
    assert {path for path, _, _ in receiver.requests} <= {"/v1/traces", "/v1/metrics"}
