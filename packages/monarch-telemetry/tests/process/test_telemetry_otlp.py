"""OTLP to a receiver on loopback: all signals decoded with opentelemetry-proto, retries, a receiver that is slow, silent or gone."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from eventually import eventually
from opentelemetry._logs import LogRecord
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource

from monarch.telemetry._export import otlp
from monarch.telemetry._export.otlp_pipeline import Pipeline, Status
from monarch.telemetry._export.otlp_sdk import Outcome, SdkExporter
from monarch.telemetry._export.otlp_settings import Batching, Target
from monarch.telemetry._tables.catalog import TABLES

TYPES = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest, "/v1/logs": ExportLogsServiceRequest}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
# Longer than any successful wait of these tests.
LONG = 20.0
Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"")


class Receiver:
    """An HTTP receiver. `answers` are given in order, then 200; `hold` keeps requests open until it is set."""

    def __init__(self, *answers: Answer, context: ssl.SSLContext | None = None, hold: threading.Event | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.came = threading.Condition()
        receiver, queue = self, [*answers]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with receiver.came:
                    receiver.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                    status, headers, answer = queue.pop(0) if queue else OK
                    receiver.came.notify_all()
                if hold is not None:
                    hold.wait(LONG)
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: the output of tests is theirs."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def wait_for(self, requests: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.requests) >= requests, LONG)

    def decoded(self, path: str) -> list[Any]:
        found = [(headers, body) for where, headers, body in self.requests if where == path]
        return [TYPES[path].FromString(gzip.decompress(body) if "content-encoding" in headers else body) for headers, body in found]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(LONG)


@pytest.fixture
def receivers() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(*answers: Answer, **more: Any) -> Receiver:
        made.append(Receiver(*answers, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Lines:
    """A mapper that makes a log record of each row, and sends each row for itself."""

    malformed = dropped = 0

    def add(self, rows: Any) -> Iterator[Any]:
        for batch in rows["logs"]:
            for line in batch.column("line").to_pylist():
                yield records(line), 1

    def finish(self, is_due: bool, forced: bool) -> Iterator[Any]:
        yield from ()


def records(*lines: str) -> list[Any]:
    return [ReadableLogRecord(LogRecord(timestamp=1, body=line), Resource({})) for line in lines]


def pipeline_to(url: str, *, queue: int = 1000, most_bytes: int = 1 << 20, **more: Any) -> Pipeline:
    exporter = SdkExporter(Target("logs", f"{url}/v1/logs", **more))
    return Pipeline("logs", exporter, Lines(), Batching(0.01, 1, queue), frozenset({"logs"}), most_bytes=most_bytes)


def offer(pipeline: Pipeline, *lines: str) -> None:
    for line in lines:
        pipeline.add("logs", batch("logs", {"line": line}))


def finished(pipeline: Pipeline) -> Status:
    """The status after the end of the pipeline, which has sent everything."""
    assert pipeline.has_flushed(pipeline.begin_flush(), LONG)
    pipeline.close()
    return pipeline.status()


def bodies(receiver: Receiver) -> list[str]:
    found = [record for request in receiver.decoded("/v1/logs") for record in request.resource_logs[0].scope_logs[0].log_records]
    return [record.body.string_value for record in found]


def sent(target: Target) -> Outcome:
    """How one export ends."""
    exporter = SdkExporter(target)
    try:
        return exporter.export(records("line"))
    finally:
        exporter.shutdown()


def batch(table: str, *rows: dict[str, Any]) -> Any:
    empty = {"text": "", "u64": 0, "i64": 0, "i32": 0, "f64": 0.0, "bool": False}
    one = TABLES[table]
    filled = [{column.name: None if column.nullable else empty[column.kind] for column in one.columns} | row for row in rows]
    return pa.RecordBatch.from_pylist(filled, schema=one.schema())


def rows() -> dict[str, list[Any]]:
    """Rows of every table that is exported, as they are now: a series that has not changed for an hour is not exported."""
    series = {
        "name": "tokens",
        "scope_name": "app",
        "timestamp_us": time.time_ns() // 1000,
        "attributes_json": "{}",
        "resource_attributes_json": '{"monarch.rank": 3}',
    }
    return {
        "hosts": [batch("hosts", {"host_id": 9, "name": "node-2"})],
        "meshes": [batch("meshes", {"id": 4, "given_name": "trainers"})],
        "procs": [batch("procs", {"proc_id": 1, "host_id": 9, "mesh_id": 4, "rank": 3, "pid": 1234})],
        "spans": [batch("spans", {"process_id": 1, "id": 1, "name": "step", "timestamp_us": 100, "fields_json": "{}"})],
        "span_context": [batch("span_context", {"process_id": 1, "span_id": 1, "trace_id": TRACE, "sampled": True})],
        "span_events": [
            batch("span_events", *({"process_id": 1, "id": 1, "timestamp_us": 300, "event_type": what} for what in ("exit", "close")))
        ],
        "logs": [batch("logs", {"line": "loaded", "trace_id": TRACE, "span_id": 1, "host": "node-2", "pid": 1234, "stream": "logging"})],
        "metric_gauges": [batch("metric_gauges", {**series, "value_f64": 2.5})],
        "metric_sums": [
            batch("metric_sums", *({**series, "name": "n", "temporality": "delta", "is_monotonic": True, "sum_u64": 4} for _ in "ab"))
        ],
        "metric_histograms": [
            batch(
                "metric_histograms",
                {
                    **series,
                    "name": "h",
                    "temporality": "delta",
                    "count": 3,
                    "sum_f64": 1.0,
                    "bounds_json": "[1]",
                    "bucket_counts_json": "[1, 2]",
                },
            )
        ],
        "links": [batch("links", {"link_id": 1})],
    }


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_all_signals_arrive(receivers: Callable[..., Receiver], compression: str) -> None:
    receiver = receivers()
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_COMPRESSION": compression}
    variables |= {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret", "OTEL_SERVICE_NAME": "pretraining"}
    exporter = otlp.start({"host.name": "node-1", "monarch.job": "train"}, environment=variables)
    assert exporter is not None
    exporter.add(rows())
    assert exporter.close(LONG)
    (traces,), (logs,), (metrics,) = (receiver.decoded(path) for path in ("/v1/traces", "/v1/logs", "/v1/metrics"))
    span = traces.resource_spans[0].scope_spans[0].spans[0]
    record = logs.resource_logs[0].scope_logs[0].log_records[0]
    assert (span.name, span.trace_id.hex()) == ("step", TRACE) and span.trace_id == record.trace_id and span.span_id == record.span_id
    attributes = {pair.key: pair.value.string_value or pair.value.int_value for pair in traces.resource_spans[0].resource.attributes}
    assert attributes["service.name"] == "pretraining" and attributes["host.name"] == "node-2" and attributes["monarch.rank"] == 3
    found = {one.name: one for one in metrics.resource_metrics[0].scope_metrics[0].metrics}
    assert found["tokens"].gauge.data_points[0].as_double == 2.5 and found["n"].sum.data_points[0].as_int == 8
    assert found["n"].sum.aggregation_temporality == 2 and [*found["h"].histogram.data_points[0].bucket_counts] == [1, 2]
    headers = receiver.requests[0][1]
    assert headers["content-type"] == "application/x-protobuf" and headers["api-key"] == "secret"
    assert headers.get("content-encoding", "none") == compression
    status = exporter.status()
    assert {signal: one.sent_items for signal, one in status.items()} == {"traces": 1, "metrics": 3, "logs": 1}
    assert all((one.dropped_rows, one.waiting_rows, one.malformed + one.broken, one.error) == (0, 0, 0, "") for one in status.values())


def test_rows_are_exported_when_they_are_due(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers()
    variables = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{receiver.url}/v1/logs", "OTEL_BLRP_SCHEDULE_DELAY": "20"}
    exporter = otlp.start({}, environment=variables)
    assert exporter is not None
    for _ in range(3):
        before = len(receiver.requests)
        exporter.add(rows())
        receiver.wait_for(before + 1)
    assert receiver.connections == 1
    assert exporter.close(LONG) and {path for path, _, _ in receiver.requests} == {"/v1/logs"}


def test_full_batch_is_not_waited_with(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers()
    variables = {
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{receiver.url}/v1/logs",
        "OTEL_BLRP_SCHEDULE_DELAY": "1h",
        "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE": "10",
    }
    exporter = otlp.start({}, environment=variables)
    assert exporter is not None
    exporter.add({"logs": [batch("logs", *({"line": str(number), "seq": number} for number in range(25)))]})
    receiver.wait_for(3)
    assert exporter.close(LONG)
    lines = [
        [one.body.string_value for resource in request.resource_logs for scope in resource.scope_logs for one in scope.log_records]
        for request in receiver.decoded("/v1/logs")
    ]
    assert [line for lines_ in lines for line in lines_] == [str(number) for number in range(25)]
    assert max(map(len, lines)) <= 10


def test_long_lines_are_in_requests_of_bounded_size(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers()
    exporter = otlp.start({}, environment={"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{receiver.url}/v1/logs"})
    assert exporter is not None
    exporter.add({"logs": [batch("logs", *({"line": "x" * 200_000} for _ in range(50)))]})
    assert exporter.close(LONG)
    assert sum(len(body) for _, _, body in receiver.requests) > 10_000_000
    assert max(len(body) for _, _, body in receiver.requests) < 4 << 20


def test_deltas_stay_deltas_where_they_are_preferred(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers()
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}
    exporter = otlp.start({}, environment=variables)
    assert exporter is not None
    exporter.add(rows())
    assert exporter.close(LONG)
    found = {one.name: one for one in receiver.decoded("/v1/metrics")[0].resource_metrics[0].scope_metrics[0].metrics}
    assert found["n"].sum.aggregation_temporality == 1 and [point.as_int for point in found["n"].sum.data_points] == [4, 4]


def test_no_endpoint_and_no_library_export_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert otlp.start({}, environment={}) is None and not caplog.records
    monkeypatch.setattr(otlp, "is_installed", lambda _: False)
    assert otlp.start({}, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "maybe"}) is None
    assert "OTEL_SDK_DISABLED" in caplog.records[0].message and "pip install" in caplog.records[1].message


def test_busy_receiver_gets_the_request_again(receivers: Callable[..., Receiver]) -> None:
    busy = {"Retry-After": "0"}
    receiver = receivers(*((status, busy, b"") for status in (503, 429, 502, 504)))
    pipeline = pipeline_to(receiver.url)
    offer(pipeline, "a")
    status = finished(pipeline)
    assert bodies(receiver) == ["a"] * 5
    assert (status.sent_items, status.failed_items, status.dropped_rows) == (1, 0, 0)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 301])
def test_refused_request_is_dropped_and_the_next_sent(
    receivers: Callable[..., Receiver], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receivers((status, {"Location": "http://elsewhere/secret"}, b"no"), (status, {}, b"no"))
    pipeline = pipeline_to(receiver.url)
    offer(pipeline, "a", "b", "c")
    found = finished(pipeline)
    assert bodies(receiver) == ["a", "b", "c"]
    assert (found.sent_items, found.failed_items) == (1, 2)
    warnings = [one.message for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1 and str(status) in warnings[0] and receiver.url in warnings[0] and "secret" not in warnings[0]


def test_receiver_that_returns_late_gets_the_data(receivers: Callable[..., Receiver]) -> None:
    """The SDK ends its attempts after six; the pipeline exports again, as the receiver is only busy."""
    receiver = receivers(*[(503, {"Retry-After": "0"}, b"")] * 9)
    pipeline = pipeline_to(receiver.url)
    offer(pipeline, "a")
    status = finished(pipeline)
    assert bodies(receiver) == ["a"] * 10 and (status.sent_items, status.failed_items) == (1, 0)


def test_data_are_given_up_after_two_minutes() -> None:
    class Busy:
        shown, problem = "busy", ""

        def export(self, data: Any) -> Outcome:
            now[0] += 9.0
            return Outcome("busy", transient=True)

        def shutdown(self) -> None:
            """Nothing is in progress."""

    now = [0.0]
    pipeline = Pipeline("logs", Busy(), Lines(), Batching(1.0, 1, 10), frozenset({"logs"}), clock=lambda: now[0])
    offer(pipeline, "a")
    assert finished(pipeline).failed_items == 1 and now[0] == 126.0


def test_partial_success_is_counted_and_logged_once(receivers: Callable[..., Receiver], caplog: pytest.LogCaptureFixture) -> None:
    answer = ExportLogsServiceResponse()
    answer.partial_success.rejected_log_records, answer.partial_success.error_message = 1, "too old"
    receiver = receivers(*[(200, {}, answer.SerializeToString())] * 3)
    pipeline = pipeline_to(receiver.url)
    offer(pipeline, "a", "b", "c", "d")
    status = finished(pipeline)
    assert (status.sent_items, status.rejected_items) == (1, 3)
    assert [one.message for one in caplog.records if "too old" in one.message] and len(caplog.records) == 1


def test_answer_that_is_no_message_is_a_success(receivers: Callable[..., Receiver]) -> None:
    pipeline = pipeline_to(receivers((202, {}, b"\xff\xffno protobuf")).url)
    offer(pipeline, "a")
    assert finished(pipeline).sent_items == 1


def test_receiver_that_never_answers_is_left_by_close(receivers: Callable[..., Receiver]) -> None:
    hold = threading.Event()
    receiver = receivers(hold=hold)
    pipeline = pipeline_to(receiver.url, timeout=3600.0)
    offer(pipeline, *map(str, range(100)))
    receiver.wait_for(1)
    assert pipeline.status().waiting_rows == 100
    assert not pipeline.has_flushed(pipeline.begin_flush(), 0.05)
    # The request has an hour, and `close` does not wait for it.
    pipeline.close()
    assert pipeline.status().dropped_rows == 100
    offer(pipeline, "late")
    assert pipeline.status().waiting_rows == 0
    hold.set()


def test_time_limit_ends_a_request(receivers: Callable[..., Receiver]) -> None:
    hold = threading.Event()
    receiver = receivers(hold=hold)
    assert sent(Target("logs", receiver.url, timeout=0.05)).error
    hold.set()


def test_receiver_that_is_gone_is_tried_again(receivers: Callable[..., Receiver], caplog: pytest.LogCaptureFixture) -> None:
    receiver = receivers()
    port = receiver.server.server_address[1]
    receiver.close()
    pipeline = pipeline_to(f"http://127.0.0.1:{port}", timeout=2.5)
    offer(pipeline, "a")
    eventually("an attempt has failed", lambda: pipeline.status().error)
    assert "Connection refused" in pipeline.status().error
    eventually("a warning", lambda: caplog.records)
    pipeline.close()
    assert pipeline.status().dropped_rows == 1
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1 and f"http://127.0.0.1:{port}/v1/logs" in warnings[0].message


def test_query_of_a_url_is_in_no_log(receivers: Callable[..., Receiver], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    receiver = receivers()
    url = f"{receiver.url}/v1/logs?key=secret"
    assert sent(Target("logs", url)) == Outcome()
    receiver.close()
    error = sent(Target("logs", url, timeout=0.5)).error
    assert "refused" in error and "secret" not in error and "secret" not in caplog.text


def test_log_records_of_other_exporters_pass(caplog: pytest.LogCaptureFixture) -> None:
    """A program may have an exporter of its own in this process."""
    SdkExporter(Target("logs", "http://127.0.0.1:1/v1/logs")).shutdown()
    logging.getLogger("opentelemetry.exporter.otlp.proto.http._log_exporter").warning("of the program")
    assert [one.message for one in caplog.records] == ["of the program"]


def test_closed_connection_is_made_again(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers((200, {"Connection": "close"}, b""), OK)
    pipeline = pipeline_to(receiver.url)
    offer(pipeline, "a", "b", "c")
    assert finished(pipeline).sent_items == 3 and receiver.connections == 2


def test_full_queue_drops_the_oldest(receivers: Callable[..., Receiver]) -> None:
    hold = threading.Event()
    receiver = receivers(hold=hold)
    pipeline = pipeline_to(receiver.url, queue=2, most_bytes=10_000)
    offer(pipeline, "first")
    receiver.wait_for(1)  # in progress, and no longer in the queue
    offer(pipeline, *map(str, range(8)))
    assert (pipeline.status().waiting_rows, pipeline.status().dropped_rows) == (3, 6)
    pipeline.add("logs", batch("logs", *({"line": f"row {number}"} for number in range(5))))
    assert (pipeline.status().waiting_rows, pipeline.status().dropped_rows) == (3, 11)
    hold.set()
    assert finished(pipeline).sent_items == 3
    assert bodies(receiver) == ["first", "row 3", "row 4"]


def test_bytes_of_waiting_rows_are_bounded(receivers: Callable[..., Receiver]) -> None:
    hold = threading.Event()
    receiver = receivers(hold=hold)
    pipeline = pipeline_to(receiver.url, most_bytes=1000)
    offer(pipeline, "first")
    receiver.wait_for(1)
    offer(pipeline, "x" * 2000)
    assert (pipeline.status().waiting_rows, pipeline.status().dropped_rows) == (1, 1)
    hold.set()
    assert finished(pipeline).sent_items == 1


def test_proxy_of_the_environment_is_used(receivers: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = receivers()
    monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://user:pass@"))
    assert sent(Target("logs", "http://collector.example:4318/v1/logs")) == Outcome()
    path, headers, _ = proxy.requests[0]
    assert path == "http://collector.example:4318/v1/logs" and headers["host"] == "collector.example:4318"
    assert headers["proxy-authorization"] == "Basic dXNlcjpwYXNz"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    direct = receivers()
    assert sent(Target("logs", f"{direct.url}/v1/logs")) == Outcome()
    assert len(direct.requests) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tls") / "receiver.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=receiver", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(file), "-out", f"{file}.crt"]
    subprocess.run(command, check=True, capture_output=True, timeout=LONG)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


def test_certificate_of_the_receiver_is_checked(receivers: Callable[..., Receiver], certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    receiver = receivers(context=context)
    url = receiver.url.replace("http:", "https:")
    assert "certificate verify failed" in sent(Target("logs", url, timeout=0.5)).error.lower()
    assert sent(Target("logs", url, certificate=f"{certificate}.crt")) == Outcome()
    assert len(receiver.requests) == 1


def test_broken_row_stops_nothing(receivers: Callable[..., Receiver], caplog: pytest.LogCaptureFixture) -> None:
    receiver = receivers()
    exporter = otlp.start({}, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert exporter is not None
    exporter.add({"spans": [pa.RecordBatch.from_pylist([{"other": 1}])]})
    exporter.flush(LONG)
    exporter.add({"events": [batch("events", {"name": "half", "fields_json": json.dumps({"half": "\ud800"})})]})
    assert exporter.close(LONG)
    assert receiver.decoded("/v1/logs")[0].resource_logs[0].scope_logs[0].log_records[0].event_name == "half"
    assert len(caplog.records) == 1 and exporter.status()["traces"].broken == 1


def test_end_of_the_interpreter_exports_what_waits(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers()
    code = """
import sys
from monarch.telemetry._export import otlp
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry._arrow import pa
exporter = otlp.start({}, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": sys.argv[1]})
row = {"name": "late", "target": "", "level": "info", "fields_json": "{}", "timestamp_us": 1, "thread_id": 1, "thread_name": ""}
exporter.add({"events": [pa.RecordBatch.from_pylist([row], schema=TABLES["events"].schema())]})
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, receiver.url], capture_output=True, text=True, timeout=25, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert receiver.decoded("/v1/logs")[0].resource_logs[0].scope_logs[0].log_records[0].event_name == "late"
