"""An engine over the rows of one store in this process: a saved capture, or the only host of a job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.telemetry._asking import Answer
from monarch.telemetry._sql import functions, planner, wire
from monarch.telemetry._sql import plan as planning
from monarch.telemetry._sql.coverage import Coverage, Stage
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._sql.problems import PlanMismatch
from monarch.telemetry._tables.catalog import TABLES


class OneHost:
    """Answers over batches by the name of their table; tables that are not named are empty."""

    def __init__(self, rows: Mapping[str, Sequence[Any]]) -> None:
        self._tables = {
            name: (table.schema(), list(rows.get(name, ())))
            for name, table in ((functions.key(name) if table.function else name, table) for name, table in TABLES.items())
        }
        self._schemas = {name: schema for name, (schema, _) in self._tables.items()}

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        """`require_all` changes nothing: the only host is there."""
        began = time.monotonic()
        deadline = began + (limits.seconds if timeout is None else min(timeout, limits.seconds))
        plan = planner.make(sql, self._schemas, limits=limits, deadline=deadline)
        try:
            part = planning.part(plan, self._tables, limits=limits, deadline=deadline)
        except PlanMismatch:
            plan = planner.make(sql, self._schemas, limits=limits, cut=False, deadline=deadline)
            part = planning.part(plan, self._tables, limits=limits, deadline=deadline)
        between = time.monotonic()
        table, rows, _ = planner.finish(plan, [wire.encode(part)], limits=limits, deadline=deadline)
        ended = time.monotonic()
        stages = (
            Stage("finish", 0, 1, table.num_rows, (ended - between) * 1e3),
            Stage("scan", 1, 1, rows, (between - began) * 1e3),
        )
        scanned = sum(batch.num_rows for name in plan.reads if name in self._tables for batch in self._tables[name][1])
        coverage = Coverage(1, 1, rows_scanned=scanned, elapsed_ms=(ended - began) * 1e3, stages=stages)
        if plan.kind == "analyze":
            table = coverage.stages_table()
        return Answer(coverage.on(table), coverage)
