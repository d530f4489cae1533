"""Queries at a time: two of a program, eight of an engine; others wait within their own time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from support.stand_in_hosts import StandIn, made
from test_telemetry_plan import SCHEMAS

from monarch.telemetry import QueryTimeout
from monarch.telemetry._asking import Answer
from monarch.telemetry._engine.query_engine import QueryEngine
from monarch.telemetry._engine.turns import IN_ALL, OF_USER, Turns
from monarch.telemetry._sql.coverage import Coverage


def test_turn_is_given_back_also_by_an_error() -> None:
    turns = Turns(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), turns.turn(1.0) as left:
            assert 0 < left <= 1.0
            raise ZeroDivisionError
    with turns.turn(0.0), pytest.raises(QueryTimeout, match="1 queries are running already") as caught, turns.turn(0.0):
        pass
    assert caught.value.stage == "turn"


def test_program_runs_two_of_its_queries_at_once() -> None:
    class Counting:
        def __init__(self) -> None:
            self.lock, self.now, self.most, self.two = threading.Lock(), 0, 0, threading.Event()

        def ask(self, sql: str, *, timeout: float, **more: Any) -> Answer:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
                if self.now == OF_USER:
                    self.two.set()
            # The first ones wait for each other: two of them run.
            assert self.two.wait(20) and 0 < timeout <= 10.0
            with self.lock:
                self.now -= 1
            return Answer(pa.table({"x": [1]}), Coverage(1, 1))

    counting = Counting()
    engine = QueryEngine(counting)
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda n: engine.query("SELECT 1") if n % 2 else engine.query_stream("SELECT 1").read_all(), range(100)))
    assert [answer.to_pylist() for answer in answers] == [[{"x": 1}]] * 100
    assert counting.most == OF_USER


def test_engine_runs_eight_queries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made(monkeypatch, SCHEMAS, 16)
    entered, release = threading.Semaphore(0), threading.Event()

    class Slow(StandIn):
        def start(self, timeout: float | None = None) -> Any:
            entered.release()
            release.wait(20)
            return super().start(timeout)

    engine.hosts.append(Slow("host0", SCHEMAS, {}))
    with ThreadPoolExecutor(IN_ALL) as pool:
        running = [pool.submit(engine.ask, "select count(*) n from t") for _ in range(IN_ALL)]
        for _ in running:
            assert entered.acquire(timeout=20)
        with pytest.raises(QueryTimeout, match="8 queries are running already"):
            engine.ask("select count(*) n from t", timeout=0.0)
        release.set()
        assert [one.result().table.to_pylist() for one in running] == [[{"n": 0}]] * IN_ALL
    assert engine.ask("select count(*) n from t").table.to_pylist() == [{"n": 0}]
