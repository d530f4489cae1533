"""OTLP over gRPC, to a server of grpcio in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from monarch.telemetry._export.otlp_sdk import Outcome, SdkExporter
from monarch.telemetry._export.otlp_settings import read

grpc: Any = pytest.importorskip("grpc")
LONG = 20.0
Method = Callable[[bytes, Any], bytes]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Method], str]]:
    """Starts a server whose method for traces is the given one; gives its port."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    servers: list[Any] = []

    def start(method: Method) -> str:
        server = grpc.server(ThreadPoolExecutor(1))
        handlers = {"Export": grpc.unary_unary_rpc_method_handler(method)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("opentelemetry.proto.collector.trace.v1.TraceService", handlers),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return str(port)

    yield start
    for server in servers:
        server.stop(0).wait(LONG)


def exporter_to(port: str, **variables: str) -> SdkExporter:
    general = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", **variables}
    settings = read(general)
    assert not settings.problems
    return SdkExporter(settings.targets["traces"])


def spans() -> list[ReadableSpan]:
    return [ReadableSpan("step", SpanContext(1, 2, False), resource=Resource({}), start_time=1, end_time=2)]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_request_arrives_with_headers(serve: Callable[[Method], str], compression: str) -> None:
    got: list[tuple[bytes, dict[str, str]]] = []

    def export(request: bytes, context: Any) -> bytes:
        got.append((request, dict(context.invocation_metadata())))
        return b""

    to = exporter_to(serve(export), OTEL_EXPORTER_OTLP_HEADERS="API-Key=x", OTEL_EXPORTER_OTLP_COMPRESSION=compression)
    assert to.export(spans()) == Outcome()
    ((body, headers),) = got
    assert ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans[0].name == "step"
    assert headers["api-key"] == "x"
    to.shutdown()


@pytest.mark.parametrize(("code", "is_transient"), [("UNAVAILABLE", True), ("INVALID_ARGUMENT", False), ("UNIMPLEMENTED", False)])
def test_status_decides_about_another_try(serve: Callable[[Method], str], code: str, is_transient: bool) -> None:
    calls: list[bytes] = []

    def export(request: bytes, context: Any) -> bytes:
        calls.append(request)
        context.abort(grpc.StatusCode[code], "reason")
        raise AssertionError("abort raises")

    to = exporter_to(serve(export), OTEL_EXPORTER_OTLP_TIMEOUT="1500")
    # Twice: the SDK hides repeated records.
    for _ in range(2):
        outcome = to.export(spans())
        assert code in outcome.error and "reason" in outcome.error and outcome.transient == is_transient
    assert len(calls) == (4 if is_transient else 2)
    to.shutdown()


def test_shutdown_ends_an_export(serve: Callable[[Method], str]) -> None:
    came, over, outcomes = threading.Event(), threading.Event(), list[Outcome]()

    def export(request: bytes, context: Any) -> bytes:
        came.set()
        over.wait(LONG)
        return b""

    to = exporter_to(serve(export), OTEL_EXPORTER_OTLP_TIMEOUT="1h")
    thread = threading.Thread(target=lambda: outcomes.append(to.export(spans())))
    thread.start()
    assert came.wait(LONG)
    to.shutdown()
    thread.join(LONG)
    over.set()
    assert outcomes[0].error and "127.0.0.1" in to.shown
