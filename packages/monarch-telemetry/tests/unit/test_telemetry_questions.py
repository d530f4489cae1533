"""A question to many hosts, one of which answers what no collector would."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.telemetry._engine.questions import Part, Questions
from monarch.telemetry._sql.limits import DEFAULT


class Answers:
    """A host, its collector, and the future of its part."""

    def __init__(self, name: str, answer: object) -> None:
        self.name, self._answer = name, answer
        self.part = self

    def is_silent(self, wait: float) -> bool:
        return False

    def start(self, timeout: float) -> Answers:
        return self

    def call_one(self, *arguments: object) -> object:
        return self._answer


def wait(future: object, timeout: float) -> object:
    return future


def ignore(listener: object) -> None:
    pass


@pytest.mark.parametrize(
    "answer", [b"", (b"",), ("text", 1), (b"", "many"), (b"", -1), (b"", 10**5000), (bytes(DEFAULT.memory + 1), 1), (object, object)]
)
def test_host_with_a_malformed_answer_is_missing(answer: object) -> None:
    query: Any = SimpleNamespace(token=1, on_cancel=ignore, wait=wait)
    hosts: list[Any] = [Answers("good", (b"rows", 2)), Answers("bad", answer)]
    asked = Questions(query, "{}", DEFAULT, time.monotonic() + 60.0)
    asked.each(hosts)
    assert asked.found == {"good": Part(b"rows", 2)} and asked.missing == {"bad": "its answer is malformed"}


def test_host_whose_time_is_over_is_missing() -> None:
    query: Any = SimpleNamespace(token=1, on_cancel=ignore, wait=wait)
    hosts: list[Any] = [Answers("good", (b"rows", 2)), Answers("late", None)]
    asked = Questions(query, "{}", DEFAULT, time.monotonic() + 60.0)
    asked.each(hosts)
    assert asked.found == {"good": Part(b"rows", 2)} and asked.missing == {"late": "no answer in time"}
