"""All keys."""

from __future__ import annotations

from monarch.telemetry._tui.lines import Line, Span, padded
from monarch.telemetry._tui.page import Context, Page
from monarch.telemetry._tui.texts import Texts

KEYS = (
    ("j k, arrows", "key_move"),
    ("g G, Home End", "key_ends"),
    ("PgDn PgUp, Ctrl-V Alt-V", "key_page"),
    ("Ctrl-D Ctrl-U", "key_half"),
    ("Tab, Enter", "key_expand"),
    ("right, left", "key_branch"),
    ("c", "key_collapse"),
    ("s", "key_system"),
    ("h", "key_stopped"),
    ("Space, b", "key_details"),
    ("d", "key_diagnostics"),
    ("D", "key_causes"),
    ("p", "key_stacks"),
    ("C", "key_config"),
    ("l", "key_logs"),
    ("m", "key_metrics"),
    ("/", "key_search"),
    (":", "key_sql"),
    ("K", "key_act"),
    ("Ctrl-L", "key_redraw"),
    ("Esc", "key_back"),
    ("q", "key_quit"),
)
_CELLS = 26


def help_lines(texts: Texts) -> list[Line]:
    """A line for each key."""
    return [(Span(padded(f" {keys}", _CELLS), "key"), Span(texts(what))) for keys, what in KEYS]


class HelpPage(Page):
    """The keys and what they do."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, context.texts("help"))

    async def load(self) -> None:
        self.view.show(help_lines(self.texts))
        self.state("")
