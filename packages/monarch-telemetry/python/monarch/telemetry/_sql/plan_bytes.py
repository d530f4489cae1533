"""Edits of a physical plan as bytes (protobuf): a node is replaced, the mode of an aggregate is set.

Only lengths and three fields of one message are known here. A plan that differs from those of the major version of datafusion that
`pyproject.toml` names is refused, so that a query runs another way. `tests/unit/test_telemetry_plan_bytes.py` is what a new version
has to pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# Fields of `AggregateExecNode`, and the number of the mode that makes states of states.
_MODE, _OUTPUT_SCHEMA, _PARTIAL_REDUCE = 3, 14, 5
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class UnknownPlan(Exception):
    """These bytes are not what is known of plans."""


class _Field(NamedTuple):
    number: int
    kind: int
    start: int
    # The position of the value; for bytes the position after their length.
    value: int
    end: int


def replaced(plan: bytes, old: bytes, new: bytes) -> bytes:
    """`plan` with the node `old`, its first one, replaced by `new`; `UnknownPlan` where it is no node of it."""
    if not old:
        raise UnknownPlan("an empty node")
    at = plan.find(old)
    while at >= 0:
        found = _replaced_at(plan, at, old, new)
        if found is not None:
            return found
        at = plan.find(old, at + 1)
    raise UnknownPlan("the node is not in the plan")


def partial_reduce(final: bytes, partial: bytes) -> bytes:
    """The node `final` of an aggregate made one that merges states into states, with the output of the node `partial`."""
    states, body = _body(partial), _body(final)
    schema = [states[field.start : field.end] for field in _fields(states) if field.number == _OUTPUT_SCHEMA]
    if len(schema) != 1 or not any(field.number == _OUTPUT_SCHEMA for field in _fields(body)):
        raise UnknownPlan("an aggregate without the schema of its output")
    kept = b"".join(body[field.start : field.end] for field in _fields(body) if field.number not in {_MODE, _OUTPUT_SCHEMA})
    mode = _varint(_MODE << 3 | _VARINT) + _varint(_PARTIAL_REDUCE)
    only = _only(final)
    return final[: only.start] + _bytes_field(only.number, kept + mode + schema[0])


def _replaced_at(message: bytes, at: int, old: bytes, new: bytes) -> bytes | None:
    if at == 0 and len(message) == len(old):
        return new
    try:
        fields = list(_fields(message))
    except UnknownPlan:
        return None
    for field in fields:
        if field.kind == _BYTES and field.value <= at and at + len(old) <= field.end:
            inner = _replaced_at(message[field.value : field.end], at - field.value, old, new)
            return None if inner is None else message[: field.start] + _bytes_field(field.number, inner) + message[field.end :]
    return None


def _only(node: bytes) -> _Field:
    fields = list(_fields(node))
    if len(fields) != 1 or fields[0].kind != _BYTES:
        raise UnknownPlan("a node is one message")
    return fields[0]


def _body(node: bytes) -> bytes:
    field = _only(node)
    return node[field.value : field.end]


def _fields(message: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(message):
        start = at
        tag, at = _read_varint(message, at)
        kind, value = tag & 7, at
        if kind == _VARINT:
            _, at = _read_varint(message, at)
        elif kind == _BYTES:
            size, value = _read_varint(message, at)
            at = value + size
        elif kind in {_FIXED32, _FIXED64}:
            at += 4 if kind == _FIXED32 else 8
        else:
            raise UnknownPlan(f"a field of kind {kind}")
        if at > len(message) or tag >> 3 == 0:
            raise UnknownPlan("a field beyond the end of its message")
        yield _Field(tag >> 3, kind, start, value, at)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for index in range(at, min(at + _LONGEST_VARINT, len(message))):
        number |= (message[index] & 127) << shift
        shift += 7
        if message[index] < 128:
            return number, index + 1
    raise UnknownPlan("a number without an end")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
