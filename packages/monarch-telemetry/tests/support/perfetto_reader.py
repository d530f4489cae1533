"""A reader of Perfetto traces, for tests: it decodes the wire format of protocol buffers itself, and knows no library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

Fields = dict[int, list[int | bytes]]


def fields(data: bytes) -> Fields:
    """The fields of a message by number: numbers, or the bytes of texts and messages."""
    found: Fields = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        if key & 7 == 0:
            value, at = _varint(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        else:
            assert key & 7 == 2, "neither number nor bytes"
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
            assert len(value) == size, "cut"
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def _number(found: Fields, number: int, default: int = 0) -> int:
    value = found.get(number, [default])[-1]
    assert isinstance(value, int)
    return value


def _text(found: Fields, number: int) -> str:
    value = found.get(number, [b""])[-1]
    assert isinstance(value, bytes)
    return value.decode()


def _messages(found: Fields, number: int) -> Iterator[Fields]:
    for value in found.get(number, []):
        assert isinstance(value, bytes)
        yield fields(value)


def _numbers(found: Fields, number: int) -> list[int]:
    """Fixed numbers of 64 bits, one by one or packed."""
    numbers: list[int] = []
    for value in found.get(number, []):
        numbers += [value] if isinstance(value, int) else [one for (one,) in struct.iter_unpack("<Q", value)]
    return numbers


class Track(NamedTuple):
    uuid: int
    name: str
    parent: int
    is_counter: bool
    merge_key: int


class Event(NamedTuple):
    """`kind` is begin, end, instant or counter."""

    us: float
    kind: str
    track: int
    name: str
    categories: list[str]
    notes: dict[str, object]
    flows_out: list[int]
    flows_in: list[int]
    value: float | None


_KINDS = {1: "begin", 2: "end", 3: "instant", 4: "counter"}


class Trace:
    """`events` are in the order of their time; those of the same time keep that of the file."""

    def __init__(self, data: bytes) -> None:
        self.tracks: dict[int, Track] = {}
        self.clocks: list[dict[int, int]] = []
        events: list[Event] = []
        for packet in _messages(fields(data), 1):
            assert _number(packet, 10) == 1, "a packet without its sequence"
            for clocks in _messages(packet, 6):
                self.clocks.append({_number(clock, 1): _number(clock, 2) for clock in _messages(clocks, 1)})
            for track in _messages(packet, 60):
                made = Track(_number(track, 1), _text(track, 2), _number(track, 5), 8 in track, _number(track, 17))
                assert made.uuid not in self.tracks and (not made.parent or made.parent in self.tracks)
                self.tracks[made.uuid] = made
            for event in _messages(packet, 11):
                assert _number(event, 11) in self.tracks, "an event before its track"
                events.append(_event(event, _number(packet, 8) / 1000))
        self.events = sorted(events, key=lambda event: event.us)

    def path(self, track: int) -> str:
        """The names from the host to the track."""
        one = self.tracks[track]
        return f"{self.path(one.parent)}/{one.name}" if one.parent else one.name

    def slices(self) -> list[tuple[str, str, float, float, str | None]]:
        """Path of the track, name, begin, end, and name of the slice below; each end has its begin, and none is missing."""
        stacks: dict[int, list[Event]] = {}
        found: list[tuple[str, str, float, float, str | None]] = []
        for event in self.events:
            stack = stacks.setdefault(event.track, [])
            if event.kind == "begin":
                stack.append(event)
            elif event.kind == "end":
                begun = stack.pop()
                found.append((self.path(event.track), begun.name, begun.us, event.us, stack[-1].name if stack else None))
        assert not any(stacks.values()), "slices without an end"
        return sorted(found, key=lambda one: (one[2], one[0], one[1]))

    def arrows(self) -> list[tuple[str, str, str, str]]:
        """Track and name at both ends of each arrow; each has two ends, in the order of time."""
        begins = {flow: event for event in self.events for flow in event.flows_out}
        ends = {flow: event for event in self.events for flow in event.flows_in}
        assert begins.keys() == ends.keys()
        assert len(begins) == sum(len(event.flows_out) for event in self.events)
        assert len(ends) == sum(len(event.flows_in) for event in self.events)
        assert all(begins[flow].us <= ends[flow].us for flow in ends)
        pairs = [(begins[flow], ends[flow]) for flow in sorted(ends)]
        return [(self.path(one.track), one.name, self.path(other.track), other.name) for one, other in pairs]


def _event(event: Fields, us: float) -> Event:
    value: float | None = None
    if 30 in event:
        value = _number(event, 30)
    elif 44 in event:
        value = struct.unpack("<d", struct.pack("<Q", _number(event, 44)))[0]
    notes: dict[str, object] = {}
    for note in _messages(event, 4):
        name = _text(note, 10)
        if 2 in note:
            notes[name] = bool(_number(note, 2))
        elif 4 in note:
            notes[name] = _number(note, 4)
        elif 5 in note:
            notes[name] = struct.unpack("<d", struct.pack("<Q", _number(note, 5)))[0]
        else:
            notes[name] = _text(note, 6)
    categories = [text.decode() for text in event.get(22, []) if isinstance(text, bytes)]
    flows = _numbers(event, 47), _numbers(event, 48)
    return Event(us, _KINDS[_number(event, 9)], _number(event, 11), _text(event, 23), categories, notes, *flows, value)
