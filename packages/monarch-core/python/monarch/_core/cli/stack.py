"""`monarch stack`: the Python stacks of all procs, equal ones together."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import click

from monarch._core.cli import reach
from monarch._core.cli.printable import show_lines
from monarch._core.cli.ps import duration, heading, host_heading, listed_hosts, wanted
from monarch._core.observe import inspection
from monarch._core.process import stacks

# The functions in which an idle thread waits: the last frame of the runtime is the only one.
_IDLE = ("next_event", "wait_pop", "_run_sync", "_first_message")


class Stack(NamedTuple):
    """One thread of one proc."""

    proc: str
    # The display name of the thread's actor without its rank, or the thread's name.
    title: str
    frames: tuple[tuple[str, int, str], ...]
    note: str


def report(pids: tuple[int, ...], as_json: bool, everything: bool, here: bool = False, without: tuple[str, ...] = ()) -> int:
    """Prints the stacks of all jobs, or of those whose client is one of `pids`; gives the exit code.

    Then follow the stacks of other machines of the current job, unless `pids` or `here` is given.
    """
    found = [one for one in wanted(inspection.look(inspection.STACKS), pids) if f"{one.agent:016x}" not in without]
    if not as_json and (found or not without):
        _print(found, bool(pids) or everything, everything)
    there = [] if here or pids else reach.elsewhere("stack", *reach.without(found), as_json=as_json, everything=everything)
    if as_json:
        import json

        click.echo(json.dumps([one._asdict() for one in found] + reach.rows(there), indent=2))
        return max(_code(found), reach.code(there))
    return max(_code(found), reach.show(there))


def _print(found: list[inspection.Look], all_agents: bool, everything: bool) -> None:
    names = {one.agent: one.answer for one in inspection.look(inspection.STATE)}
    if not found:
        click.echo("no job of this user runs on this machine")
    for index, one in enumerate(inspection.without_listed_agents(found, all_agents)):
        if index:
            click.echo()
        if one.answer is None:
            show_lines([one.describe()])
            continue
        state = names.get(one.agent)
        show_lines([heading(one.answer), *_lines(one.answer, state, everything)])
        # Both answers have the same hosts, unless a host has joined meanwhile.
        states = {(s.host, s.answer["agent_pid"]): s.answer for s in inspection.others(state or {}) if s.answer is not None}
        for other in listed_hosts(one.answer, everything):
            show_lines(["", host_heading(other)])
            if other.answer is not None:
                show_lines(_lines(other.answer, states.get((other.host, other.answer["agent_pid"])), everything))


def _code(found: list[inspection.Look]) -> int:
    every = [part for one in found for part in inspection.parts(one)]
    return 1 if any(answer is None or any(p["answer"] is None for p in answer["procs"]) for answer in every) else 0


def _lines(answer: dict[str, Any], state: dict[str, Any] | None, everything: bool) -> list[str]:
    groups: dict[tuple[str, tuple[Any, ...], str], list[str]] = {}
    idle: list[str] = []
    lines: list[str] = []
    actors = _actors(state)
    for proc in answer["procs"]:
        if proc["answer"] is None:
            why = proc["evidence"] or {"T": "stopped by a signal", "t": "stopped by a debugger"}.get(proc["kernel"], proc["state"])
            since = f" for {duration(proc['silent'])}" if proc["silent"] else ""
            lines.append(f"{proc['name']} (pid {proc['pid']}) does not answer{since}: {why}")
            continue
        shown = [one for one in _stacks(proc, actors) if everything or not _is_idle(one)]
        if not shown:
            idle.append(proc["name"])
        for one in shown:
            groups.setdefault((one.title, one.frames, one.note), []).append(one.proc)
    for (title, frames, note), procs in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(procs)} x {title} in {merged(procs)}{note}")
        outward = list(reversed(frames)) if everything else _from_user(frames)
        lines += [f'    File "{file}", line {line}, in {name}' for file, line, name in outward] or ["    (no Python frame)"]
    if idle:
        lines.append(f"{len(idle)} x nothing to do in {merged(idle)}")
    return lines


def _actors(state: dict[str, Any] | None) -> dict[tuple[str, int], str]:
    """(uid of the proc, thread) to the actor's display name."""
    procs: list[dict[str, Any]] = state["procs"] if state is not None else []
    return {(p["uid"], actor["thread"]): actor["display"] for p in procs for actor in inspection.actors_of(p)}


def _stacks(proc: dict[str, Any], actors: dict[tuple[str, int], str]) -> list[Stack]:
    answer = proc["answer"]
    note = f" ({answer['without_gil']})" if "without_gil" in answer else ""
    threads = answer["threads"] if "threads" in answer else stacks.parse_dump(answer["text"] or "")
    found: list[Stack] = []
    for thread in threads:
        display = actors.get((proc["uid"], thread["thread"]))
        title = without_point(display) if display is not None else thread["name"] or "a thread without a name"
        found.append(Stack(proc["name"], title, tuple((file, line, name) for file, line, name in thread["frames"]), note))
    return found


def _is_idle(stack: Stack) -> bool:
    """Whether the thread belongs to the runtime and waits for work."""
    if not stack.frames:
        return True
    file, _, name = stack.frames[0]
    if "/monarch/_core/" not in file:
        return (
            file.endswith("selectors.py") and any(f.endswith("/_core/actor/async_actor.py") for f, *_ in stack.frames) and not _user(stack)
        )
    return name.rsplit(".", 1)[-1] in (*_IDLE, "run", "sleep", "select", "take", "threads") and not _user(stack)


def _user(stack: Stack) -> bool:
    own = ("/monarch/_core/", "/asyncio/", "/threading.py", "/selectors.py", "<frozen", "<string>")
    return any(not any(part in file for part in own) for file, *_ in stack.frames)


def _from_user(frames: tuple[tuple[str, int, str], ...]) -> list[tuple[str, int, str]]:
    """The frames, outermost first, from the frame at which the thread leaves the runtime."""
    outward = list(reversed(frames))
    ours = ("/monarch/_core/", "/threading.py", "<string>")
    while outward and any(part in outward[0][0] for part in ours):
        outward.pop(0)
    return outward or list(reversed(frames))


_POINT = re.compile(r"\{[^{}]*\}(?=>)")


def without_point(display: str) -> str:
    """The display name without the point: `<root>.<m.Worker w>` for `<root>.<m.Worker w{'procs': 3/4}>`."""
    return _POINT.sub("", display)


def merged(procs: list[str]) -> str:
    """Procs of one mesh as one name with their ranks: `<root>.<procs>[0-2,5]`."""
    found: dict[str, list[int]] = {}
    for name in procs:
        numbers = [int(n) for n in re.findall(r": (\d+)/\d+", name)]
        sizes = [int(n) for n in re.findall(r": \d+/(\d+)", name)]
        rank = 0
        for number, size in zip(numbers, sizes, strict=True):
            rank = rank * size + number
        found.setdefault(without_point(name), []).append(rank if numbers else -1)
    parts = [name if ranks == [-1] else f"{name}[{_ranges(sorted(ranks))}]" for name, ranks in found.items()]
    return ", ".join(parts)


def _ranges(ranks: list[int]) -> str:
    out: list[str] = []
    start = 0
    for index in range(1, len(ranks) + 1):
        if index == len(ranks) or ranks[index] != ranks[index - 1] + 1:
            first, last = ranks[start], ranks[index - 1]
            out.append(str(first) if first == last else f"{first}-{last}")
            start = index
    return ",".join(out)
