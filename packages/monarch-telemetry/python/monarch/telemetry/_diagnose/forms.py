"""The forms of what processes report about themselves. A process made its report itself, and may be of another release.

A part of another form is left out before a detector sees it: one process would keep the detector from all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

# A form is a type, a list of rows of one form, a tuple of the forms of a list of fixed length, or a dictionary with the forms of its
# members. A member with `?` may be missing. `float` stands for any number that other code can convert and compare.
_FRAME = (str, float, str)
_GROUP = {"path": str, "used": float, "limit": float, "failures?": float, "cache?": float}
COUNTERS = (
    "retries unacknowledged since_sent_ms since_received_ms round_trip_us resent acknowledged_bytes received_bytes sent_segments"
    " received_segments unsent_bytes least_round_trip_us delivery_rate busy_us receiver_limited_us"
).split()
_RESOURCES: Mapping[str, Any] = {
    "clock": (float, float),
    "memory": {f"{name}?": float for name in ("resident", "anonymous", "shared", "swapped", "major_faults")},
    "threads": {"number": float, "blocked?": [float], "printing?": [float]},
    "programs": {"number": float, "stopped": [(float, str)]},
    "disk": {"read": float, "written": float},
    "descriptors": {"number": float, "limit": float, "targets": [(str, float)]},
    "cgroups": {"memory?": _GROUP, "pids?": _GROUP},
    "file_systems": [
        {"folder": str, **{f"{name}?": float for name in ("hangs", "device", "free", "free_files", "files", "size")}},
    ],
    "connections": [{"here": (str, float), "there": (str, float), **dict.fromkeys(COUNTERS, float)}],
    "kernel_waits": {"threads": [{"thread": float, "call": str}], "programs": [{"pid": float, "name": str, "state": str}]},
    "raised": [{"kind": str, "name": str, "error": str, "frames": [_FRAME], "age?": float}],
}
TIMES: Mapping[str, Any] = {"at": float, "used": float, "waited": float, "held_back": float}
# Numbers of the kernel have 64 bits.
_MOST = 1 << 64


def resources(answer: object) -> dict[str, Any]:
    """The resources of an answer that have their forms; of a list the rows that have."""
    found: dict[str, Any] = {}
    for name, value in _given(answer).items():
        form = _RESOURCES.get(name)
        if isinstance(form, list) and isinstance(value, list):
            found[name] = [row for row in cast("list[object]", value) if fits(row, form[0])]
        elif form is not None and fits(value, form):
            found[name] = value
    return found


def misfits(answer: object) -> Iterator[str]:
    """The names of the resources that `resources` leaves out, or of which it leaves out rows."""
    found = resources(answer)
    for name, value in _given(answer).items():
        if name in _RESOURCES and (name not in found or (isinstance(value, list) and len(cast("list[object]", value)) != len(found[name]))):
            yield name


def fits(value: object, form: Any) -> bool:
    """Whether a value of JSON has a form."""
    if form is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST
    if isinstance(form, type):
        return isinstance(value, form)
    if isinstance(form, dict):
        members = cast("dict[str, object] | None", value if isinstance(value, dict) else None)
        return members is not None and all(
            fits(members[name], one) if (name := key.removesuffix("?")) in members else key != name
            for key, one in cast("dict[str, Any]", form).items()
        )
    if not isinstance(value, list):
        return False
    rows = cast("list[object]", value)
    if isinstance(form, list):
        return all(fits(row, form[0]) for row in rows)
    return len(rows) == len(form) and all(map(fits, rows, form))


def frame(row: object) -> tuple[str, int, str]:
    """The file, line and name of a call. `TypeError` for a row of another form."""
    if not fits(row, _FRAME):
        raise TypeError(f"a call of another form: {row!r}"[:200])
    file, line, name = cast("tuple[str, float, str]", row)
    return file, int(line), name


def _given(answer: object) -> dict[str, object]:
    found = cast("dict[str, object]", answer).get("resources") if isinstance(answer, dict) else None
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}
