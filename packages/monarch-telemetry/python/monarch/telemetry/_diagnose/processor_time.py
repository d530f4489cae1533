"""Processor time of processes between two looks, as the agents of their hosts read it: on a processor, in the queue for one, held back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from monarch.telemetry._diagnose import forms
from monarch.telemetry._diagnose.inspected import Looked, stack_rows
from monarch.telemetry._diagnose.snapshot import Check, Proc

_SOURCE = "/proc/PID/schedstat"


def processor_checks(procs: Iterable[Proc], before: Looked, now: Looked) -> Iterator[Check]:
    """The parts of the time in which each process had a processor and waited for one, and in which each cgroup was held back."""
    first, last = _times(before), _times(now)
    groups: dict[tuple[str, str], list[Check]] = {}
    for proc in procs:
        earlier, later = first.get(proc.uid), last.get(proc.uid)
        if earlier is None or later is None or later["at"] <= earlier["at"]:
            continue

        def part(name: str, earlier: Mapping[str, Any] = earlier, later: Mapping[str, Any] = later) -> float:
            return (later[name] - earlier[name]) / 1e9 / (later["at"] - earlier["at"])

        yield Check("processor", proc.host, proc.name, part("used"), 1.0, (proc.uid,), _SOURCE)
        yield Check("run_queue", proc.host, proc.name, part("waited"), 1.0, (proc.uid,), _SOURCE)
        group = str(later.get("group") or "")
        if group and group == earlier.get("group"):
            held = Check("held_back", proc.host, os.path.dirname(group), part("held_back"), 1.0, (proc.uid,), group)
            groups.setdefault((proc.host, group), []).append(held)
    for members in groups.values():
        # Each process of a group was looked at at a moment of its own.
        yield members[0]._replace(procs=tuple(uid for one in members for uid in one.procs))


def _times(looked: Looked) -> dict[str, Mapping[str, Any]]:
    """The counters of each process; an agent of another release gives none."""
    rows = ((str(row["uid"]), row.get("times")) for row in stack_rows(looked))
    return {uid: times for uid, times in rows if isinstance(times, dict) and forms.fits(cast("object", times), forms.TIMES)}
