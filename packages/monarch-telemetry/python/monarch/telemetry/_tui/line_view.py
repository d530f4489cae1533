"""The widget of all views: lines with a scroll position, and where wanted a cursor. Only lines in view are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from monarch.telemetry._queries.values import printable
from monarch.telemetry._tui.lines import EMPTY, ROLES, Line, width, wrapped

# Marks the row of the cursor on terminals without colours.
_CURSOR, _NO_CURSOR = ">", " "
# Cells that the left and right keys scroll.
_SIDEWAYS = 8


class LineView(ScrollView, can_focus=True):
    """Shows lines. With `cursor` one line is chosen; with `wrap` long lines continue below, indented, else they are scrolled sideways."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"line--cursor", *(f"line--{role}" for role in ROLES)}
    DEFAULT_CSS = """
    LineView { scrollbar-size-horizontal: 0; scrollbar-size-vertical: 1; background: $background; color: $foreground;
        overflow-x: hidden; overflow-y: auto; }
    LineView > .line--cursor { background: $block-cursor-background; color: $block-cursor-foreground; }
    LineView > .line--dim { color: $foreground 70%; }
    LineView > .line--key { color: $secondary; }
    LineView > .line--title { color: $primary; text-style: bold; }
    LineView > .line--good { color: $success; }
    LineView > .line--busy { color: $primary; }
    LineView > .line--warn { color: $warning; text-style: bold; }
    LineView > .line--bad { color: $error; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", show=False),
        Binding("k,up", "move(-1)", show=False),
        Binding("g,home", "first", show=False),
        Binding("G,end", "last", show=False),
        Binding("pagedown,ctrl+v", "page(1)", show=False),
        Binding("pageup,alt+v", "page(-1)", show=False),
        Binding("ctrl+d", "half(1)", show=False),
        Binding("ctrl+u", "half(-1)", show=False),
        Binding("right", "sideways(1)", show=False),
        Binding("left", "sideways(-1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Moved(Message):
        """The cursor or the part in view has changed."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> LineView:
            return self.view

    class Chosen(Moved):
        """Enter, or a click, on the row of the cursor."""

    def __init__(self, *, cursor: bool = False, wrap: bool = False, indent: int = 2, **more: Any) -> None:
        super().__init__(**more)
        self.has_cursor, self._wrap, self._indent = cursor, wrap, indent
        self.cursor = 0
        self._source: Sequence[Line] = ()
        self._lines: Sequence[Line] = ()

    # The lines; the tree overrides these

    def count(self) -> int:
        """The number of lines."""
        return len(self._lines)

    def line(self, index: int) -> Line:
        """A line by its number."""
        return self._lines[index]

    def show(self, lines: Sequence[Line], *, end: bool = False) -> None:
        """Replaces all lines; with `end` the last one is in view then."""
        self._source = lines
        self._lay()
        if end:
            self._scroll(self.count())

    def _lay(self) -> None:
        cells = self.scrollable_content_region.width
        if self._wrap and cells > 0:
            self._lines = [piece for one in self._source for piece in wrapped(one, cells, indent=self._indent)]
        else:
            self._lines = self._source
        self.changed()

    def changed(self) -> None:
        """Measures and draws again."""
        count = self.count()
        widest = 0 if self._wrap else self.widest()
        self.virtual_size = Size(widest, count)
        if self.has_cursor:
            self.cursor = max(0, min(self.cursor, count - 1))
        self.refresh()

    def widest(self) -> int:
        """Cells of the longest line."""
        return max(map(width, self._lines), default=0) + (1 if self.has_cursor else 0)

    def on_resize(self, event: events.Resize) -> None:
        if self._wrap:
            self._lay()
        if self.has_cursor:
            self._reveal()

    # The position

    @property
    def top(self) -> int:
        """The number of the first line in view."""
        return round(self.scroll_offset.y)

    @property
    def height(self) -> int:
        """How many lines have room."""
        return max(1, self.scrollable_content_region.height)

    @property
    def is_at_end(self) -> bool:
        return self.top + self.height >= self.count()

    def _scroll(self, top: float) -> None:
        self.scroll_to(y=max(0, min(top, self.count() - self.height)), animate=False, immediate=True, force=True)

    def _reveal(self) -> None:
        if self.cursor < self.top:
            self._scroll(self.cursor)
        elif self.cursor >= self.top + self.height:
            self._scroll(self.cursor - self.height + 1)

    def move_to(self, index: int) -> None:
        """Chooses a row, which then is in view."""
        self.cursor = max(0, min(index, self.count() - 1))
        self._reveal()
        self.refresh()
        self.post_message(self.Moved(self))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved(self))

    # Keys

    def action_move(self, rows: int) -> None:
        if self.has_cursor:
            self.move_to(self.cursor + rows)
        else:
            self._scroll(self.top + rows)

    def action_first(self) -> None:
        self.action_move(-self.count())

    def action_last(self) -> None:
        self.action_move(self.count())

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.height - 1))

    def action_half(self, pages: int) -> None:
        self.action_move(pages * max(1, self.height // 2))

    def action_sideways(self, steps: int) -> None:
        self.scroll_to(x=max(0, self.scroll_offset.x + steps * _SIDEWAYS), animate=False, immediate=True, force=True)

    def action_choose(self) -> None:
        if self.has_cursor and self.count():
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        if self.has_cursor and 0 <= (row := self.top + event.y) < self.count():
            again = row == self.cursor
            self.move_to(row)
            if again:
                self.action_choose()

    # Drawing

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        index = self.top + y
        cells = self.size.width
        found = self.line(index) if index < self.count() else EMPTY
        is_cursor = self.has_cursor and index == self.cursor and index < self.count()
        segments: list[Segment] = []
        if self.has_cursor:
            segments.append(Segment(_CURSOR if is_cursor else _NO_CURSOR, base))
        for one in found:
            style = base + self.get_component_rich_style(f"line--{one.role}", partial=True) if one.role else base
            # Text of any origin must not control the terminal.
            segments.append(Segment(printable(one.text), style))
        if is_cursor:
            cursor = self.get_component_rich_style("line--cursor", partial=True)
            segments = [Segment(part.text, base + Style(bold=part.style.bold if part.style else None) + cursor) for part in segments]
            base = base + cursor
        left = round(self.scroll_offset.x)
        return Strip(segments).crop_extend(left, left + cells, base)
