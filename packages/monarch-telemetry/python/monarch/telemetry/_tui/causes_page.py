"""What is wrong with the job: the text of `monarch diagnose`, asked for when the page opens and by Ctrl-L."""

from __future__ import annotations

import re

from monarch.telemetry._tui.api import Row
from monarch.telemetry._tui.lines import Line, Role, line
from monarch.telemetry._tui.page import Context, Page

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
