"""The settings of a proc; those that are not at their default stand first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import Line, table
from monarch.telemetry._tui.page import Context, Page
from monarch.telemetry._tui.texts import Texts


def config_lines(entries: Sequence[dict[str, Any]], texts: Texts) -> list[Line]:
    """A line for each setting, marked with `*` where it is changed."""
    ordered = sorted(entries, key=lambda entry: (not entry.get("changed_from_default"), str(entry.get("name"))))
    names = ("", texts("setting"), texts("value"), texts("default"), texts("source"))
    rows = [
        (
            "*" if entry.get("changed_from_default") else "",
            entry.get("name"),
            _value(entry.get("value")),
            _value(entry["default_value"]) if "default_value" in entry else "",
            f"{entry.get('source')}{' ' + entry['env_var'] if entry.get('env_var') else ''}",
        )
        for entry in ordered
    ]
    return table(names, rows)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class ConfigPage(Page):
    """The settings of a proc by its reference."""

    def __init__(self, context: Context, proc: str, name: str) -> None:
        super().__init__(context, f"{context.texts('config')}: {name}")
        self._proc = proc

    def body(self) -> LineView:
        return LineView(id="body")

    async def load(self) -> None:
        self.view.show(config_lines(await self.ask(self.context.api.config, self._proc), self.texts))
        self.state(self.texts("changed"), "dim")
