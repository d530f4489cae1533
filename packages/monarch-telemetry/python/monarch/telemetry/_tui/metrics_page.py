"""Metrics: resources of hosts, and the gauges, sums and histograms of the job, each with its last minutes."""

from __future__ import annotations

from functools import partial
from typing import Any

from monarch.telemetry._tui import amounts, metrics
from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import Role
from monarch.telemetry._tui.page import Context, Page

_STATEMENTS = {"resources": metrics.resources, "gauges": metrics.gauges, "sums": metrics.sums, "histograms": metrics.histograms}


class MetricsPage(Page):
    """The metrics of all processes."""

    is_live = True

    def __init__(self, context: Context) -> None:
        super().__init__(context, f"{context.texts('metrics')}, {context.texts('metrics_of', time=amounts.duration(metrics.SECONDS))}")

    def body(self) -> LineView:
        return LineView(id="body")

    async def load(self) -> None:
        # Complete steps, so that the histories do not change with each look.
        now = int(self.context.clock()) // metrics.STEP * metrics.STEP + metrics.STEP
        since = (now - metrics.SECONDS) * 1_000_000
        found: dict[str, Any] = {}
        problem: tuple[str, Role] = "", ""
        if self.context.seconds:
            problem = self.texts("every", time=amounts.duration(self.context.seconds)), ""
        for part, statement in _STATEMENTS.items():
            answer = await self.ask(partial(self.context.api.query, rows=metrics.ROWS), statement(since))
            found[part] = answer.rows
            if answer.coverage.missing:
                problem = self.covered(answer.coverage)
        self.view.show(metrics.metric_lines(found, self.texts))
        self.state(*problem)
