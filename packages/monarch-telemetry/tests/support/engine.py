"""An engine over the rows of several hosts in this process: each runs its part, and a plan of another form is made again without cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch.telemetry._asking import Answer
from monarch.telemetry._sql import functions
from monarch.telemetry._sql import plan as planning
from monarch.telemetry._sql.coverage import Coverage, Missing
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry.errors import PartialAnswer

SCHEMAS = {functions.key(name) if table.function else name: table.schema() for name, table in TABLES.items()}


class Engine:
    """Answers over the rows of `hosts`, batches by table; `missing` are hosts that do not answer. `asked` has the statements."""

    def __init__(self, *hosts: Mapping[str, Sequence[Any]], missing: Sequence[Missing] = (), truncated: bool = False) -> None:
        self._hosts = [{name: (schema, list(rows.get(name, ()))) for name, schema in SCHEMAS.items()} for rows in hosts]
        self._missing, self._truncated = tuple(missing), truncated
        self.asked: list[tuple[str, float | None, bool]] = []

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        self.asked.append((sql, timeout, require_all))
        # A session of all tables takes ten times longer to create; SHOW names all of them.
        schemas = functions.mentioned(sql, SCHEMAS) if "select" in sql.lower() else SCHEMAS
        try:
            table = self._table(planning.make(sql, schemas, limits=limits), limits)
        except planning.PlanMismatch:
            table = self._table(planning.make(sql, schemas, limits=limits, cut=False), limits)
        hosts = len(self._hosts)
        coverage = Coverage(hosts + len(self._missing), hosts, self._missing, 0, self._truncated, 1.0)
        if require_all and self._missing:
            raise PartialAnswer({one.host: one.reason for one in self._missing}, table=table)
        return Answer(coverage.on(table), coverage)

    def _table(self, plan: planning.Plan, limits: Limits) -> Any:
        parts = [planning.part(plan, host, limits=limits) for host in self._hosts]
        # The last host is merged by the entry node, the others below it.
        return planning.finish(plan, [planning.merge(plan, parts[:-1], limits=limits), *parts[-1:]], limits=limits)
