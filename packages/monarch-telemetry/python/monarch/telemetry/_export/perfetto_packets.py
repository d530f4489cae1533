"""Packets of a Perfetto trace: tracks, slices, instants and counters, written in pieces.

A trace is a sequence of packets, and two traces one after the other are a trace: packets are written as they come, a thousand at a time.
Times are the microseconds since the epoch of a real-time clock; a snapshot of clocks at the start states it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import IO, Any, Literal

from monarch.telemetry.errors import TelemetryError

# The most packets in memory.
_PIECE = 1000
# All packets have one sequence, whose packets of the same time keep their order.
_SEQUENCE = 1
_BOOT_TIME, _REAL_TIME = 6, 1
_STATE_CLEARED = 1
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_EXPLICIT = 3
_NO_MERGE, _MERGE_BY_KEY = 2, 3
_UNITS = {"count": 2, "bytes": 3}

Value = str | int | float | bool
Unit = Literal["count", "bytes", "%"]


class Packets:
    """Writes to a binary file. `TelemetryError` where the library `perfetto` is missing."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            self._protos: Any = import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
        except ImportError as error:
            hint = "pip install 'monarch-telemetry[perfetto]'"
            raise TelemetryError(f"a Perfetto trace needs the library perfetto: {error}", hint=hint) from None
        self._file = file
        self._trace = self._protos.Trace()
        self._count = 0
        self._tracks = 0

    def start(self, us: int) -> None:
        packet = self._packet(us)
        packet.sequence_flags = _STATE_CLEARED
        for clock in (_BOOT_TIME, _REAL_TIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=us * 1000)

    def track(self, name: str, parent: int = 0, *, order: int = 0, merged_with: int = 0, unit: Unit | None = None) -> int:
        """A new track, below another one unless `parent` is 0. `merged_with` is a track that a viewer shows as one with this."""
        self._tracks += 1
        packet = self._packet()
        found = packet.track_descriptor
        found.uuid, found.name = self._tracks, name
        found.child_ordering, found.sibling_order_rank = _EXPLICIT, max(-(1 << 31), min(order, (1 << 31) - 1))
        if parent:
            found.parent_uuid = parent
        if unit is None:
            found.sibling_merge_behavior = _MERGE_BY_KEY
            found.sibling_merge_key_int = merged_with or self._tracks
        else:
            found.sibling_merge_behavior = _NO_MERGE
            if unit in _UNITS:
                found.counter.unit = _UNITS[unit]
            else:
                found.counter.unit_name = unit
        return self._tracks

    def begin(
        self, us: int, track: int, name: str, categories: Iterable[str], fields: Mapping[str, Value], *, from_flow: int | None = None
    ) -> None:
        """A slice begins, at which a flow may end."""
        event = self._event(us, track, _BEGIN)
        _describe(event, name, categories, fields)
        if from_flow is not None:
            event.terminating_flow_ids.append(from_flow)

    def end(self, us: int, track: int) -> None:
        """The last slice that has begun on the track ends."""
        self._event(us, track, _END)

    def instant(
        self,
        us: int,
        track: int,
        name: str,
        categories: Iterable[str],
        fields: Mapping[str, Value],
        *,
        to_flows: Iterable[int] = (),
        from_flow: int | None = None,
    ) -> None:
        """What has no duration; flows may begin or end at it."""
        event = self._event(us, track, _INSTANT)
        _describe(event, name, categories, fields)
        event.flow_ids.extend(to_flows)
        if from_flow is not None:
            event.terminating_flow_ids.append(from_flow)

    def counter(self, us: int, track: int, value: float) -> None:
        event = self._event(us, track, _COUNTER)
        if isinstance(value, int) and value < 1 << 63:
            event.counter_value = value
        else:
            event.double_counter_value = value

    def flush(self) -> None:
        """Writes what is in memory."""
        if self._count:
            self._file.write(self._trace.SerializeToString())
            self._trace = self._protos.Trace()
            self._count = 0

    def _packet(self, us: int | None = None) -> Any:
        if self._count >= _PIECE:
            self.flush()
        self._count += 1
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        if us is not None:
            packet.timestamp = us * 1000
        return packet

    def _event(self, us: int, track: int, kind: int) -> Any:
        event = self._packet(us).track_event
        event.type, event.track_uuid = kind, track
        return event


def _describe(event: Any, name: str, categories: Iterable[str], fields: Mapping[str, Value]) -> None:
    event.name = name
    event.categories.extend(categories)
    for key, value in fields.items():
        note = event.debug_annotations.add()
        note.name = key
        if isinstance(value, bool):
            note.bool_value = value
        elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            note.int_value = value
        elif isinstance(value, float):
            note.double_value = value
        else:
            note.string_value = str(value)
