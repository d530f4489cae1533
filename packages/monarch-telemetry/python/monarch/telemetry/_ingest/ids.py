"""Numbers of actors, messages and events: of 64 bits, made of what identifies them, so that every host makes the same one.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). Two of
10 million ids are equal with a probability of 3 in a million.
"""

from __future__ import annotations

from typing import Any

from monarch.telemetry._arrow import pa, pc

_MASK = (1 << 64) - 1
_START, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# The low bits of an id are those of the number of its event: an actor ends one message and begins the next within a microsecond, and ids
# decide the order of both. The remaining bits suffice: of 10,000 processes, two have equal ids with a probability of 3 in a million.
_COUNTED = 20
_LAST = (1 << _COUNTED) - 1
# Scalars to compare columns of ids with: Arrow would treat a Python number as signed, which does not fit.
U64 = (pa.scalar(0, pa.uint64()), pa.scalar(1, pa.uint64()))
# The kinds of ids, as the same numbers may identify two objects.
MESSAGE, BROADCAST, EVENT, ACTOR_EVENT, FAILURE, LINK, PROC_END, ROOT = range(1, 9)


def mixed(*parts: int) -> int:
    """One id."""
    found = _START
    for part in parts:
        found = (found + part) & _MASK
        found = ((found ^ (found >> 30)) * _FIRST) & _MASK
        found = ((found ^ (found >> 27)) * _SECOND) & _MASK
        found ^= found >> 31
    return found


def mixed_columns(*parts: Any) -> Any:
    """The ids of rows, as `mixed` makes each: parts are columns of `uint64`, or numbers that are the same for all rows."""
    found: Any = _u64(_START)
    for part in parts:
        found = pc.add(found, part if not isinstance(part, int) else _u64(part))
        found = pc.multiply(pc.bit_wise_xor(found, pc.shift_right(found, _u64(30))), _u64(_FIRST))
        found = pc.multiply(pc.bit_wise_xor(found, pc.shift_right(found, _u64(27))), _u64(_SECOND))
        found = pc.bit_wise_xor(found, pc.shift_right(found, _u64(31)))
    return found


def event_id(kind: int, proc: int, number: int) -> int:
    """An event of a process, by the number that its recording gives it; those of events one after another have this order too."""
    return (mixed(kind, proc, number >> _COUNTED) & ~_LAST) | (number & _LAST)


def event_ids(kind: int, procs: Any, numbers: Any) -> Any:
    """`event_id` of rows."""
    blocks = mixed_columns(kind, procs, pc.shift_right(numbers, _u64(_COUNTED)))
    return pc.bit_wise_or(pc.bit_wise_and(blocks, _u64(_MASK ^ _LAST)), pc.bit_wise_and(numbers, _u64(_LAST)))


def actor_id(proc: int, mesh: int) -> int:
    """An actor: a proc has at most one of a mesh. Mesh 0 is what runs outside actors, the client's script above all."""
    return mixed(proc, mesh)


def actor_ids(procs: Any, meshes: Any) -> Any:
    """`actor_id` of rows."""
    return mixed_columns(procs, meshes)


def _u64(value: int) -> Any:
    return pa.scalar(value, pa.uint64())
