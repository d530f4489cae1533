"""Waits for an item of the own process, and look-ups of names, as two looks have seen them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast


class Program(NamedTuple):
    """A program below a process: its state letter in the kernel, the function in which it waits there, and `reads /data/part-7`."""

    pid: int
    name: str
    state: str = ""
    place: str = ""
    file: str = ""


class Supply(NamedTuple):
    """A thread that waits for an item, and the threads and programs of its process that have to act first.

    `kind` is queue, result or pipe. `still`: no program was at another place in the other look, and none of them runs.
    """

    proc: str
    thread: int
    kind: str
    threads: tuple[int, ...] = ()
    programs: tuple[Program, ...] = ()
    still: bool = True


class Lookup(NamedTuple):
    """A thread that looks up the address of a name. `name` is empty where the function does not show it."""

    proc: str
    thread: int
    function: str
    name: str = ""
    servers: tuple[str, ...] = ()


def supplies_of(proc: str, before: object, now: object) -> tuple[Supply, ...]:
    """The waits of a process in both answers; suppliers that only one of them has are left out."""
    earlier = {(one.thread, one.kind): one for one in _supplies(proc, before)}
    found: list[Supply] = []
    for one in _supplies(proc, now):
        known = earlier.get((one.thread, one.kind))
        if known is None:
            continue
        pids = {program.pid for program in known.programs}
        threads = tuple(thread for thread in one.threads if thread in known.threads)
        programs = tuple(program for program in one.programs if program.pid in pids)
        still = all(program in known.programs and program.state != "R" for program in programs)
        found.append(one._replace(threads=threads, programs=programs, still=still))
    return tuple(found)


def _supplies(proc: str, answer: object) -> list[Supply]:
    return [
        Supply(
            proc,
            int(one["thread"]),
            str(one["kind"]),
            tuple(map(int, one["threads"])),
            tuple(Program(int(pid), *map(str, rest)) for pid, *rest in one["programs"]),
        )
        for one in _list(answer, "supplies")
    ]


def lookups_of(proc: str, before: object, now: object) -> tuple[Lookup, ...]:
    """The look-ups of a process in both answers."""
    earlier = {(one.thread, one.function, one.name) for one in _lookups(proc, before)}
    return tuple(one for one in _lookups(proc, now) if (one.thread, one.function, one.name) in earlier)


def _lookups(proc: str, answer: object) -> list[Lookup]:
    given = _mapping(_mapping(answer).get("lookups"))
    servers = tuple(map(str, _list(given, "servers")))
    return [Lookup(proc, int(one["thread"]), str(one["function"]), str(one["name"]), servers) for one in _list(given, "threads")]


def _list(given: object, name: str) -> list[Any]:
    found = _mapping(given).get(name)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _mapping(given: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", given) if isinstance(given, dict) else {}
