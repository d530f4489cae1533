"""The OTEL_* variables: what they decide, and that a wrong value names its variable and stops nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.telemetry._export import otlp_settings
from monarch.telemetry._export.otlp_settings import SIGNALS, VARIABLES, Batching, Sampler, read

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


def test_nothing_is_exported_without_an_endpoint() -> None:
    found = read({})
    assert dict(found.targets) == {} and found.problems == ()
    assert (found.service_name, found.temporality, found.metric_interval) == ("monarch", "cumulative", 1.0)
    assert found.sampler == Sampler("traceidratio", True, 0.01)
    assert found.batching["traces"] == Batching(5.0, 2048, 65536) and found.batching["logs"].delay == 1.0


def test_general_endpoint_gets_a_path_for_each_signal() -> None:
    found = read({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/base/"})
    assert {signal: found.targets[signal].url for signal in SIGNALS} == {
        "traces": "http://collector:4318/base/v1/traces",
        "metrics": "http://collector:4318/base/v1/metrics",
        "logs": "http://collector:4318/base/v1/logs",
    }


def test_endpoint_of_a_signal_is_used_unchanged() -> None:
    found = read({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "https://logs.example/push?key=1", "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "2500"})
    assert [*found.targets] == ["logs"]
    target = found.targets["logs"]
    assert (target.url, target.timeout) == ("https://logs.example/push?key=1", 2.5)
    assert target.shown == "https://logs.example/push" and "key" not in repr(target)


def test_settings_of_monarch_turn_signals_off() -> None:
    assert [*read(ENDPOINT, traces=False).targets] == ["metrics", "logs"]
    assert [*read(ENDPOINT, metrics=False).targets] == ["traces", "logs"]
    assert [*read({**ENDPOINT, "OTEL_LOGS_EXPORTER": "none"}).targets] == ["traces", "metrics"]
    assert not read({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}).targets


def test_chosen_exporter_has_the_default_endpoint() -> None:
    assert read({"OTEL_TRACES_EXPORTER": "otlp"}).targets["traces"].url == "http://localhost:4318/v1/traces"


def test_headers_are_decoded_and_never_shown() -> None:
    found = read({**ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s%3Decret, x-team = blue ", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"})
    target = found.targets["traces"]
    assert dict(target.headers) == {"api-key": "s=ecret", "x-team": "blue"} and target.gzip
    assert "ecret" not in repr(found)


def test_credentials_of_a_url_become_a_header() -> None:
    target = read({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:p%40ss@[::1]:4318"}).targets["traces"]
    assert target.url == "http://[::1]:4318/v1/traces"
    assert dict(target.headers) == {"Authorization": "Basic dXNlcjpwQHNz"}
    assert "dXNl" not in repr(target)


WRONG = [
    ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
    ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "secret-without-a-name"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "a name=secret"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "name=secret%0Aother: x"),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/nowhere/key.pem"),
    ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both"),
    ("OTEL_RESOURCE_ATTRIBUTES", "secret"),
    ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
    ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
    ("OTEL_TRACES_SAMPLER_ARG", "nan"),
    ("OTEL_SDK_DISABLED", "yes"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
    ("OTEL_BLRP_SCHEDULE_DELAY", "1 fortnight"),
    ("OTEL_ATTRIBUTE_COUNT_LIMIT", "0"),
    ("OTEL_LOGS_EXPORTER", "console"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_value_names_its_variable(name: str, value: str) -> None:
    found = read({**ENDPOINT, name: value})
    assert len(found.problems) == 1 and found.problems[0].startswith(f"{name}: "), found.problems
    assert "secret" not in found.problems[0]
    assert found._replace(problems=()) == read(ENDPOINT)


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://", "http://user:secret@host:port", "http://a b", "https://é"])
def test_endpoint_that_is_no_url_exports_nothing(url: str) -> None:
    found = read({"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    assert not found.targets and found.problems[0].startswith("OTEL_EXPORTER_OTLP_ENDPOINT: ")
    assert "secret" not in found.problems[0]


def test_batch_is_no_larger_than_its_queue() -> None:
    found = read({"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "200"})
    assert found.batching["traces"] == Batching(5.0, 100, 100) and "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" in found.problems[0]


@pytest.mark.parametrize(("text", "wanted"), [("250", 0.25), ("2s", 2.0), ("1.5m", 90.0)])
def test_intervals_are_milliseconds_unless_they_have_a_unit(text: str, wanted: float) -> None:
    assert read({"OTEL_METRIC_EXPORT_INTERVAL": text}).metric_interval == wanted


def test_service_name_has_its_own_variable() -> None:
    attributes = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=of%20attributes,team=blue"}
    assert dict(read(attributes).resource) == {"service.name": "of attributes", "team": "blue"}
    assert read({**attributes, "OTEL_SERVICE_NAME": "own"}).service_name == "own"


def test_samplers() -> None:
    half = read({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}).sampler
    assert half == Sampler("traceidratio", False, 0.5)
    assert half.begins(1) and not half.begins((1 << 64) - 1) and half.begins(1 << 127)
    assert half.exports(1, False) and not half.exports((1 << 64) - 1, True)
    based = read({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}).sampler
    assert based.exports(1, True) and not based.exports(1, False) and not based.begins(1)
    assert read({"OTEL_TRACES_SAMPLER": "always_on"}).sampler.exports(1, False)
    assert read({"OTEL_TRACES_SAMPLER_ARG": "0.5"}).sampler == Sampler("traceidratio", True, 0.5)
    assert read({"OTEL_TRACES_SAMPLER": "traceidratio"}).sampler.ratio == 1.0


def test_grpc_without_its_library_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_settings, "is_installed", lambda _: False)
    found = read({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert {target.protocol for target in found.targets.values()} == {"http/protobuf"}
    assert len(found.problems) == 1 and "monarch-telemetry[otel-grpc]" in found.problems[0]


def test_grpc_endpoint_may_have_no_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_settings, "is_installed", lambda _: True)
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert read(asked).targets["logs"].url == "https://collector:4317/"
    assert read({**asked, "OTEL_EXPORTER_OTLP_INSECURE": "true"}).targets["logs"].url == "http://collector:4317/"


def test_certificates_need_each_other(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("key")
    found = read({**ENDPOINT, "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(tmp_path / "key.pem")})
    assert found.problems[0].startswith("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: ") and found.targets["logs"].client_key is None


def test_short_queue_alone_is_no_problem() -> None:
    found = read({"OTEL_BSP_MAX_QUEUE_SIZE": "1"})
    assert found.batching["traces"] == Batching(5.0, 1, 1) and found.problems == ()


@given(st.dictionaries(st.sampled_from([one.name for one in VARIABLES]), TEXTS))
def test_no_value_raises(environment: dict[str, str]) -> None:
    found = read(environment)
    assert all(problem.startswith(tuple(environment)) for problem in found.problems)


def test_table_of_variables_has_their_defaults() -> None:
    assert len({one.name for one in VARIABLES}) == len(VARIABLES)
    changed = {
        one.name: one.default for one in VARIABLES if one.default and one.name not in ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_EXPORTER")
    }
    changed = {name: value for name, value in changed.items() if not name.endswith("_EXPORTER")}
    assert read({**ENDPOINT, **changed}) == read(ENDPOINT)
    assert all(f"`{one.name}`" in otlp_settings.markdown() for one in VARIABLES)
