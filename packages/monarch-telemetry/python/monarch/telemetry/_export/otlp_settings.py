"""The OTEL_* environment variables: which signals go where, how often, under which names.

A wrong value never stops anything: the default is taken, and `OtlpSettings.problems` has a line that names the variable. Headers, and
credentials in a URL, are in no text of this module.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from importlib.util import find_spec
from math import isfinite
from os import R_OK, access, environ
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

Signal = Literal["traces", "metrics", "logs"]
SIGNALS: tuple[Signal, ...] = ("traces", "metrics", "logs")
Protocol = Literal["http/protobuf", "grpc"]
Temporality = Literal["cumulative", "delta", "lowmemory"]
GRPC_HINT = "pip install 'monarch-telemetry[otel-grpc]'"
EXPORTERS = "opentelemetry.exporter.otlp.proto"
_LONGEST_S = 24 * 3600.0
_C = TypeVar("_C", bound=str)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Variable(NamedTuple):
    """A row of the variables in docs/opentelemetry-reference.md. `per_signal`: `OTEL_EXPORTER_OTLP_TRACES_…` and so on exist too."""

    name: str
    default: str
    meaning: str
    per_signal: bool = False


_OTLP = "OTEL_EXPORTER_OTLP_"
VARIABLES = (
    Variable(
        f"{_OTLP}ENDPOINT",
        "",
        "URL of the receiver; `/v1/traces`, `/v1/metrics`, `/v1/logs` are added to it, not to those of a signal",
        True,
    ),
    Variable(f"{_OTLP}PROTOCOL", "http/protobuf", "`http/protobuf`, or `grpc` with the extra `otel-grpc`", True),
    Variable(f"{_OTLP}HEADERS", "", "headers of each request, as `name=value,name=value`; values may be percent-encoded", True),
    Variable(f"{_OTLP}TIMEOUT", "10000", "time limit of a request, in milliseconds", True),
    Variable(f"{_OTLP}COMPRESSION", "none", "`gzip` or `none`", True),
    Variable(
        f"{_OTLP}CERTIFICATE", "", "file with the certificates that the receiver is checked against; empty: those of the system", True
    ),
    Variable(f"{_OTLP}CLIENT_CERTIFICATE", "", "file with the client certificate, for receivers that want one", True),
    Variable(f"{_OTLP}CLIENT_KEY", "", "file with the key of the client certificate", True),
    Variable(f"{_OTLP}INSECURE", "false", "`true`: gRPC without TLS to an endpoint without a scheme", True),
    Variable(f"{_OTLP}METRICS_TEMPORALITY_PREFERENCE", "cumulative", "`cumulative`, `delta` or `lowmemory` (as `delta`)"),
    Variable("OTEL_TRACES_EXPORTER", "otlp", "`none` exports no traces"),
    Variable("OTEL_METRICS_EXPORTER", "otlp", "`none` exports no metrics"),
    Variable("OTEL_LOGS_EXPORTER", "otlp", "`none` exports no logs"),
    Variable("OTEL_SDK_DISABLED", "false", "`true` exports nothing"),
    Variable("OTEL_SERVICE_NAME", "monarch", "the resource attribute `service.name`"),
    Variable("OTEL_RESOURCE_ATTRIBUTES", "", "more resource attributes, as `name=value,name=value`; they replace those of the collector"),
    Variable(
        "OTEL_TRACES_SAMPLER",
        "parentbased_traceidratio",
        "`always_on`, `always_off`, `traceidratio`, or `parentbased_` before one of them: the choice of the caller counts",
    ),
    Variable(
        "OTEL_TRACES_SAMPLER_ARG",
        "0.01",
        "the share of traces that `traceidratio` keeps, 0 to 1; 1 by default where OTEL_TRACES_SAMPLER is set",
    ),
    Variable("OTEL_METRIC_EXPORT_INTERVAL", "1000", "time between two exports of metrics, in milliseconds"),
    Variable("OTEL_BSP_SCHEDULE_DELAY", "5000", "the longest time that a span waits for others, in milliseconds"),
    Variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2048", "spans of one request at most"),
    Variable("OTEL_BSP_MAX_QUEUE_SIZE", "65536", "spans that wait for the receiver at most; the oldest are dropped and counted"),
    Variable("OTEL_BLRP_SCHEDULE_DELAY", "1000", "the longest time that a log line waits for others, in milliseconds"),
    Variable("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "2048", "log lines of one request at most"),
    Variable("OTEL_BLRP_MAX_QUEUE_SIZE", "65536", "log lines that wait for the receiver at most; the oldest are dropped and counted"),
    Variable("OTEL_ATTRIBUTE_COUNT_LIMIT", "128", "attributes of a span or log line at most"),
    Variable("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "", "characters of a text in an attribute at most; empty: no limit"),
    Variable("HTTPS_PROXY", "", "the proxy of `https` endpoints; `HTTP_PROXY` is that of `http` ones, `NO_PROXY` lists hosts without one"),
)


class Target(NamedTuple):
    """Where one signal goes. `url` has no credentials: those of the variable are a header. Times are in seconds."""

    signal: Signal
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout: float = 10.0
    gzip: bool = False
    protocol: Protocol = "http/protobuf"
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None

    @property
    def shown(self) -> str:
        """The URL without its query, which may have a token."""
        split = urlsplit(self.url)
        return urlunsplit((split.scheme, split.netloc, split.path, "", ""))

    def __repr__(self) -> str:
        return f"<Target {self.signal} {self.shown} {self.protocol}{' gzip' if self.gzip else ''}, {len(self.headers)} headers>"


class Sampler(NamedTuple):
    """Which traces are exported."""

    kind: Literal["always_on", "always_off", "traceidratio"]
    parent_based: bool
    ratio: float

    def begins(self, trace_id: int) -> bool:
        """Whether a trace that begins here is exported: by the lower half of its id, as in other implementations."""
        return self.kind == "always_on" or (self.kind == "traceidratio" and (trace_id & (1 << 64) - 1) < round(self.ratio * (1 << 64)))

    def exports(self, trace_id: int, sampled: bool) -> bool:
        """Whether a trace is exported that has begun elsewhere: `sampled` is the choice that was made there."""
        return sampled if self.parent_based else self.begins(trace_id)


class Batching(NamedTuple):
    """How rows of a signal are collected into requests: seconds, rows of a request, rows that wait."""

    delay: float
    batch: int
    queue: int


class OtlpSettings(NamedTuple):
    """What the variables ask for. `targets` has no signal that is not exported; `resource` is what OTEL_RESOURCE_ATTRIBUTES sets."""

    targets: Mapping[Signal, Target]
    service_name: str
    resource: Mapping[str, str]
    sampler: Sampler
    temporality: Temporality
    metric_interval: float
    batching: Mapping[Signal, Batching]
    attribute_count: int
    attribute_length: int | None
    problems: tuple[str, ...]


def read(
    environment: Mapping[str, str] | None = None, *, traces: bool = True, metrics: bool = True, metric_interval: float = 1.0
) -> OtlpSettings:
    """The settings of an environment, by default of this process's.

    `traces` and `metrics` are the settings `enable_otel_tracing` and `enable_otel_metrics`; `metric_interval` (seconds) is the interval
    where OTEL_METRIC_EXPORT_INTERVAL sets none.
    """
    found = _Environment(environ if environment is None else environment)
    wanted: dict[Signal, bool] = {"traces": traces, "metrics": metrics, "logs": True}
    targets: dict[Signal, Target] = {}
    if not found.flag("OTEL_SDK_DISABLED"):
        for signal in SIGNALS:
            target = found.target(signal) if wanted[signal] else None
            if target is not None:
                targets[signal] = target
    resource = found.pairs("OTEL_RESOURCE_ATTRIBUTES") or {}
    service = found.text("OTEL_SERVICE_NAME") or resource.get("service.name") or "monarch"
    interval = found.milliseconds("OTEL_METRIC_EXPORT_INTERVAL", metric_interval)
    return OtlpSettings(
        targets,
        service,
        {**resource, "service.name": service},
        found.sampler(),
        found.choice(f"{_OTLP}METRICS_TEMPORALITY_PREFERENCE", "cumulative", ("cumulative", "delta", "lowmemory")),
        interval,
        {
            "traces": found.batching("OTEL_BSP_", 5.0),
            "metrics": Batching(interval, 2048, 65536),
            "logs": found.batching("OTEL_BLRP_", 1.0),
        },
        found.count("OTEL_ATTRIBUTE_COUNT_LIMIT", 128),
        found.count("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", None),
        tuple(found.problems),
    )


class _Environment:
    """Reads variables, and writes down what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def text(self, name: str) -> str:
        """Empty and not set are the same."""
        return self._environment.get(name, "").strip()

    def problem(self, name: str, what: str, taken: str) -> None:
        """A line of its own, once: a general variable is read for each signal."""
        line = f"{name}: {what}; {taken}"
        if line not in self.problems:
            self.problems.append(line)

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            self.problem(name, f"{text!r} is neither true nor false", "false is taken")
        return text == "true"

    def choice(self, name: str, default: _C, choices: tuple[_C, ...]) -> _C:
        text = self.text(name).lower()
        for one in choices:
            if text == one:
                return one
        if text:
            self.problem(name, f"{text[:60]!r} is none of {', '.join(choices)}", f"{default} is taken")
        return default

    def count(self, name: str, default: _N) -> int | _N:
        text = self.text(name)
        if not text:
            return default
        if text.isascii() and text.isdigit() and 0 < int(text[:12]) <= 1 << 31:
            return int(text[:12])
        self.problem(name, f"{text[:60]!r} is no number from 1 to {1 << 31}", f"{'no limit' if default is None else default} is taken")
        return default

    def milliseconds(self, name: str, default: float) -> float:
        """In seconds. A number is milliseconds; one with a unit is what it is, as in other settings of Monarch."""
        text = self.text(name)
        if not text:
            return default
        match = _DURATION.fullmatch(text)
        seconds = float(match[1]) * _UNITS_S[match[2] or "ms"] if match else 0.0
        if 0 < seconds <= _LONGEST_S:
            return seconds
        self.problem(name, f"{text[:60]!r} is no time of at most a day, in milliseconds", f"{default * 1000:g} is taken")
        return default

    def pairs(self, name: str) -> dict[str, str] | None:
        """`name=value,name=value`; None where one of them is none, as the whole variable is then left out."""
        found: dict[str, str] = {}
        for number, part in enumerate(filter(None, (part.strip() for part in self.text(name).split(","))), 1):
            key, equals, value = part.partition("=")
            if not equals or not key.strip():
                # The value is not shown: it may be a secret.
                self.problem(name, f"entry {number} is not name=value", "the variable is left out")
                return None
            found[unquote(key.strip())] = unquote(value.strip())
        return found

    def sampler(self) -> Sampler:
        kinds = ("always_on", "always_off", "traceidratio")
        names = (*kinds, *(f"parentbased_{kind}" for kind in kinds))
        name = self.choice("OTEL_TRACES_SAMPLER", "parentbased_traceidratio", names)
        kind = name.removeprefix("parentbased_")
        # Without a configured sampler the default is that of Monarch; with one it is that of the specification.
        ratio = 1.0 if self.text("OTEL_TRACES_SAMPLER").lower() in ("traceidratio", "parentbased_traceidratio") else 0.01
        text = self.text("OTEL_TRACES_SAMPLER_ARG")
        if text and kind == "traceidratio":
            given = _number(text)
            if given is not None and 0 <= given <= 1:
                ratio = given
            else:
                self.problem("OTEL_TRACES_SAMPLER_ARG", f"{text[:60]!r} is no number from 0 to 1", f"{ratio:g} is taken")
        return Sampler(
            "always_on" if kind == "always_on" else "always_off" if kind == "always_off" else "traceidratio", name != kind, ratio
        )

    def batching(self, prefix: str, delay: float) -> Batching:
        batch = self.count(f"{prefix}MAX_EXPORT_BATCH_SIZE", 2048)
        queue = self.count(f"{prefix}MAX_QUEUE_SIZE", max(batch, 65536))
        if not self.text(f"{prefix}MAX_EXPORT_BATCH_SIZE"):
            batch = min(batch, queue)
        if queue < batch:
            self.problem(f"{prefix}MAX_EXPORT_BATCH_SIZE", f"{batch} is more than {prefix}MAX_QUEUE_SIZE", f"{queue} is taken")
            batch = queue
        return Batching(self.milliseconds(f"{prefix}SCHEDULE_DELAY", delay), batch, queue)

    def target(self, signal: Signal) -> Target | None:
        """None where the signal is not exported."""
        exporter = f"OTEL_{signal.upper()}_EXPORTER"
        chosen = self.text(exporter).lower()
        if chosen == "none":
            return None
        if chosen not in ("", "otlp"):
            self.problem(exporter, f"{chosen[:60]!r} is neither otlp nor none", "otlp is taken")
        name, own = self._named(signal, "ENDPOINT")
        endpoint = self.text(name)
        if not endpoint and chosen != "otlp":
            return None
        protocol = self._protocol(signal)
        split = self._split(name, endpoint, protocol)
        if split is None:
            return None
        headers_name = self._named(signal, "HEADERS")[0]
        headers = self._headers(headers_name)
        scheme, host, path, query, credentials = split
        if credentials and not any(key.lower() == "authorization" for key, _ in headers):
            headers = (*headers, ("Authorization", credentials))
        if protocol == "http/protobuf" and not own:
            path = f"{path.rstrip('/')}/v1/{signal}"
        certificate, key = self._file(signal, "CLIENT_CERTIFICATE"), self._file(signal, "CLIENT_KEY")
        if (certificate is None) != (key is None):
            missing = "CLIENT_KEY" if key is None else "CLIENT_CERTIFICATE"
            self.problem(
                self._named(signal, missing)[0], "a certificate needs a key, and a key a certificate", "no client certificate is taken"
            )
            certificate = key = None
        return Target(
            signal,
            urlunsplit((scheme, host, path or "/", query, "")),
            headers,
            self.milliseconds(self._named(signal, "TIMEOUT")[0], 10.0),
            self.choice(self._named(signal, "COMPRESSION")[0], "none", ("none", "gzip")) == "gzip",
            protocol,
            self._file(signal, "CERTIFICATE"),
            certificate,
            key,
        )

    def _named(self, signal: Signal, name: str) -> tuple[str, bool]:
        """The variable that decides for a signal, and whether it is that of the signal alone."""
        own = f"{_OTLP}{signal.upper()}_{name}"
        return (own, True) if self.text(own) else (f"{_OTLP}{name}", False)

    def _protocol(self, signal: Signal) -> Protocol:
        name = self._named(signal, "PROTOCOL")[0]
        if self.choice(name, "http/protobuf", ("http/protobuf", "grpc")) != "grpc":
            return "http/protobuf"
        if is_installed(f"{EXPORTERS}.grpc"):
            return "grpc"
        self.problem(
            name,
            f"grpc needs the library opentelemetry-exporter-otlp-proto-grpc (`{GRPC_HINT}`)",
            "http/protobuf is taken, for which collectors have port 4318",
        )
        return "http/protobuf"

    def _split(self, name: str, endpoint: str, protocol: Protocol) -> tuple[str, str, str, str, str] | None:
        """Scheme, host with port, path, query, credentials; None for what is no URL, as a default would be another receiver."""
        default = "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318"
        text = endpoint or default
        if protocol == "grpc" and "://" not in text:
            insecure = self.flag(f"{_OTLP}INSECURE") if name == f"{_OTLP}ENDPOINT" else self.flag(name.replace("ENDPOINT", "INSECURE"))
            text = f"{'http' if insecure else 'https'}://{text}"
        try:
            split = urlsplit(text)
            host, port = split.hostname, split.port
        except ValueError:
            host, port, split = None, None, None
        unreadable = any(not " " < one <= "~" for one in text)
        if split is None or not host or split.scheme not in ("http", "https") or unreadable:
            # The text is not shown: it may contain credentials.
            self.problem(name, "this is no URL that begins with http:// or https://", "the signal is not exported")
            return None
        place = f"[{host}]" if ":" in host else host
        user, password = unquote(split.username or ""), unquote(split.password or "")
        credentials = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}" if user or password else ""
        return split.scheme, f"{place}:{port}" if port else place, split.path, split.query, credentials

    def _headers(self, name: str) -> tuple[tuple[str, str], ...]:
        found = self.pairs(name) or {}
        for key, value in found.items():
            if not _TOKEN.fullmatch(key) or any(ord(one) < 32 or ord(one) > 255 or ord(one) == 127 for one in value):
                number = list(found).index(key) + 1
                self.problem(name, f"entry {number} cannot be a header", "the variable is left out")
                return ()
        return tuple(found.items())

    def _file(self, signal: Signal, what: str) -> str | None:
        name = self._named(signal, what)[0]
        path = self.text(name)
        if path and not access(path, R_OK):
            taken = "the certificates of the system are taken" if what == "CERTIFICATE" else "no client certificate is taken"
            self.problem(name, f"there is no file {path!r} that can be read", taken)
            return None
        return path or None


def is_installed(module: str) -> bool:
    """Whether a module of a namespace is there, without an import of it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it
        return False


_N = TypeVar("_N", int, None)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if isfinite(found) else None


def markdown() -> str:
    """The variables as a table of docs/opentelemetry-reference.md."""
    lines = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for one in VARIABLES:
        default = f"`{one.default}`" if one.default else ""
        lines.append(f"| `{one.name}`{' *' if one.per_signal else ''} | {default} | {one.meaning} |")
    return "\n".join(lines) + "\n"
