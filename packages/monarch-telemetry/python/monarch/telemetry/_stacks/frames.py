"""Stacks with types, from two sources: the look of a host into its procs, and py-spy.

A proc that answers reads its own stacks while it holds the GIL. A proc that does not get the GIL has the text of Python's `faulthandler`,
which names functions without their classes and threads by their number only. A process that runs no instruction has no stacks and a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from monarch.telemetry._stacks.fields import Fields, integer, items, malformed, whole
from monarch.telemetry._stacks.place import Place, parse_place

# gil and no_gil: read by the process itself; py-spy: read from outside.
Source = Literal["gil", "no_gil", "py-spy"]

# The most frames of one thread that are read; py-spy gives at most 4,096, the process itself 100.
_MOST_FRAMES = 5_000

_HEAD = re.compile(
    r"(?:Current thread|Thread) 0x(?P<thread>[0-9a-fA-F]{1,16})(?: \[(?P<name>.*)\])? \(most recent call first\):?", re.ASCII
)
_LINE = re.compile(r'  File "(?P<file>.*)", line (?P<line>[0-9]{1,9}|\?\?\?) in (?P<name>.*)')


class Local(NamedTuple):
    """A local variable; `addr` is the address of its value, `arg` whether it is an argument, `repr` its shortened text."""

    name: str
    addr: int
    arg: bool
    repr: str | None


class Frame(NamedTuple):
    """A call. `line` is 0 where it is not known; `locals` is None where they were not asked for."""

    name: str
    filename: str
    line: int
    module: str | None = None
    short_filename: str | None = None
    is_entry: bool = False
    locals: tuple[Local, ...] | None = None


class Thread(NamedTuple):
    """A thread with its calls, innermost first. `thread_id` is Python's number. None stands for what the source does not know."""

    thread_id: int
    name: str | None
    frames: tuple[Frame, ...]
    os_thread_id: int | None = None
    active: bool | None = None
    owns_gil: bool | None = None


class ProcStacks(NamedTuple):
    """The threads of a proc, or `unread`, the reason for having none. `note` is a finding about the proc, such as a GIL that is held."""

    proc_id: int
    pid: int
    place: Place
    threads: tuple[Thread, ...]
    source: Source = "gil"
    note: str | None = None
    unread: str | None = None


def procs_of_look(look: object) -> tuple[ProcStacks, ...]:
    """The procs of one host, from the JSON object with `procs` that the look into it has given."""
    return tuple(_proc(one) for one in Fields(look, "").objects("procs"))


def _proc(proc: Fields) -> ProcStacks:
    uid = proc.text("uid")
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", uid, re.ASCII):
        raise malformed(proc.path("uid"), uid, "a hexadecimal number of 64 bits")
    found = ProcStacks(int(uid, 16), proc.number("pid", 32, signed=True), parse_place(proc.text("name")), ())
    # The text of faulthandler is beside the answer if the answer came too late to contain it.
    given = "answer" if "answer" in proc else "stacks"
    if given not in proc:
        return found._replace(unread=_reason(proc))
    answer = Fields(proc.raw(given), proc.path(given))
    if "threads" in answer:
        return found._replace(threads=tuple(_thread(one) for one in answer.objects("threads")))
    threads = parse_faulthandler(answer.text("text", ""))
    if not threads:
        return found._replace(unread=_reason(proc))
    return found._replace(threads=threads, source="no_gil", note=answer.text_or_none("without_gil") or proc.text_or_none("evidence"))


def _reason(proc: Fields) -> str:
    stopped = {"T": "stopped by a signal", "t": "stopped by a debugger", "Z": "ended", "X": "ended", "D": "blocked in the kernel"}
    reason = proc.text_or_none("evidence") or stopped.get(proc.text("kernel", "") if "kernel" in proc else "")
    return reason or f"no answer while {proc.text('state')}"


def _thread(thread: Fields) -> Thread:
    frames: list[Frame] = []
    for index, value in enumerate(thread.items("frames")[:_MOST_FRAMES]):
        path = f"{thread.path('frames')}[{index}]"
        parts = items(path, value)
        if len(parts) != 3 or not isinstance(parts[0], str) or not isinstance(parts[2], str):
            raise malformed(path, value, "[file, line, function]")
        frames.append(Frame(whole(parts[2]), whole(parts[0]), integer(f"{path}[1]", parts[1], 32, signed=True)))
    return Thread(thread.number("thread", 64), thread.text_or_none("name"), tuple(frames))


def parse_faulthandler(text: str) -> tuple[Thread, ...]:
    """The threads that Python's `faulthandler` has written. Lines that are no frame and no thread are skipped."""
    found: list[Thread] = []
    frames: list[Frame] = []
    for line in text.split("\n"):
        head = _HEAD.fullmatch(line)
        if head is not None:
            frames = []
            found.append(Thread(int(head["thread"], 16), head["name"] or None, ()))
            continue
        frame = _LINE.fullmatch(line)
        if frame is not None and found:
            frames.append(Frame(whole(frame["name"]), whole(frame["file"]), 0 if frame["line"] == "???" else int(frame["line"])))
            found[-1] = found[-1]._replace(frames=tuple(frames))
    return tuple(found)


def threads_of_pyspy(traces: object, path: str = "") -> tuple[Thread, ...]:
    """The threads of py-spy's JSON. `path` is the place of the list in its document."""
    found: list[Thread] = []
    for index, value in enumerate(items(path or "the dump", traces)):
        trace = Fields(value, f"{path}[{index}]")
        found.append(
            Thread(
                trace.number("thread_id", 64),
                trace.text_or_none("thread_name"),
                tuple(_pyspy_frame(one) for one in trace.objects("frames")[:_MOST_FRAMES]),
                trace.number_or_none("os_thread_id", 64),
                trace.flag("active"),
                trace.flag("owns_gil"),
            )
        )
    return tuple(found)


def _pyspy_frame(frame: Fields) -> Frame:
    return Frame(
        frame.text("name"),
        frame.text("filename"),
        frame.number("line", 32, signed=True),
        frame.text_or_none("module"),
        frame.text_or_none("short_filename"),
        frame.flag("is_entry", False),
        tuple(_local(one) for one in frame.objects("locals")) if "locals" in frame else None,
    )


def _local(local: Fields) -> Local:
    return Local(local.text("name"), local.number("addr", 64, default=0), local.flag("arg", False), local.text_or_none("repr"))


def pyspy_of_threads(threads: Iterable[Thread], pid: int) -> list[dict[str, object]]:
    """py-spy's JSON of threads; flags that a source does not know are false."""
    return [
        {
            "pid": pid,
            "thread_id": thread.thread_id,
            "thread_name": thread.name,
            "os_thread_id": thread.os_thread_id,
            "active": bool(thread.active),
            "owns_gil": bool(thread.owns_gil),
            "frames": [
                {**frame._asdict(), "locals": None if frame.locals is None else [one._asdict() for one in frame.locals]}
                for frame in thread.frames
            ],
        }
        for thread in threads
    ]
