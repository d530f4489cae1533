"""Procs that do not answer a look are read from outside, several at a time: one that cannot be read delays no other one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from monarch.telemetry._stacks.frames import ProcStacks
from monarch.telemetry._stacks.result import Ok, Result

# The most readers at the same time. Each is a process that pauses one proc for some milliseconds.
_MOST_READERS = 8


def complete(procs: Sequence[ProcStacks], read: Callable[[int], Result], *, every: bool = False) -> tuple[ProcStacks, ...]:
    """The procs, with the stacks that `read` gives for the PIDs of those that have not answered or do not get the GIL.

    `every` reads all of them, for native frames or local variables. Where `read` has no stacks, those of the proc itself stay; a proc
    without any has both reasons.
    """
    wanted = [index for index, proc in enumerate(procs) if every or proc.unread is not None or proc.source == "no_gil"]
    if not wanted:
        return tuple(procs)
    found = list(procs)

    def read_one(index: int) -> Result:
        return read(procs[index].pid)

    with ThreadPoolExecutor(min(len(wanted), _MOST_READERS), "stacks") as pool:
        for index, result in zip(wanted, pool.map(read_one, wanted), strict=True):
            found[index] = _with(procs[index], result)
    return tuple(found)


def _with(proc: ProcStacks, result: Result) -> ProcStacks:
    if isinstance(result, Ok) and result.stack_traces:
        return proc._replace(threads=result.stack_traces, source="py-spy", note=proc.note or proc.unread, unread=None)
    if proc.unread is None:
        return proc
    reason = f"process {proc.pid} has no Python thread" if isinstance(result, Ok) else result.describe()
    # Without the number of the process, equal reasons of many processes are one entry of a report.
    return proc._replace(unread=f"{proc.unread}; {reason.replace(f'process {proc.pid}', 'the process')}")
