"""OTLP over gRPC, to a server of grpcio in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from monarch.telemetry._export.otlp_messages import Request
from monarch.telemetry._export.otlp_sender import Outcome, Sender
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


def transport(port: str, **variables: str) -> Any:
    from monarch.telemetry._export.otlp_grpc import GrpcTransport

    general = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", **variables}
    settings = read(general)
    assert not settings.problems
    return GrpcTransport(settings.targets["traces"])


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_request_arrives_with_headers(serve: Callable[[Method], str], compression: str) -> None:
    got: list[tuple[bytes, dict[str, str]]] = []

    def export(request: bytes, context: Any) -> bytes:
        got.append((request, dict(context.invocation_metadata())))
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = 2
        return answer.SerializeToString()

    to = transport(serve(export), OTEL_EXPORTER_OTLP_HEADERS="API-Key=x", OTEL_EXPORTER_OTLP_COMPRESSION=compression)
    sender = Sender("traces", to)
    sender.offer(Request(b"\x0a\x00", 5))
    assert sender.close(LONG)
    assert [request for request, _ in got] == [b"\x0a\x00"] and got[0][1]["api-key"] == "x"
    assert (sender.status().sent_items, sender.status().rejected_items) == (3, 2)


@pytest.mark.parametrize(
    ("code", "retry"),
    [
        ("UNAVAILABLE", True),
        ("DEADLINE_EXCEEDED", True),
        ("INVALID_ARGUMENT", False),
        ("UNIMPLEMENTED", False),
        ("RESOURCE_EXHAUSTED", False),
    ],
)
def test_status_decides_about_another_try(serve: Callable[[Method], str], code: str, retry: bool) -> None:
    def export(request: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode[code], "reason")
        raise AssertionError("abort raises")

    to = transport(serve(export))
    assert to.send(b"") == Outcome(f"gRPC status {code}: reason", retry)
    to.close()


def test_exhausted_receiver_with_retry_details_is_retried(serve: Callable[[Method], str]) -> None:
    def export(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\x1a\x29\x0a\x27type.googleapis.com/google.rpc.RetryInfo"),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "later")
        raise AssertionError("abort raises")

    to = transport(serve(export))
    assert to.send(b"").retry
    to.close()


def test_closed_channel_is_an_outcome(serve: Callable[[Method], str]) -> None:
    to = transport(serve(lambda request, context: b""))
    assert to.send(b"") == Outcome()
    to.abort()
    assert to.send(b"").error and "127.0.0.1" in to.shown
