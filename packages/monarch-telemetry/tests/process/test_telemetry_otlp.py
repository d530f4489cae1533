"""OTLP to a receiver on loopback: all signals decoded with opentelemetry-proto, retries, a receiver that is slow, silent or gone."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import socket
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
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monarch.telemetry._export import otlp
from monarch.telemetry._export.otlp_http import HttpTransport
from monarch.telemetry._export.otlp_messages import Request
from monarch.telemetry._export.otlp_sender import Outcome, Sender
from monarch.telemetry._export.otlp_settings import Target, read
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


def sender_to(url: str, **more: Any) -> Sender:
    return Sender("logs", HttpTransport(Target("logs", f"{url}/v1/logs", **more)), pause=lambda stop, seconds: None)


def sent(target: Target) -> Outcome:
    """How one request ends."""
    transport = HttpTransport(target)
    try:
        return transport.send(b"")
    finally:
        transport.close()


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
    assert {signal: one.sent_items for signal, one in status.signals.items()} == {"traces": 1, "metrics": 3, "logs": 1}
    assert (status.dropped, status.dropped_spans, status.dropped_series, status.malformed) == (0, 0, 0, 0)


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
    monkeypatch.setattr(otlp, "find_spec", lambda _: None)
    assert otlp.start({}, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "maybe"}) is None
    assert "OTEL_SDK_DISABLED" in caplog.records[0].message and "pip install" in caplog.records[1].message


def test_busy_receiver_gets_the_request_again(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers((503, {"Retry-After": "0"}, b""), (429, {"Retry-After": "0"}, b"later"), (502, {}, b""), (504, {}, b""))
    sender = sender_to(receiver.url)
    assert sender.offer(Request(b"\x0a\x00", 3))
    assert sender.close(LONG)
    assert [body for _, _, body in receiver.requests] == [b"\x0a\x00"] * 5
    status = sender.status()
    assert (status.sent, status.sent_items, status.failed_items, status.dropped_items) == (1, 3, 0, 0)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 301])
def test_refused_request_is_dropped_and_the_next_sent(
    receivers: Callable[..., Receiver], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receivers((status, {"Location": "http://elsewhere/secret"}, b"no"), (status, {}, b"no"))
    sender = sender_to(receiver.url)
    for _ in range(3):
        sender.offer(Request(b"", 2))
    assert not sender.close(LONG)
    assert len(receiver.requests) == 3
    found = sender.status()
    assert (found.sent_items, found.failed_items) == (2, 4)
    warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1 and str(status) in warnings[0] and receiver.url in warnings[0] and "secret" not in warnings[0]


def test_pauses_grow_and_follow_the_receiver(receivers: Callable[..., Receiver]) -> None:
    later = ((503, {}, b""),) * 3 + ((503, {"Retry-After": "7"}, b""), (503, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, b""))
    receiver = receivers(*later, (503, {"Retry-After": "soon"}, b""))
    pauses: list[float] = []
    sender = Sender("logs", HttpTransport(Target("logs", receiver.url)), pause=lambda stop, seconds: pauses.append(seconds))
    sender.offer(Request(b"", 1))
    assert sender.close(LONG)
    assert all(least / 2 <= pause <= least for least, pause in zip((1, 2, 4), pauses, strict=False))
    # The sixth would be 32 s: the longest is 30, and the pause is between a half and the whole of it.
    assert pauses[3:5] == [7.0, 0.0] and 15 <= pauses[5] <= 30


def test_request_is_given_up_after_two_minutes(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers(*[(503, {}, b"")] * 1000)
    now = [0.0]

    def pause(_: threading.Event, seconds: float) -> None:
        now[0] += seconds

    sender = Sender("logs", HttpTransport(Target("logs", receiver.url)), clock=lambda: now[0], pause=pause)
    sender.offer(Request(b"", 5))
    assert not sender.close(LONG)
    assert sender.status().failed_items == 5 and 60 < now[0] <= 120 and 6 <= len(receiver.requests) <= 20


def test_partial_success_is_counted_and_logged_once(receivers: Callable[..., Receiver], caplog: pytest.LogCaptureFixture) -> None:
    answer = ExportLogsServiceResponse()
    answer.partial_success.rejected_log_records, answer.partial_success.error_message = 2, "too old"
    receiver = receivers(*[(200, {}, answer.SerializeToString())] * 3)
    sender = sender_to(receiver.url)
    for _ in range(3):
        sender.offer(Request(b"", 10))
    assert sender.close(LONG)
    assert (sender.status().sent_items, sender.status().rejected_items) == (24, 6)
    assert [one.message for one in caplog.records if "too old" in one.message] and len(caplog.records) == 1


def test_answer_that_is_no_message_is_a_success(receivers: Callable[..., Receiver]) -> None:
    sender = sender_to(receivers((202, {}, b"\xff\xffno protobuf")).url)
    sender.offer(Request(b"", 1))
    assert sender.close(LONG) and sender.status().sent_items == 1


def test_receiver_that_never_answers_is_left_by_close(receivers: Callable[..., Receiver]) -> None:
    hold = threading.Event()
    receiver = receivers(hold=hold)
    sender = sender_to(receiver.url, timeout=3600.0)
    for _ in range(100):
        assert sender.offer(Request(b"x", 1))
    receiver.wait_for(1)
    assert sender.status().waiting == 100
    assert not sender.close(0.05)
    assert not any(thread.name == "monarch-otlp-logs" for thread in threading.enumerate())
    assert sender.status().dropped_items == 100 and not sender.offer(Request(b"", 1))
    hold.set()


def test_time_limit_ends_a_request(receivers: Callable[..., Receiver]) -> None:
    hold = threading.Event()
    receiver = receivers(hold=hold)
    outcome = sent(Target("logs", receiver.url, timeout=0.05))
    assert outcome == Outcome("no answer within 0.05 s", retry=True)
    hold.set()


def test_slow_answer_is_ended_by_the_timeout() -> None:
    """Each byte comes in time for the socket; the answer as a whole does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def trickle() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.01):
                    connection.sendall(b"x")

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        outcome = sent(Target("logs", f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.3))
        assert outcome == Outcome("no answer within 0.3 s", retry=True)
        over.set()
        thread.join(LONG)


def test_receiver_that_is_gone_is_tried_again(receivers: Callable[..., Receiver], caplog: pytest.LogCaptureFixture) -> None:
    receiver = receivers()
    port = receiver.server.server_address[1]
    receiver.close()
    tried = threading.Semaphore(0)
    sender = Sender("logs", HttpTransport(Target("logs", f"http://127.0.0.1:{port}/v1/logs")), pause=lambda stop, _: tried.release())
    sender.offer(Request(b"", 1))
    for _ in range(5):
        assert tried.acquire(timeout=LONG)
    assert not sender.close(0.0)
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 1
    assert f"http://127.0.0.1:{port}/v1/logs: Connection refused" in caplog.records[0].message


def test_closed_connection_is_made_again(receivers: Callable[..., Receiver]) -> None:
    receiver = receivers((200, {"Connection": "close"}, b""), OK)
    sender = sender_to(receiver.url)
    for _ in range(3):
        sender.offer(Request(b"", 1))
    assert sender.close(LONG)
    assert receiver.connections == 2 and sender.status().sent == 3


def test_idle_connection_closed_by_the_receiver_is_reopened() -> None:
    """A receiver that closes without a word, after its answer: the next request goes over another connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        bodies: list[bytes] = []

        def serve() -> None:
            for _ in range(2):
                connection, _address = server.accept()
                with connection:
                    bodies.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        transport = HttpTransport(Target("logs", f"http://127.0.0.1:{server.getsockname()[1]}"))
        assert transport.send(b"") == Outcome()
        assert transport.send(b"") == Outcome()
        transport.close()
        thread.join(LONG)
        assert len(bodies) == 2


def test_full_queue_drops_the_oldest(receivers: Callable[..., Receiver]) -> None:
    hold = threading.Event()
    receiver = receivers(hold=hold)
    sender = Sender("logs", HttpTransport(Target("logs", receiver.url)), most_items=10, most_bytes=1000)
    sender.offer(Request(b"first", 5))
    receiver.wait_for(1)  # in progress, and no longer in the queue
    for number in range(8):
        assert sender.offer(Request(f"request {number}".encode(), 5))
    assert not sender.offer(Request(b"x" * 1001, 7))
    assert sender.status().waiting == 3 and sender.status().dropped_items == 6 * 5 + 7
    hold.set()
    sender.close(LONG)
    assert [body for _, _, body in receiver.requests] == [b"first", b"request 6", b"request 7"]


def test_rows_before_encoding_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_MOST_BYTES", 1000)
    exporter = otlp.OtlpExporter(read({}), {}, {})
    exporter.add({"logs": [batch("logs", {"line": "x" * 2000})]})
    assert exporter.status().dropped == 1
    assert exporter.close(LONG)


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
    refused = sent(Target("logs", url))
    assert "certificate verify failed" in refused.error.lower() and not refused.retry
    transport = HttpTransport(Target("logs", url, certificate=f"{certificate}.crt"))
    assert transport.send(b"") == transport.send(b"") == Outcome()
    transport.close()
    assert len(receiver.requests) == 2


def test_certificate_that_is_none_exports_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1", "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem")}
    assert otlp.start({}, environment=variables) is None
    assert len(caplog.records) == 3


def test_broken_row_stops_nothing(receivers: Callable[..., Receiver], caplog: pytest.LogCaptureFixture) -> None:
    receiver = receivers()
    exporter = otlp.start({}, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert exporter is not None
    exporter.add({"spans": [pa.RecordBatch.from_pylist([{"other": 1}])]})
    exporter.flush(LONG)
    exporter.add({"events": [batch("events", {"name": "half", "fields_json": json.dumps({"half": "\ud800"})})]})
    assert exporter.close(LONG)
    assert receiver.decoded("/v1/logs")[0].resource_logs[0].scope_logs[0].log_records[0].event_name == "half"
    assert len(caplog.records) == 1 and exporter.status().broken == 1


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
