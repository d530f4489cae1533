"""Search: hosts, procs and actors by name. The one that is chosen is then selected in the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from monarch.telemetry._http.models import NodePayload
from monarch.telemetry._tui.api import MOST_FOUND, Row
from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import Line, Span, line, padded, span
from monarch.telemetry._tui.page import FAILURES, Context, Page
from monarch.telemetry._tui.texts import Texts

_KIND_CELLS = 8


def found_line(row: Row, texts: Texts) -> Line:
    """A hit: its kind, name and state."""
    return Span(padded(texts(f"kind_{row['kind']}"), _KIND_CELLS), "dim"), span(row["name"]), span(f"  {row['state'] or ''}", "dim")


class SearchPage(Page):
    """`go` is given the nodes from the job down to the one that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "write", show=False),
        Binding("tab", "swap", show=False, priority=True),
        Binding("down", "to_hits", show=False),
    ]
    keys = "search_keys"

    def __init__(self, context: Context, go: Callable[[list[NodePayload]], None]) -> None:
        super().__init__(context, context.texts("search"))
        self._go = go
        self._hits: list[Row] = []

    def inputs(self) -> Sequence[Widget]:
        return (Input(placeholder=self.texts("search_hint"), id="part", select_on_focus=False),)

    def body(self) -> LineView:
        return LineView(id="body", cursor=True)

    @property
    def _input(self) -> Input:
        return self.query_one("#part", Input)

    def focus_first(self) -> None:
        self._input.focus()

    async def load(self) -> None:
        part = self._input.value.strip()
        if not part:
            self.state("")
            return
        answer: Any = await self.ask(self.context.api.search, part)
        self._hits = answer.rows
        self.view.show([found_line(row, self.texts) for row in self._hits] or [line(self.texts("none"), "dim")])
        self.view.move_to(0)
        if self._hits:
            self.view.focus()
        text, role = self.covered(answer.coverage)
        count = self.texts("more_found", n=MOST_FOUND) if answer.more else self.texts("found", n=len(self._hits))
        self.state(f"{text}  {count}".strip(), role)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_again()

    def on_line_view_chosen(self, event: LineView.Chosen) -> None:
        if self.view.cursor < len(self._hits):
            self.state(self.texts("loading"), "dim")
            self.run_worker(self._choose(self._hits[self.view.cursor]), group="load", exclusive=True)

    async def _choose(self, row: Row) -> None:
        try:
            path = await self.ask(self.context.api.path_to, str(row["kind"]), str(row["id"]))
        except FAILURES as error:
            self.state(str(error), "bad")
            return
        self.dismiss()
        self._go(path)

    def action_write(self) -> None:
        self._input.focus()

    def action_swap(self) -> None:
        (self.view if self._input.has_focus else self._input).focus()

    def action_to_hits(self) -> None:
        if self._hits:
            self.view.focus()
