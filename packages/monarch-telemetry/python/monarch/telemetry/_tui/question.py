"""A question that only `y` answers with yes. Nothing else is under it: no key can do something else instead."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import EMPTY, span
from monarch.telemetry._tui.texts import Texts


class Question(ModalScreen[bool]):
    """Asks whether `what` is done to `name`."""

    DEFAULT_CSS = """
    Question { align: center middle; background: $background 60%; }
    Question > LineView { width: 90%; max-width: 76; height: 8; border: heavy $warning; padding: 0 1; }
    """

    def __init__(self, texts: Texts, what: str, name: str) -> None:
        super().__init__()
        self._texts, self._what, self._subject = texts, what, name

    def compose(self) -> ComposeResult:
        yield LineView(id="question", wrap=True)

    def on_mount(self) -> None:
        view = self.query_one("#question", LineView)
        view.can_focus = False
        question = self._texts("confirm", what=self._what, name=self._subject)
        view.show([(span(question, "warn"),), EMPTY, (span(self._texts("confirm_keys")),)])

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss(event.key == "y")
