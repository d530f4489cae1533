"""What is done about events that were overwritten before they were read: a burst makes the ring of a process go round between two looks.

With messages, of which a lost one is a number, events may be lost that describe a process, the meshes that it has made, its actors, and
what has ended. Rows would be missing, or show for ever that something lives. So processes are asked to introduce themselves again,
and what the agent of the host does not know any more has ended. No threads, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from monarch.telemetry._tables.exit_reason import UNKNOWN

# Seconds between two requests, which cost each process of the host an event for each of its actors and meshes; longer if rings are
# overwritten repeatedly, because an introduction does not help for long then.
_SHORTEST, _LONGEST = 1.0, 60.0
_REASON = "the event of its end was overwritten before it was read"


class Gaps:
    """When processes have to introduce themselves again."""

    def __init__(self) -> None:
        self._is_open = False
        self._asked = float("-inf")
        self._pause = _SHORTEST

    def found(self) -> None:
        """Events of a process were lost."""
        self._is_open = True

    def due(self, now: float) -> bool:
        """Whether to ask now, in seconds of any clock; true at most once for what was lost before."""
        if not self._is_open or now < self._asked + self._pause:
            return False
        # A later loss is another gap.
        self._is_open = False
        recent = now < self._asked + 4 * self._pause
        self._pause = min(2 * self._pause, _LONGEST) if recent else _SHORTEST
        self._asked = now
        return True


class LostEnds:
    """Ends without an event: what two looks at the processes of the host, one after the other, do not have, and what lives by the rows.

    After one look the event may be on its way.
    """

    def __init__(self) -> None:
        self._procs: set[int] = set()
        self._actors: set[tuple[int, int]] = set()

    def look(
        self,
        looked: Mapping[str, Any],
        procs: Collection[int],
        actors: Mapping[int, Collection[int]],
        torn: Collection[int],
        now_us: int,
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rows of `proc.end` and of `actor.end`. `procs` and `actors` are those that live by their rows; `torn` have lost events."""
        there = {int(proc["uid"], 16): proc["answer"] for proc in looked["procs"]}
        gone = {proc for proc in procs if proc not in there}
        silent: set[tuple[int, int]] = set()
        for proc in torn:
            answer = there.get(proc)
            if answer is not None:
                alive = {int(actor["mesh"], 16) for actor in answer["actors"]}
                silent.update((proc, mesh) for mesh in actors.get(proc, ()) if mesh not in alive)
        reasons = {int(row["proc"], 16): row for row in looked.get("recordings", ()) if row["ended"]}
        ended = [{"us": now_us, **_end(proc, reasons.get(proc))} for proc in sorted(gone & self._procs)]
        over = sorted(silent & self._actors)
        self._procs, self._actors = gone, silent
        common = {"us": now_us, "kind": UNKNOWN, "detail": _REASON}
        return ended, [{**common, "proc": proc, "mesh": mesh, "number": now_us} for proc, mesh in over]


def _end(proc: int, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """The agent remembers the reasons of the last ends."""
    if known is None:
        return {"peer": proc, "kind": UNKNOWN, "number": 0, "detail": _REASON}
    return {"peer": proc, "kind": known["kind"], "number": known["number"], "detail": known["detail"]}
