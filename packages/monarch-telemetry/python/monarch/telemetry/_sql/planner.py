"""The entry node of a question: its statement is planned, and its answer made, in processes that can be ended.

The library plans without a look at time or memory, and holds the interpreter: some hundred bytes of SQL would stop the script that serves
for minutes. This process sends texts, hands on what hosts have sent, and receives Arrow; it never loads the library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch.telemetry._sql import gate, wire
from monarch.telemetry._sql.known_plans import KnownPlans
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._sql.plan import Plan
from monarch.telemetry._sql.worker import WORKERS, Ask

Clock = Callable[[], float]

_KNOWN = KnownPlans()


def make(
    sql: str,
    schemas: Mapping[str, Any],
    *,
    limits: Limits = DEFAULT,
    cut: bool = True,
    hosts: Mapping[int, str] | None = None,
    deadline: float,
    clock: Clock = time.monotonic,
) -> Plan:
    """As `plan.make`. `QueryTimeout` at `deadline`, a time of `clock`; `QueryLimit` where planning needs more memory."""
    gate.checked_size(sql)

    def made() -> Plan:
        ask = {"do": "make", "sql": sql, "cut": cut, "hosts": list((hosts or {}).items())}
        head, _ = WORKERS.ask(Ask(ask, schemas), limits, deadline, clock)
        return Plan.from_json(head["plan"], schemas)

    return _KNOWN.plan(sql, schemas, limits, cut, made, hosts)


def finish(
    plan: Plan,
    parts: Sequence[bytes],
    own: Mapping[str, tuple[Any, Sequence[Any]]] | None = None,
    *,
    hosts: Sequence[str] = (),
    limits: Limits = DEFAULT,
    deadline: float,
    clock: Clock = time.monotonic,
) -> tuple[Any, int, dict[str, str]]:
    """As `plan.finish`, of parts as `wire.encode` makes them, and a part of tables that this process has. The errors of `make` too.

    With the answer, how many rows came with the parts, and why parts of `hosts`, the names of those that sent them, are not in it.
    """
    mine = [wire.marked(batch, name) for name, (_, batches) in (own or {}).items() for batch in batches]
    data = [*parts, *([wire.encode(mine)] if mine else [])]
    what = {"do": "finish", "plan": plan.to_json(), "sizes": [len(one) for one in data], "hosts": list(hosts), "own": bool(mine)}
    head, came = WORKERS.ask(Ask(what, plan.schemas, data), limits, deadline, clock)
    return wire.table_of(came), head["rows"], head["malformed"]
