"""The exporters of OpenTelemetry's SDK, one for each signal: they encode, compress, send and retry.

The settings are passed as arguments: OTEL_* variables are those of the client, and a collector on another host has another environment.
The SDK reports a failure by a log record only. `SdkExporter` reads these records in its own thread, and returns an `Outcome`.
"""

from __future__ import annotations

import logging
import re
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from monarch.telemetry._export.otlp_settings import EXPORTERS, Signal, Target

_CLASSES: dict[Signal, tuple[str, str]] = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
# The module of the answer to a request, its type, and its field with the number of rejected items.
_ANSWERS: dict[Signal, tuple[str, str, str]] = {
    "traces": ("trace.v1.trace_service_pb2", "ExportTraceServiceResponse", "rejected_spans"),
    "metrics": ("metrics.v1.metrics_service_pb2", "ExportMetricsServiceResponse", "rejected_data_points"),
    "logs": ("logs.v1.logs_service_pb2", "ExportLogsServiceResponse", "rejected_log_records"),
}
# Loggers of the SDK and of urllib3 whose records contain reasons of failures, URLs or headers.
_LOGGERS = (
    *(f"{EXPORTERS}.http.{module}" for module, _ in _CLASSES.values()),
    f"{EXPORTERS}.http._common",
    f"{EXPORTERS}.grpc.exporter",
    f"{EXPORTERS}.common._internal",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.util.re",
    "urllib3.connectionpool",
)
_GRPC_PORT = 4317
# The pauses of the SDK are random, which would make each text another cause.
_PAUSE = re.compile(r",? retrying in [0-9.]+s\.?")
_SHOWN = 300


class Outcome(NamedTuple):
    """How an export ended. `error` is empty for data that were accepted; `transient`: the receiver may accept them later.

    `rejected` items of an accepted request were not accepted; `message` is the receiver's text about them. Only HTTP has both.
    """

    error: str = ""
    transient: bool = False
    rejected: int = 0
    message: str = ""


class SdkExporter:
    """The official exporter of one signal. `export` from one thread at a time; `shutdown` from any."""

    def __init__(self, target: Target) -> None:
        """`ImportError` without the library, `OSError` for a certificate that cannot be read. The first import takes 0.5 s."""
        self.shown = target.shown
        self._target = target
        self._outcome = Outcome()
        # The last error of a connection over HTTP.
        self._problem = ""
        # Here, and not in the thread that exports: the SDK cannot be imported while the interpreter ends.
        with _CAPTURE:
            self._exporter = _grpc(target) if target.protocol == "grpc" else self._http(target)

    @property
    def problem(self) -> str:
        """What has failed in an export that is in progress; the SDK tries again."""
        return self._text(self._problem)

    def export(self, data: Any) -> Outcome:
        """Sends spans, log records or metrics of the SDK, and waits for the end, at most for the time limit of the target."""
        self._outcome, self._problem = Outcome(), ""
        try:
            with _CAPTURE as records:
                result = self._exporter.export(data)
        except Exception as error:  # any error of a library: telemetry must not end the program
            return Outcome(self._text(f"{type(error).__name__}: {error}"))
        if result.name == "SUCCESS":
            self._problem = ""
            return self._outcome
        retries = [record for record in records if record.levelno == logging.WARNING]
        text = (retries or records)[0].getMessage() if records else "the receiver did not accept the data"
        return Outcome(self._text(self._problem or text), bool(retries or self._problem))

    def shutdown(self) -> None:
        """Ends retries, and refuses other data. A request over HTTP that is in progress ends with its time limit."""
        with _CAPTURE:
            self._exporter.shutdown()

    def _text(self, text: str) -> str:
        """Without the query of the URL, which may contain a token."""
        query = urlsplit(self._target.url).query
        return _PAUSE.sub("", text.replace(query, "…") if query else text)[:_SHOWN]

    def _http(self, target: Target) -> Any:
        # `requests` belongs to the SDK's transport.
        session = import_module("requests").Session()
        session.hooks["response"].append(self._answered)
        request = session.request

        def noted(*args: Any, **more: Any) -> Any:
            if target.certificate is not None:
                # Else REQUESTS_CA_BUNDLE replaces the file that the session has.
                more.setdefault("verify", target.certificate)
            try:
                answer = request(*args, **more)
                self._problem = ""
                return answer
            except OSError as error:  # what the errors of `requests` are
                self._problem = str(error)
                raise

        session.request = noted
        module, name = _CLASSES[target.signal]
        http = import_module(f"{EXPORTERS}.http")
        return getattr(import_module(f"{EXPORTERS}.http.{module}"), name)(
            endpoint=target.url,
            headers=dict(target.headers),
            timeout=target.timeout,
            compression=http.Compression.Gzip if target.gzip else http.Compression.NoCompression,
            certificate_file=target.certificate,
            client_certificate_file=target.client_certificate,
            client_key_file=target.client_key,
            session=session,
        )

    def _answered(self, response: Any, *_: Any, **__: Any) -> None:
        """What the SDK does not report: a redirection counts as a success, and rejected items are in the answer."""
        if 300 <= response.status_code < 400:
            # The target is not shown: the URL of a redirection may contain a token.
            self._outcome = Outcome(f"HTTP status {response.status_code}, a redirection, which is not followed")
        elif response.ok:
            module, name, field = _ANSWERS[self._target.signal]
            try:
                found = getattr(import_module(f"opentelemetry.proto.collector.{module}"), name).FromString(response.content).partial_success
            except Exception:  # DecodeError of a library without types: the answer of a receiver that sends no message
                return
            self._outcome = Outcome(rejected=max(0, getattr(found, field)), message=found.error_message[:_SHOWN])


def _grpc(target: Target) -> Any:
    grpc = import_module("grpc")
    split = urlsplit(target.url)
    host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname
    files = (target.certificate, target.client_key, target.client_certificate)
    is_secure = split.scheme == "https"
    module, name = _CLASSES[target.signal]
    return getattr(import_module(f"{EXPORTERS}.grpc.{module}"), name)(
        endpoint=f"{split.scheme}://{host}:{split.port or _GRPC_PORT}",
        insecure=not is_secure,
        credentials=grpc.ssl_channel_credentials(*(Path(one).read_bytes() if one else None for one in files)) if is_secure else None,
        headers=tuple((key.lower(), value) for key, value in target.headers),
        timeout=target.timeout,
        compression=grpc.Compression.Gzip if target.gzip else grpc.Compression.NoCompression,
    )


class _Capture(logging.Filter):
    """Keeps the log records of the threads that are in a `with` block of it; records of other threads pass."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def __enter__(self) -> list[logging.LogRecord]:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            if self not in logger.filters:
                # Before the SDK's filter of repeated records.
                logger.filters.insert(0, self)
        self._of_thread.records = records = list[logging.LogRecord]()
        return records

    def __exit__(self, *_: object) -> None:
        self._of_thread.records = None

    def filter(self, record: logging.LogRecord) -> bool:
        records = getattr(self._of_thread, "records", None)
        if records is None:
            return True
        if record.levelno >= logging.WARNING:
            records.append(record)
        return False


_CAPTURE = _Capture()
