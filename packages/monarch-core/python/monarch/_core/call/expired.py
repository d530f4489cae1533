"""The error of a call that its deadline has ended: the ranks without an answer, by what they did at the deadline."""

from __future__ import annotations

from monarch._core._native.protocol import OK
from monarch._core.errors.errors import DeadlineExceeded
from monarch._core.errors.text import fill, hint_of
from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core._native import PendingCall, Unanswered
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.shape.shape import Shape


# Seconds without a heartbeat after which a host counts as silent: three rounds of heartbeats.
_SILENCE = 0.7


def expired(cell: PendingCall, title: str, info: MeshInfo, shape: Shape, ranks: list[int]) -> DeadlineExceeded | None:
    """The error of a call that has expired; None for another call. `ranks`: of each answer, its rank in the spawn of the mesh `info`."""
    unanswered = cell.unanswered()
    if unanswered is None:
        return None
    from monarch._core.call.partial_values import PartialValues

    values = {rank: result for rank, result in enumerate(cell.results()) if result is not None and result.status == OK}
    states: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in unanswered:
        proc = info.procs[ranks[one.rank]]
        states.setdefault(_state(one, info, proc), []).append((one.rank, one.seconds))
    total = len(ranks)
    lines = [fill("deadline_exceeded", endpoint=title, k=total - len(unanswered), n=total)]
    lines += [_line(before, after, found) for (before, after), found in states.items()]
    cell.set_retrieved()
    message = "\n  ".join([*lines, f"hint: {hint_of('deadline_exceeded')}"])
    return DeadlineExceeded(message, values=PartialValues(shape, values, _load), missing=[one.rank for one in unanswered])


def _load(result: Any) -> Any:
    return result.load()


def _state(one: Unanswered, info: MeshInfo, proc: int) -> tuple[str, str]:
    """The text of a state: the parts before and after its time. A state without a time has one part."""
    match one.state:
        case "queued":
            return (f"queued behind {one.name} since" if one.name else "queued for an actor that has not begun since"), ""
        case "running":
            name = one.name or "its hooks"
            return "running since", one.place or f"{name}, which keeps the GIL or has ended meanwhile"
        case "owed":
            return "returned, without a message to its port", ""
        case "unsent":
            return "not sent: the deadline had passed", ""
        case "ended":
            return "its process has ended", ""
        case _:
            return _silence(proc), ""


def _line(before: str, after: str, found: list[tuple[int, float]]) -> str:
    ranks, times = [rank for rank, _ in found], sorted(seconds for _, seconds in found)
    shown = f"rank{'s' if len(ranks) > 1 else ''} {_runs(ranks)}: {before}"
    if not before.endswith("since"):
        return shown
    first, last = f"{times[0]:.1f}", f"{times[-1]:.1f}"
    shown += f" {last} s" if first == last else f" {first} to {last} s"
    return f"{shown}: {after}" if after else shown


def _runs(ranks: list[int]) -> str:
    """Ranks as runs: `0-3, 7`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _silence(proc: int) -> str:
    """The reason why a process has not reported, as far as this process knows it."""
    process = current_process()
    end = process.native.ended(proc)
    if end is not None:
        return f"its process has ended ({end.kind})"
    host, silent = process.native.silence(proc)
    if silent is not None and silent >= _SILENCE:
        return f"host {host}: no heartbeat for {silent:.1f} s"
    pid = process.peers.pid_of(proc)
    if pid:
        from monarch._core.process.stopped import why_stopped

        why = why_stopped(pid)
        if why is not None:
            return f"its process (pid {pid}) does not run: {why}"
        return f"unknown: its process (pid {pid}) has not reported"
    return f"unknown: its process has not reported{f' from host {host}' if host else ''}"
