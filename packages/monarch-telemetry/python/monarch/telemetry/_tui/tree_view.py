"""The tree of the job: rows of a topology, with the selected node under the cursor whatever comes and goes around it."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from monarch.telemetry._tui.labels import row_label
from monarch.telemetry._tui.line_view import LineView
from monarch.telemetry._tui.lines import Line, line
from monarch.telemetry._tui.texts import Texts
from monarch.telemetry._tui.topology import Topology


class TreeView(LineView):
    """Shows a topology. `changed` is called whenever the topology has changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "expand", show=False),
        Binding("right", "open", show=False),
        Binding("left", "close", show=False),
    ]

    class Toggled(LineView.Moved):
        """A node was expanded or collapsed."""

    def __init__(self, topology: Topology, texts: Texts, **more: Any) -> None:
        super().__init__(cursor=True, **more)
        self._topology, self._texts = topology, texts
        self.selected: str | None = None

    def count(self) -> int:
        return max(1, len(self._topology.rows))

    def line(self, index: int) -> Line:
        rows = self._topology.rows
        return row_label(self._topology, rows[index], self._texts) if index < len(rows) else line(self._texts("connecting"), "dim")

    def widest(self) -> int:
        # Labels are cut: the details have the complete name.
        return 0

    def changed(self) -> None:
        place = self._topology.place(self._shown(self.selected))
        if place is not None and place != self.cursor:
            # The node keeps its position on the screen.
            shift = place - self.cursor
            self.cursor = place
            super().changed()
            self._scroll(self.top + shift)
        else:
            super().changed()
        self._remember()

    def _shown(self, reference: str | None) -> str | None:
        """The node, or the nearest one above it that is shown."""
        seen: set[str] = set()
        while reference is not None and reference not in seen and self._topology.place(reference) is None:
            seen.add(reference)
            reference = self._topology.parent(reference)
        return reference

    def move_to(self, index: int) -> None:
        super().move_to(index)
        self._remember()

    def _remember(self) -> None:
        rows = self._topology.rows
        self.selected = rows[self.cursor].reference if self.cursor < len(rows) else None

    def select(self, reference: str) -> None:
        """Moves the cursor to a node that is shown."""
        place = self._topology.place(reference)
        if place is not None:
            self.changed()
            self.move_to(place)

    @property
    def in_view(self) -> list[str]:
        """The nodes of the rows on the screen."""
        return [row.reference for row in self._topology.rows[self.top : self.top + self.height]]

    def action_choose(self) -> None:
        self.action_expand()

    def action_expand(self) -> None:
        if self.selected is not None:
            self._expand(not self._topology.is_expanded(self.selected))

    def action_open(self) -> None:
        if self.selected is not None:
            if self._topology.is_expanded(self.selected):
                self.action_move(1)
            else:
                self._expand(True)

    def action_close(self) -> None:
        if self.selected is None:
            return
        if self._topology.is_expanded(self.selected):
            self._expand(False)
        elif (parent := self._topology.parent(self.selected)) is not None:
            self.select(parent)

    def _expand(self, expanded: bool) -> None:
        assert self.selected is not None
        self._topology.expand(self.selected, expanded)
        self.changed()
        self.post_message(self.Toggled(self))
