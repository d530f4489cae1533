"""How telemetry is collected: what a user may set, checked once, as plain data for the collectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from monarch.extension import seconds, setting
from monarch.telemetry.errors import TelemetryError

Level = Literal["off", "normal", "messages"]
# Options that 0 disables.
_OFF = {"retention_secs": ", or 0 for no bound of time", "snapshot_interval_secs": ", or 0 for no snapshots"}
LEVELS: tuple[Level, ...] = get_args(Level)


class Options(NamedTuple):
    """`retention_secs` 0: no bound of time; `snapshot_interval_secs` 0: no snapshots. `level`: off; normal, which samples messages above
    10,000 a second and proc; messages, which samples none.

    The last four fields come from the client's environment and settings: `otel` are OTEL_* variables where they name a receiver, `job` is
    the name of the job in exports. `repr` has no values of variables, as these may be secrets.
    """

    retention_secs: float = 3600.0
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0
    level: Level = "normal"
    budget_bytes: int = 256 << 20
    otel: tuple[tuple[str, str], ...] = ()
    metric_interval_secs: float = 1.0
    memory_interval_secs: float = 300.0
    job: str = ""

    def __repr__(self) -> str:
        shown = {**self._asdict(), "otel": tuple(name for name, _ in self.otel)}
        return f"Options({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def service_name(self) -> str:
        """The resource attribute `service.name` of metrics."""
        return dict(self.otel).get("OTEL_SERVICE_NAME") or "monarch"

    @property
    def retention(self) -> float:
        """Seconds of history."""
        return float(self.retention_secs) or float("inf")

    @property
    def snapshot_interval(self) -> float | None:
        """Seconds between snapshots; None for none."""
        return float(self.snapshot_interval_secs) or None

    def with_client(self, environment: Mapping[str, str], job: str | None = None) -> Options:
        """These options with what the environment and the settings of the client ask for."""
        return self._replace(
            otel=_otel(environment),
            metric_interval_secs=seconds("otel_metric_export_interval") or self.metric_interval_secs,
            memory_interval_secs=seconds("process_memory_metric_interval") or self.memory_interval_secs,
            job=job or self.job,
        )

    def widened(self, other: Options) -> Options:
        """What keeps all that either of the two keeps."""
        level: Level = self.level if LEVELS.index(self.level) >= LEVELS.index(other.level) else other.level
        return Options(
            self.retention_secs if self.retention >= other.retention else other.retention_secs,
            self.include_dashboard or other.include_dashboard,
            self.dashboard_port,
            min((one for one in (self.snapshot_interval_secs, other.snapshot_interval_secs) if one), default=0.0),
            level,
            max(self.budget_bytes, other.budget_bytes),
            self.otel or other.otel,
            min(self.metric_interval_secs, other.metric_interval_secs),
            min(self.memory_interval_secs, other.memory_interval_secs),
            self.job or other.job,
        )

    @staticmethod
    def of(config: object = None, **changes: Any) -> Options:
        """From an object with some of these attributes, such as `monarch.job.TelemetryConfig`. `TelemetryError` names what is wrong."""
        given = {name: getattr(config, name) for name in Options._fields if config is not None and hasattr(config, name)}
        given.update({name: value for name, value in changes.items() if value is not None})
        unknown = given.keys() - set(Options._fields)
        if unknown:
            raise TelemetryError(f"telemetry has no option {sorted(unknown)[0]!r}; there are {', '.join(Options._fields)}")
        if "otel" in given:
            given["otel"] = _pairs(given["otel"])
        options = Options(**given)
        if options.level not in LEVELS:
            raise TelemetryError(f"level={options.level!r}: expected {', '.join(LEVELS)}")
        for name in ("retention_secs", "snapshot_interval_secs", "budget_bytes", "metric_interval_secs", "memory_interval_secs"):
            value = getattr(options, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
            if not is_number or (value == 0 and name not in _OFF):
                raise TelemetryError(f"{name}={value!r}: expected a number greater than 0{_OFF.get(name, '')}")
        port = options.dashboard_port
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TelemetryError(f"dashboard_port={port!r}: expected a port, 0 to 65535")
        return options


def _otel(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The OTEL_* variables, with the settings as variables; none where they name no receiver."""
    from monarch.telemetry._export.otlp_settings import read

    found = {name: value for name, value in environment.items() if name.startswith("OTEL_")}
    if not bool(setting("enable_otel_tracing")):
        found["OTEL_TRACES_EXPORTER"] = "none"
    if not bool(setting("enable_otel_metrics")):
        found["OTEL_METRICS_EXPORTER"] = "none"
    interval = seconds("otel_metric_export_interval")
    if interval is not None:
        found.setdefault("OTEL_METRIC_EXPORT_INTERVAL", f"{interval * 1000:g}")
    asked = read(found)
    return tuple(sorted(found.items())) if asked.targets or asked.problems else ()


def _pairs(given: Any) -> tuple[tuple[str, str], ...]:
    """Pairs of texts, which may be lists where they were saved."""
    try:
        pairs = tuple((name, value) for name, value in given)
    except (TypeError, ValueError):
        pairs = ((None, None),)
    if not all(isinstance(one, str) for pair in pairs for one in pair):
        # The value is not shown: it may contain secrets.
        raise TelemetryError("otel: expected pairs of a variable and its value")
    return pairs
