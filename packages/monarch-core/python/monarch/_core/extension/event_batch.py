"""A batch of events for an observer: as single events, or as columns for array libraries. Both are made on demand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from monarch._core._native.events import event_types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monarch._core._native.events import Event, EventBatch, EventType
    from monarch._core.extension.ids import ProcId

    Column = memoryview[int] | memoryview[float]

_TYPES = {one.number: one for one in event_types()}


class EventTexts:
    """The texts of a batch, to which its columns refer by number.

    `offsets` (32-bit integers, one more than there are texts) and `data` (UTF-8) are laid out as in Arrow: text `n` is
    `data[offsets[n]:offsets[n + 1]]`. Text 0 is the empty one.
    """

    __slots__ = ("data", "offsets")

    def __init__(self, offsets: memoryview, data: memoryview) -> None:
        self.offsets = offsets
        self.data = data

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise IndexError(f"text {number}: the batch has {len(self)}")
        return str(self.data[self.offsets[number] : self.offsets[number + 1]], "utf-8")


class EventColumns(Mapping[str, "Column"]):
    """The events of one type of a batch: for each column name a typed `memoryview` of `rows` values, without a copy.

    Each type has `number` (unsigned, 64 bits), `time` (nanoseconds since the epoch, signed, 64 bits), `thread` (unsigned, 32 bits) and
    `trace` (24 bytes an event), then its fields: unsigned numbers of 64 bits, floats of 64 bits, and names and texts as signed numbers of
    32 bits, which are those of a text in `Batch.texts`, or -1 for a text that was overwritten before it was read.

    `type` is None for a type of a later version. All columns are in one block of memory, each at a multiple of 64 bytes.
    """

    __slots__ = ("_views", "number", "rows", "type")

    def __init__(self, number: int, rows: int, views: Mapping[str, Column]) -> None:
        self.number = number
        self.type: EventType | None = _TYPES.get(number)
        self.rows = rows
        self._views = views

    def __getitem__(self, name: str) -> Column:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"<EventColumns {_name(self.number)}: {self.rows} rows of {', '.join(self._views)}>"


class Batch:
    """New events of one process, at most 10,000. `lost` counts all events of the process that the reader has missed since it was made.

    `ended`: the process has ended. This is the last batch of the process for an observer, and may be empty.

    `events` has single events, `columns` has columns by the name of their type. Each is made when it is first used: an observer
    of columns pays for no object per event.
    """

    def __init__(self, proc: ProcId, pid: int, drained: EventBatch, lost: int, ended: bool) -> None:
        self.proc = proc
        self.pid = pid
        self.lost = lost
        self.ended = ended
        self._drained = drained

    def __len__(self) -> int:
        return len(self._drained)

    @cached_property
    def events(self) -> list[Event]:
        """The events, in order."""
        return self._drained.events()

    @cached_property
    def columns(self) -> dict[str, EventColumns]:
        """The columns by the name of the type, for the types that occur."""
        found: dict[str, EventColumns] = {}
        for number, rows, memory, columns in self._drained.columns():
            block = _view(memory)
            views = {name: block[offset : offset + size].cast(form) for name, form, offset, size in columns}
            found[_name(number)] = EventColumns(number, rows, views)
        return found

    @cached_property
    def texts(self) -> EventTexts:
        """The texts of all columns."""
        offsets, data = self._drained.texts()
        return EventTexts(_view(offsets).cast("i"), _view(data))

    def __repr__(self) -> str:
        return f"<Batch of {self.proc} (pid {self.pid}): {len(self)} events, {self.lost} lost{', ended' if self.ended else ''}>"


def _view(memory: Any) -> memoryview:
    """A view of a buffer. The types of Python 3.11 cannot express the buffer protocol."""
    return memoryview(memory)


def _name(number: int) -> str:
    known = _TYPES.get(number)
    return f"type {number}" if known is None else known.name
