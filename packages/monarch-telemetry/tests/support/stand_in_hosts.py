"""Hosts in this process for the real engine: they run their parts as collectors do, and can be stopped, killed and lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor import SupervisionError
from monarch.extension import ServiceError
from monarch.telemetry._collector.options import Options
from monarch.telemetry._engine import engine as engines
from monarch.telemetry._engine import questions, running_queries
from monarch.telemetry._sql import expected, wire
from monarch.telemetry._sql.limits import Limits
from monarch.telemetry._sql.plan import Plan, merge, part

# Seconds of a question: the engine waits in real time for a stopped host, and for no other one.
ANSWER_TIMEOUT = 0.02


class _Future:
    """Done from the beginning, or never."""

    def __init__(self, result: Any = None, error: BaseException | None = None, *, done: bool = True) -> None:
        self._result, self._error, self.done = result, error, done

    def get(self, timeout: float | None = None) -> Any:
        if not self.done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result


class _Endpoint:
    def __init__(self, call: Callable[..., _Future]) -> None:
        self.call_one = self.broadcast = call


class _Collector:
    """One life of the collector of a host."""

    def __init__(self, host: StandIn) -> None:
        self.host, self.is_ended = host, False
        self.part, self.gather, self.cancel = _Endpoint(self._part), _Endpoint(self._gather), _Endpoint(lambda *_: _Future())

    def _part(self, plan: str, limits: tuple[Any, ...], *_: Any) -> _Future:
        self.host.asked += 1
        if self.is_ended:
            return _Future(error=SupervisionError("the collector has ended"))
        if self.host.is_stopped:
            return _Future(done=False)
        if self.host.says is not None:
            return _Future(self.host.says)
        schemas = self.host.schemas
        tables = {name: (schemas[name], list(self.host.rows.get(name, ()))) for name in schemas}
        batches = part(Plan.from_json(plan, schemas), tables, limits=Limits(*limits))
        return _Future((wire.encode(batches), 0))

    def _gather(self, plan: str, limits: tuple[Any, ...], seconds: float, others: Sequence[_Collector], *_: Any) -> _Future:
        mine = self._part(plan, limits)
        if not mine.done or self.is_ended:
            return mine
        if self.host.says_of_group is not None:
            return _Future(self.host.says_of_group)
        answers = [mine.get()]
        for other in others:
            theirs = other._part(plan, limits)
            answers.append(theirs.get() if theirs.done and not other.is_ended else None)
        given = Limits(*limits)
        made = Plan.from_json(plan, self.host.schemas)
        parts, scanned, without = wire.parts_of(answers, given.memory, lambda batches: expected.check(made, batches))
        data = wire.encode(merge(made, parts, limits=given))
        return _Future((data, scanned, [place - 1 for place in without]))


class StandIn:
    """A host with the interface of `_engine.host.Host`; `rows` are batches by table."""

    def __init__(self, name: str, schemas: Mapping[str, Any], rows: Mapping[str, Sequence[Any]], hostname: str | None = None) -> None:
        self.name, self.schemas, self.rows = name, schemas, rows
        # Its number and own name, for hosts that have these in their rows.
        self.host, self.hostname = id(self), hostname
        self.is_stopped = self.is_lost = self._was_silent = False
        # The answer of its collector instead of a part, and instead of the answer of a member of its group.
        self.says: object = None
        self.says_of_group: object = None
        # The number of requests for its part.
        self.asked = 0
        # Called with each ended collector.
        self.lost: Callable[[StandIn, str], None] | None = None
        self._collector = self._known = _Collector(self)

    def kill(self) -> None:
        """The collector ends; the agent starts it again, without the history."""
        self._collector.is_ended = True
        self._collector, self.rows, self.is_stopped = _Collector(self), {}, False

    def lose(self) -> None:
        """The host ends, with its agent."""
        self.kill()
        self.is_lost = True

    @property
    def answers(self) -> bool:
        return not self.is_stopped and not self.is_lost

    def start(self, timeout: float | None = None) -> _Collector:
        if self._known is None:
            if self.is_lost:
                raise ServiceError(f"{self.name} is lost")
            self._known = self._collector
        return self._known

    def was_silent(self, handle: _Collector) -> None:
        self._was_silent = handle is self._collector

    def is_silent(self, timeout: float) -> bool:
        self._was_silent = self._was_silent and self.is_stopped
        return self._was_silent

    def ended(self, handle: _Collector, of: str) -> None:
        if self._known is handle:
            self._known = None
            if self.lost is not None:
                self.lost(self, of)


def made(patch: pytest.MonkeyPatch, schemas: Mapping[str, Any], group: int) -> Any:
    """The engine over no hosts yet, `engine.hosts` takes them; it knows these tables, and its clock stands."""
    clock = SimpleNamespace(monotonic=lambda: 0.0, time=lambda: 0.0)
    for module in (engines, questions, running_queries):
        patch.setattr(module, "time", clock)
    patch.setattr(engines, "member", lambda: SimpleNamespace(job=1))
    patch.setattr(engines, "schemas", lambda: schemas)
    patch.setattr(running_queries, "when_done", lambda future, then: then(future) if future.done else None)
    return engines.Engine({}, Options(), alone=True, group=group)
