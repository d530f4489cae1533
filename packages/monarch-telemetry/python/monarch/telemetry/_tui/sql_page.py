"""SQL: a line for a statement, and the rows that it selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from monarch.telemetry._tui import amounts
from monarch.telemetry._tui.api import Answer
from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import Line, line, table
from monarch.telemetry._tui.page import Context, Page
from monarch.telemetry._tui.texts import Texts

_MOST_HISTORY = 100


class History:
    """Statements of this session, and which of them is in the line."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self._at = 0

    def add(self, statement: str) -> None:
        if statement in self.statements:
            self.statements.remove(statement)
        self.statements = [*self.statements, statement][-_MOST_HISTORY:]
        self._at = len(self.statements)

    def move(self, by: int) -> str:
        """An earlier (-1) or later one; after the last there is an empty line."""
        self._at = max(0, min(self._at + by, len(self.statements)))
        return self.statements[self._at] if self._at < len(self.statements) else ""


def answer_lines(answer: Answer, texts: Texts) -> list[Line]:
    """The rows in columns."""
    if not answer.rows:
        return [line(texts("none"), "dim")]
    names = list(answer.rows[0])
    return table(names, [[row.get(name) for name in names] for row in answer.rows])


class SqlPage(Page):
    """Runs statements. The history outlives the page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "earlier(-1)", show=False),
        Binding("down", "earlier(1)", show=False),
        Binding("colon", "write", show=False),
        Binding("tab", "swap", show=False, priority=True),
    ]

    def __init__(self, context: Context, history: History) -> None:
        super().__init__(context, context.texts("sql"))
        self._history = history

    def inputs(self) -> Sequence[Widget]:
        return (Input(placeholder=self.texts("sql_hint"), id="statement", select_on_focus=False),)

    def body(self) -> LineView:
        return LineView(id="body")

    @property
    def _input(self) -> Input:
        return self.query_one("#statement", Input)

    def focus_first(self) -> None:
        self._input.focus()

    async def load(self) -> None:
        sql = self._input.value.strip()
        if not sql:
            self.state("")
            return
        self._history.add(sql)
        answer: Any = await self.ask(self.context.api.query, sql)
        self.view.show(answer_lines(answer, self.texts))
        self.view.action_first()
        text, role = self.covered(answer.coverage)
        parts = [text] if text else []
        parts.append(self.texts("rows", n=f"{len(answer.rows):,}", time=amounts.duration(answer.coverage.elapsed_ms / 1e3)))
        parts += [self.texts("more_rows")] if answer.more else []
        self.state("  ".join(parts), role or ("warn" if answer.more else ""))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_again()

    def action_earlier(self, by: int) -> None:
        if self._input.has_focus:
            self._input.value = self._history.move(by)
            self._input.cursor_position = len(self._input.value)

    def action_write(self) -> None:
        self._input.focus()

    def action_swap(self) -> None:
        """Between the statement and its rows."""
        (self.view if self._input.has_focus else self._input).focus()
