"""The time of a query: which ones there are, who has which, and what an error states of one that is over."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.stand_in_hosts import StandIn, made
from test_telemetry_plan import SCHEMAS

from monarch.telemetry import QueryEngineClient, QueryTimeout
from monarch.telemetry._asking import MOST_SECONDS, Answer, in_words
from monarch.telemetry._collector.options import Options
from monarch.telemetry._engine import engine as engines
from monarch.telemetry._engine.query_engine import QueryEngine
from monarch.telemetry._http.routes import QUERY_SECONDS
from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry._sql.limits import DEFAULT, Limits

WRONG: list[tuple[Any, type[Exception], str]] = [
    ("5", TypeError, "(timeout='5'): expected seconds, a number, not str"),
    (True, TypeError, "(timeout=True): expected seconds, a number, not bool"),
    ([1], TypeError, "(timeout=[1]): expected seconds, a number, not list"),
    *((value, ValueError, f"(timeout={value!r}): expected seconds greater than 0, and at most 600") for value in (-1, 0, 600.5)),
    *((value, ValueError, f"(timeout={value!r}): expected") for value in (float("nan"), float("inf"), 1e9)),
]


class Asked:
    """An engine that answers at once; `given` has the times of the queries."""

    def __init__(self) -> None:
        self.given: list[tuple[float | None, float]] = []

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        self.given.append((timeout, limits.seconds))
        return Answer(pa.table({"x": [1]}), Coverage(1, 1))


@pytest.mark.parametrize(("timeout", "kind", "text"), WRONG)
def test_invalid_timeout_is_named_by_every_call(timeout: Any, kind: type[Exception], text: str) -> None:
    asked = Asked()
    client = QueryEngineClient("http://127.0.0.1:9", token="x")
    calls = (
        lambda: QueryEngine(asked).query("SELECT 1", timeout=timeout),
        lambda: client.query("SELECT 1", timeout=timeout),
        lambda: QueryEngineClient("http://127.0.0.1:9", timeout=timeout, token="x"),
    )
    for name, call in zip(("query", "query", "QueryEngineClient"), calls, strict=True):
        with pytest.raises(kind) as error:
            call()
        assert str(error.value).startswith(name + text)
    assert asked.given == []


def test_query_has_its_given_timeout() -> None:
    asked = Asked()
    for timeout in (None, 1, 2.5, Fraction(1, 2), np.float32(3), 11, 600):
        QueryEngine(asked).query("SELECT 1", timeout=timeout)  # type: ignore[arg-type]
    wanted = [(10.0, 10.0), (1.0, 10.0), (2.5, 10.0), (0.5, 10.0), (3.0, 10.0), (11.0, 11.0), (600.0, 600.0)]
    assert [limit for _, limit in asked.given] == [limit for _, limit in wanted]
    assert all(given is not None and 0 < given <= most for (given, _), (most, _) in zip(asked.given, wanted, strict=True))


def test_longest_timeout_is_the_apis() -> None:
    assert MOST_SECONDS == QUERY_SECONDS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.99998, "3 s"),
        (2.40123, "2.4 s"),
        (0.001234, "0.0012 s"),
        (0.0341, "0.034 s"),
        (10.0499, "10 s"),
        (599.96, "600 s"),
        (0.5, "0.5 s"),
        (0.0, "0 s"),
    ],
)
def test_time_in_an_error_has_few_digits(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


def test_text_of_a_timeout_has_the_time_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made(monkeypatch, SCHEMAS, 16)

    class Slow(StandIn):
        def start(self, timeout: float | None = None) -> Any:
            now[0] += 2.40001
            raise RuntimeError("no answer in time")

    now = [0.0]
    monkeypatch.setattr(engines.time, "monotonic", lambda: now[0])
    engine.hosts.append(Slow("host0", SCHEMAS, {}))
    with pytest.raises(QueryTimeout) as error:
        engine.ask("SELECT count(*) FROM t", timeout=2.99998)
    assert str(error.value) == "no host has answered in 2.4 s (host0: no answer in time)"


def test_differing_options_are_named_alone() -> None:
    running = Options(snapshot_interval_secs=5.0, level="messages", otel=(("OTEL_EXPORTER_OTLP_HEADERS", "secret"),))
    asked = Options(snapshot_interval_secs=60.0, otel=(("OTEL_EXPORTER_OTLP_HEADERS", "another"),))
    assert (
        engines.differing(running, asked) == "snapshot_interval_secs=5.0, not 60.0; level='messages', not 'normal'; other variables OTEL_*"
    )
    # The environment of the client of the job is not an option of a second start.
    assert engines.differing(running._replace(job="one"), running._replace(job="", otel=())) == ""
    assert engines.differing(running._replace(job="one", dashboard_port=1), running._replace(job="two")) == ""
