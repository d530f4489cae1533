"""OTLP over gRPC, where the library grpcio is installed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monarch.telemetry._export.otlp_http import partial
from monarch.telemetry._export.otlp_sender import Outcome
from monarch.telemetry._export.otlp_settings import Signal, Target

_METHODS: dict[Signal, str] = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_RETRIED = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
_PORT = 4317


class GrpcTransport:
    """Sends to a gRPC receiver. `OSError` at the start for certificates that cannot be read."""

    def __init__(self, target: Target) -> None:
        self._grpc: Any = import_module("grpc")
        self._target = target
        split = urlsplit(target.url)
        host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname
        place = f"{host}:{split.port or _PORT}"
        algorithm = self._grpc.Compression.Gzip if target.gzip else self._grpc.Compression.NoCompression
        if split.scheme == "https":
            files = (target.certificate, target.client_key, target.client_certificate)
            credentials = self._grpc.ssl_channel_credentials(*(Path(one).read_bytes() if one else None for one in files))
            self._channel = self._grpc.secure_channel(place, credentials, compression=algorithm)
        else:
            self._channel = self._grpc.insecure_channel(place, compression=algorithm)
        # Messages are already bytes.
        self._export = self._channel.unary_unary(_METHODS[target.signal])
        # Names of gRPC metadata are lower case.
        self._metadata = tuple((name.lower(), value) for name, value in target.headers)

    @property
    def shown(self) -> str:
        """The endpoint without credentials."""
        return self._target.shown

    def send(self, body: bytes) -> Outcome:
        """Sends one request."""
        try:
            answer = self._export(body, timeout=self._target.timeout, metadata=self._metadata)
        except self._grpc.RpcError as error:
            code = error.code().name
            # With RESOURCE_EXHAUSTED the receiver may state that a retry can succeed.
            details = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
            later = code == "RESOURCE_EXHAUSTED" and any(b"google.rpc.RetryInfo" in one for one in details)
            return Outcome(f"gRPC status {code}: {str(error.details())[:300]}", later or code in _RETRIED)
        except ValueError:  # the channel is closed
            return Outcome("this sender has ended")
        return partial(self._target.signal, answer)

    def abort(self) -> None:
        """Ends the request under way, and refuses others. Any thread."""
        self._channel.close()

    def close(self) -> None:
        """Closes the channel; no `send` follows."""
        self._channel.close()
