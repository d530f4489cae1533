"""Logs: lines of the job or of a part of it as they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from monarch.telemetry._tui import amounts
from monarch.telemetry._tui.api import Answer
from monarch.telemetry._tui.lines import Line, Role, line, span
from monarch.telemetry._tui.page import Context, Page
from monarch.telemetry._tui.texts import Texts

# The most lines of one answer, and of the page.
PAGE_ROWS, MOST_LINES = 500, 5_000
# Microseconds that lines of other hosts may be late.
_LATE_US = 5_000_000
_BAD = frozenset({"error", "critical", "fatal"})
_WARN = frozenset({"warn", "warning"})

Row = dict[str, Any]
Key = tuple[int, int, str, int]


class Scope(NamedTuple):
    """Whose lines: the conditions of `GET /api/logs`, and their name."""

    name: str
    conditions: Mapping[str, Any]


class Kept:
    """The lines that have come, in the order of their times."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._keys: set[Key] = set()
        # Lines before which some are missing.
        self.gaps: set[Key] = set()

    @property
    def since_us(self) -> int | None:
        """From which time on lines are asked for; None before the first answer."""
        return int(self.rows[-1]["timestamp_us"]) - _LATE_US if self.rows else None

    def add(self, answer: Answer) -> int:
        """Adds lines, the newest first; the number of those that are new."""
        new = [row for row in answer.rows if key_of(row) not in self._keys]
        if not new:
            return 0
        if answer.more and self.rows and len(new) == len(answer.rows):
            self.gaps.add(key_of(new[-1]))
        self.rows += reversed(new)
        self._keys.update(map(key_of, new))
        self.rows.sort(key=key_of)
        if len(self.rows) > MOST_LINES:
            gone = {key_of(row) for row in self.rows[:-MOST_LINES]}
            self.rows = self.rows[-MOST_LINES:]
            # Keys of lines that may arrive again are kept.
            self.gaps -= gone
            oldest = int(self.rows[-1]["timestamp_us"]) - 2 * _LATE_US
            self._keys = {key for key in self._keys if key[0] >= oldest} | {key_of(row) for row in self.rows}
        return len(new)


def key_of(row: Row) -> Key:
    """What is different in each line."""
    return int(row["timestamp_us"]), int(row["seq"]), str(row["host"]), int(row["pid"])


def severity(row: Row) -> Role:
    """The role of a line by its level; lines of stderr have none."""
    level = str(row.get("level") or "").lower()
    return "bad" if level in _BAD else "warn" if level in _WARN else ""


def log_line(row: Row) -> Line:
    """Time, place, stream or level in words, and the text."""
    mesh, rank = row.get("mesh_name"), row.get("rank")
    place = str(row.get("proc") or "") if mesh is None else f"{mesh}[{'?' if rank is None else rank}]"
    what = row.get("level") or row.get("stream") or ""
    role = severity(row)
    return (
        span(f"{amounts.clock_time(int(row['timestamp_us']))} ", "dim"),
        span(f"{place} ", "key"),
        span(f"{what} ", role or "dim"),
        span(str(row.get("line", "")), role),
    )


def log_lines(kept: Kept, rows: Sequence[Row], texts: Texts) -> list[Line]:
    """The lines, with a note where some are left out."""
    found: list[Line] = []
    for row in rows:
        if key_of(row) in kept.gaps:
            found.append(line(f"... {texts('lines_lost')}", "warn"))
        found.append(log_line(row))
    return found


class LogsPage(Page):
    """The lines of a scope. While it follows, the newest line is in view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", show=False),
        Binding("e", "errors", show=False),
        Binding("slash", "text", show=False),
    ]
    is_live = True
    keys = "log_keys"

    def __init__(self, context: Context, scope: Scope) -> None:
        super().__init__(context, f"{context.texts('logs')}: {scope.name}")
        self._scope = scope
        self._kept = Kept()
        self._follow, self._only_errors, self._text = True, False, ""
        self._problem: tuple[str, Role] = ("", "")

    def inputs(self) -> Sequence[Widget]:
        found = Input(placeholder=self.texts("log_text"), id="text", select_on_focus=False)
        found.display = False
        return (found,)

    async def load(self) -> None:
        kept = self._kept
        conditions = {**self._scope.conditions, "text": self._text or None, "since_us": kept.since_us, "limit": PAGE_ROWS}
        answer: Answer = await self.ask(lambda: self.context.api.logs(**conditions))
        if kept is not self._kept:
            return
        kept.add(answer)
        self._problem = self.covered(answer.coverage)
        self._draw()

    def _draw(self) -> None:
        rows = [row for row in self._kept.rows if not self._only_errors or severity(row)]
        self.view.show(log_lines(self._kept, rows, self.texts) or [line(self.texts("none"), "dim")], end=self._follow)
        parts = [self.texts("following" if self._follow else "not_following"), self.texts("lines", n=f"{len(rows):,}")]
        parts += [self.texts("only_errors")] if self._only_errors else []
        parts += [self.texts("text_filter", text=self._text)] if self._text else []
        text, role = self._problem
        self.state("  ".join([*([text] if text else []), *parts]), role)

    def on_line_view_moved(self) -> None:
        # Scrolling up ends the follow mode; at the end it starts again.
        follow = self.view.is_at_end
        if follow != self._follow and self._kept.rows:
            self._follow = follow
            self._draw()

    def action_follow(self) -> None:
        self._follow = not self._follow
        self._draw()

    def action_errors(self) -> None:
        self._only_errors = not self._only_errors
        self._draw()

    def action_text(self) -> None:
        found = self.query_one("#text", Input)
        found.display = True
        found.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._text = event.value
        self._leave_text()
        self._kept = Kept()
        self.action_again()

    def _leave_text(self) -> None:
        self.query_one("#text", Input).display = False
        self.view.focus()

    def action_close(self) -> None:
        if self.query_one("#text", Input).has_focus:
            self._leave_text()
        else:
            super().action_close()
