"""The cells of a notebook, or of an interactive shell, in which a client shows output and failures; None elsewhere."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.parts import Cells, Console


class Display:
    __slots__ = ("cells", "console")

    def __init__(self) -> None:
        # In a notebook: the object that writes the lines of procs to the cells.
        self.console: Console | None = None
        # In an interactive shell: the object that shows unhandled failures.
        self.cells: Cells | None = None
