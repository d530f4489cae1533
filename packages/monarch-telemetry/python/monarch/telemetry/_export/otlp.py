"""Exports the rows of a collector by OTLP: what the OTEL_* variables ask for, with a pipeline for each signal.

exporter = start({"host.name": "node-1", "monarch.job": "train"})     # None where the variables name no receiver
exporter.add({"logs": [batch]})                                      # each row once, from any thread; it never waits
exporter.close(5)
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from monarch.extension import seconds, setting
from monarch.telemetry._export.otlp_pipeline import Exporter, Mapper, Pipeline, Status
from monarch.telemetry._export.otlp_resource import Resources, kubernetes
from monarch.telemetry._export.otlp_sdk import SdkExporter
from monarch.telemetry._export.otlp_settings import EXPORTERS, OtlpSettings, Signal, is_installed, read

_LOGGER = logging.getLogger("monarch.telemetry")
HINT = "pip install 'monarch-telemetry[otel]'"
_ENTITIES = ("hosts", "procs", "meshes")
_ROWS: dict[Signal, tuple[str, ...]] = {
    "traces": ("spans", "span_context", "span_events"),
    "logs": ("logs", "events", "failures", "audit"),
    "metrics": ("metric_gauges", "metric_sums", "metric_histograms"),
}
_SIGNALS: dict[str, Signal] = {table: signal for signal, tables in _ROWS.items() for table in tables}
# The tables of which a row is an item of the queue: a span has rows in several tables.
_COUNTED = {signal: frozenset(tables[:1] if signal == "traces" else tables) for signal, tables in _ROWS.items()}
TABLES = (*_ENTITIES, *_SIGNALS)
_EXIT_S = 2.0


class OtlpExporter:
    """Exports rows. `close` ends its threads; the end of the interpreter closes it within 2 seconds."""

    def __init__(
        self,
        settings: OtlpSettings,
        base: Mapping[str, Any],
        exporters: Mapping[Signal, Exporter],
        *,
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`base` are the resource attributes of this collector; signals without an exporter are not exported."""
        self._clock = clock
        self._resources = resources = Resources(base, settings.resource)

        # The SDK is optional.
        from monarch.telemetry._export.otlp_records import LogMapper, MetricMapper, SpanMapper

        mappers: dict[Signal, Mapper] = {
            "traces": SpanMapper(settings, resources),
            "logs": LogMapper(settings, resources),
            "metrics": MetricMapper(settings, resources, now_us),
        }
        self._pipelines: dict[Signal, Pipeline] = {
            signal: Pipeline(signal, exporter, mappers[signal], settings.batching[signal], _COUNTED[signal], clock=clock)
            for signal, exporter in exporters.items()
        }
        self._lock = Lock()
        self._is_closing = False
        atexit.register(self._close_at_exit)

    def add(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """Takes batches by the name of their table; tables that are not exported are left out."""
        if self._is_closing:
            return
        for table, batches in rows.items():
            signal = _SIGNALS.get(table)
            pipeline = self._pipelines.get(signal) if signal is not None else None
            for batch in batches:
                if table in _ENTITIES:
                    self._resources.offer(table, batch)
                elif pipeline is not None and batch.num_rows:
                    pipeline.add(table, batch)

    def flush(self, timeout: float) -> bool:
        """Exports what was added, whether it is due or not, at most for so many seconds. Returns whether receivers have accepted it."""
        before, until = self._lost(), self._clock() + timeout
        begun = [(one, one.begin_flush()) for one in self._pipelines.values()]
        return all(one.has_flushed(flush, until - self._clock()) for one, flush in begun) and self._lost() == before

    def close(self, timeout: float) -> bool:
        """Exports what was added, at most for so many seconds, and ends. Returns whether receivers have accepted all of it."""
        atexit.unregister(self._close_at_exit)
        with self._lock:
            if self._is_closing:
                return True
            self._is_closing = True
        is_flushed = self.flush(timeout)
        for one in self._pipelines.values():
            one.close()
        return is_flushed

    def _close_at_exit(self) -> None:
        self.close(_EXIT_S)

    def _lost(self) -> int:
        return sum(one.failed_items + one.dropped_rows for one in self.status().values())

    def status(self) -> Mapping[Signal, Status]:
        """The counts until now. Any thread."""
        return {signal: one.status() for signal, one in self._pipelines.items()}


def start(base: Mapping[str, Any], *, environment: Mapping[str, str] | None = None) -> OtlpExporter | None:
    """The exporter that the environment asks for; None where it names no receiver, or where the library is missing.

    `base` are the resource attributes of this collector, such as `host.name` and `monarch.job`. An invalid variable is logged.
    """
    interval = seconds("otel_metric_export_interval") or 1.0
    traces, metrics = bool(setting("enable_otel_tracing")), bool(setting("enable_otel_metrics"))
    settings = read(environment, traces=traces, metrics=metrics, metric_interval=interval)
    for problem in settings.problems:
        _LOGGER.warning("OpenTelemetry: %s", problem)
    if not settings.targets:
        return None
    if not is_installed(f"{EXPORTERS}.http"):
        _LOGGER.warning(
            "OpenTelemetry: nothing is exported: the library opentelemetry-exporter-otlp-proto-http is not installed (`%s`)", HINT
        )
        return None
    exporters: dict[Signal, Exporter] = {}
    for signal, target in settings.targets.items():
        try:
            exporters[signal] = SdkExporter(target)
        except (ImportError, OSError, ValueError) as error:
            _LOGGER.warning("OpenTelemetry: %s are not exported to %s: %s", signal, target.shown, error)
    return OtlpExporter(settings, {**kubernetes(), **base}, exporters) if exporters else None
