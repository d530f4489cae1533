"""Diagnostics: every check as it ends; and what is wrong with the job, which is the text of `monarch diagnose`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence

from monarch.telemetry._tui.api import Row
from monarch.telemetry._tui.diagnose import Check, checks
from monarch.telemetry._tui.lines import EMPTY, Line, Role, Span, line, padded, span
from monarch.telemetry._tui.page import Context, Page
from monarch.telemetry._tui.texts import Texts

_ROLES: dict[str, Role] = {"ok": "good", "warn": "warn", "fail": "bad"}
_STATUS_CELLS, _MS_CELLS, _NAME_CELLS = 6, 11, 22


def check_lines(found: Sequence[Check], texts: Texts) -> list[Line]:
    """The checks by group, each with its status in words, its milliseconds and its role."""
    shown: list[Line] = []
    for group in ("admin", "mesh"):
        of_group = [check for check in found if check.group == group]
        if not of_group:
            continue
        shown += [*([EMPTY] if shown else []), (Span(texts(f"group_{group}"), "title"),)]
        for check in of_group:
            role = _ROLES[check.status]
            shown.append(
                (
                    Span(padded(f" {texts('check_' + check.status)}", _STATUS_CELLS + 1), role),
                    Span(f"{check.ms:,.1f} ms ".rjust(_MS_CELLS), "dim"),
                    span(f"{padded(check.name, _NAME_CELLS) if len(check.name) < _NAME_CELLS else check.name} "),
                    span(f"({check.role}) ", "dim"),
                    span(check.detail.replace("\n", " "), role if check.status != "ok" else ""),
                )
            )
    return shown


class DiagnosticsPage(Page):
    """Runs the checks in a thread and shows each when it ends."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, context.texts("diagnostics"))

    async def load(self) -> None:
        found: list[Check] = []
        running: Iterator[Check] = checks(self.context.api)
        while True:
            check = await self.ask(next, running, None)
            if check is None:
                break
            found.append(check)
            self.view.show(check_lines(found, self.texts))
            self.state(self.texts("checking"), "dim")
            await asyncio.sleep(0)
        counts = {status: sum(check.status == status for check in found) for status in ("ok", "warn", "fail")}
        worst: Role = "bad" if counts["fail"] else "warn" if counts["warn"] else "good"
        self.state(self.texts("checks", **counts), worst)


_CAUSE = re.compile(r"\d+  ")


def cause_lines(answer: Row) -> list[Line]:
    """The lines of a `DiagnosisAnswer`; each cause is a title."""

    def role(text: str) -> Role:
        if _CAUSE.match(text):
            return "title"
        return "" if text.startswith(" ") else "dim"

    return [line(text, role(text)) for text in str(answer.get("text") or "").split("\n")]


class CausesPage(Page):
    """The causes, each with its facts."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, context.texts("causes"))

    async def load(self) -> None:
        found = await self.ask(self.context.api.diagnosis)
        self.view.show(cause_lines(found))
        count = len(found.get("causes") or ())
        self.state(self.texts("causes_found", n=count) if count else "", "bad" if count else "good")
