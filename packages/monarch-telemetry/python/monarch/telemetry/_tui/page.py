"""A page above the tree: a title, lines, and a line with its state and keys. Escape goes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widget import Widget

from monarch.telemetry._tui.api import Api, Coverage
from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import Role, Span, line, span
from monarch.telemetry._tui.requests import Requests
from monarch.telemetry._tui.texts import Texts
from monarch.telemetry.errors import TelemetryError

# Errors of a request without an answer.
FAILURES = (TelemetryError, OSError)


class Context(NamedTuple):
    """What every view needs. `clock` gives seconds since the epoch, `seconds` is the interval of refreshes, 0 for none."""

    api: Api
    requests: Requests
    texts: Texts
    clock: Callable[[], float]
    seconds: float


class Page(ModalScreen[None]):
    """The base of all pages. `load` is called at the start, by Ctrl-L, and at each interval where `is_live`."""

    DEFAULT_CSS = """
    Page { background: $background; }
    Page > .bar { height: 1; background: $panel; }
    Page > #body { height: 1fr; }
    Page > Input { height: 1; border: none; padding: 0 1; background: $surface; }
    Page > Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", show=False),
        Binding("ctrl+l", "again", show=False),
        Binding("ctrl+c", "app.quit", show=False, priority=True),
    ]
    is_live = False
    keys = "page_keys"

    def __init__(self, context: Context, title: str) -> None:
        super().__init__()
        self.context, self.page_title = context, title
        self.texts = context.texts
        # Stored, not found by query: an answer may arrive while the page is being removed.
        self._title_bar, self._state_bar = LineView(id="title", classes="bar"), LineView(id="state", classes="bar")
        self.view = self.body()
        self._state: tuple[str, Role] = ("", "")

    # The widgets

    def compose(self) -> ComposeResult:
        yield self._title_bar
        yield from self.inputs()
        yield self.view
        yield self._state_bar

    def inputs(self) -> Sequence[Widget]:
        """Widgets between title and lines."""
        return ()

    def body(self) -> LineView:
        return LineView(id="body", wrap=True)

    def on_mount(self) -> None:
        for bar in (self._title_bar, self._state_bar):
            bar.can_focus = False
        self._draw_bars()
        self.focus_first()
        self.action_again()
        if self.is_live and self.context.seconds:
            self.set_interval(self.context.seconds, self._tick)

    def focus_first(self) -> None:
        self.view.focus()

    # The state

    def state(self, text: str, role: Role = "") -> None:
        """The text at the bottom."""
        self._state = (text, role)
        self._draw_bars()

    def set_title(self, title: str) -> None:
        self.page_title = title
        self._draw_bars()

    def _draw_bars(self) -> None:
        self._title_bar.show([(span(f" {self.page_title}", "title"),)])
        text, role = self._state
        between = "  |  " if text else ""
        # One line: the lines of the page contain a longer error.
        first = text.split("\n", 1)[0]
        self._state_bar.show([(Span(" "), span(first, role), Span(between + self.texts(self.keys), "dim"))])

    def covered(self, coverage: Coverage) -> tuple[str, Role]:
        """Which hosts are missing from an answer; an empty text where none is."""
        if coverage.missing:
            return self.texts("missing", hosts=", ".join(f"{host} ({reason})" for host, reason in coverage.missing)), "bad"
        return (self.texts("truncated"), "warn") if coverage.truncated else ("", "")

    # Loading

    def action_again(self) -> None:
        self.state(self.texts("loading"), "dim")
        self.run_worker(self._load(), group="load", exclusive=True)

    def _tick(self) -> None:
        # A slow server gets only one request at a time.
        if not any(worker.group == "load" and worker.is_running for worker in self.workers if worker.node is self):
            self.run_worker(self._load(), group="load")

    async def _load(self) -> None:
        try:
            await self.load()
        except FAILURES as error:
            self.failed(error)

    async def load(self) -> None:
        """Asks, and shows the answer. An error of `FAILURES` is shown."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Shows an error: in the state, and in the place of lines that are not there."""
        text = str(error)
        self.state(text, "bad")
        if self.view.count() == 0 or not self.is_live:
            self.view.show([line(one, "bad") for one in text.split("\n")])

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, from a thread."""
        return await self.context.requests.run(function, *arguments)

    async def opened(self, screen: ModalScreen[bool]) -> bool:
        """The answer of a screen above this one; only in a worker."""
        app = cast("App[None]", self.app)  # pyright: ignore[reportUnknownMemberType] textual's `app` leaves its parameter open
        return bool(await app.push_screen_wait(screen))

    def action_close(self) -> None:
        self.dismiss()
