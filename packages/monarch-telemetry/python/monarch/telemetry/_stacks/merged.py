"""Stacks of many procs as one report: equal stacks are one entry, with the ranks that have them.

Stacks are equal if the shown calls have the same files, lines and simple names, and their procs the same note. Every field of a report is
a sum, a union, a minimum or a maximum over its procs. So reports of hosts can be merged in any order and in any number of steps, up a tree.

The calls of the framework that lead to user code are left out. Where user code calls the framework, the first call is shown and those
inside it are left out. A stack without user code is shown whole: then the framework is what is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monarch.telemetry._stacks.fields import Fields, items, malformed
from monarch.telemetry._stacks.frames import Frame, ProcStacks, Thread
from monarch.telemetry._stacks.place import Place
from monarch.telemetry._stacks.places import Places, count, joined, parse_places, places_of, print_places

# The limits of a report's text: lines of one entry, its header included; calls of the outermost end where a stack has more than that, as
# they show where the work comes from; local variables of one call; entries and lines of one kind.
_MOST_LINES = 18
_OUTERMOST = 4
_MOST_LOCALS = 8
_MOST_ENTRIES = 50
# The numbers that Python gives to threads.
_NUMBERED = re.compile(r"^(Thread|Dummy|ThreadPoolExecutor|asyncio)(?:-\d+)?(?:_\d+)?(?=$| )")


class Call(NamedTuple):
    """A call of a merged stack. The line is 0 where it is not known."""

    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        return f'File "{self.filename}", line {self.line}, in {self.name}' if self.line else f"{self.name} in {self.filename}"

    def key(self) -> tuple[str, int, str]:
        """What equal calls have in common. Names of native functions have dots of other meanings."""
        return self.filename, self.line, simple_name(self.name) if self.line else self.name


class Sample(NamedTuple):
    """One thread of an entry, with its local variables: name and text, for each call. The first by path, rank and thread."""

    path: str
    rank: int
    thread_id: int
    locals: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True, slots=True)
class StackEntry:
    """Equal stacks. `thread` is the name of the threads without a running number; `calls` are innermost first."""

    thread: str
    note: str | None
    calls: tuple[Call, ...]
    threads: int
    places: tuple[Places, ...]
    sample: Sample | None = None

    @property
    def procs(self) -> int:
        """The number of procs that have this stack."""
        return count(self.places)

    def lines(self, most: int = _MOST_LINES) -> list[str]:
        """The entry for a person, outermost call first: at most so many lines, and those of local variables."""
        threads = f", {self.threads:,} threads" if self.threads != self.procs else ""
        note = f" ({self.note})" if self.note else ""
        found = [f"{self.procs:,} x {self.thread or 'a thread without a name'} in {print_places(self.places)}{threads}{note}"]
        numbers = range(len(self.calls) - 1, -1, -1)
        left_out = range(0)
        if len(numbers) > most - 1:
            left_out = numbers[_OUTERMOST : len(numbers) - (most - 2 - _OUTERMOST)]
        for number in numbers:
            if number not in left_out:
                found.append(f"    {self.calls[number]}")
                found += self._locals(number)
            elif number == left_out[0]:
                found.append(f"    … {len(left_out):,} more calls")
        if not self.calls:
            found.append("    (no Python frame)")
        return [_printable(line) for line in found]

    def _locals(self, number: int) -> list[str]:
        values = self.sample.locals[number] if self.sample is not None else ()
        more = len(values) - _MOST_LOCALS
        return [*(f"        {name} = {text}" for name, text in values[:_MOST_LOCALS]), *([f"        … {more:,} more"] if more > 0 else [])]

    def to_json(self) -> dict[str, object]:
        sample = self.sample
        return {
            "thread": self.thread,
            "note": self.note,
            "procs": self.procs,
            "threads": self.threads,
            "places": [one.to_json() for one in self.places],
            "frames": [call._asdict() for call in self.calls],
            "sample": None if sample is None else {**sample._asdict(), "locals": [[list(pair) for pair in one] for one in sample.locals]},
        }


@dataclass(frozen=True, slots=True)
class UnreadEntry:
    """Procs without a stack to show, and the reason."""

    reason: str
    places: tuple[Places, ...]

    def to_json(self) -> dict[str, object]:
        return {"reason": self.reason, "procs": count(self.places), "places": [one.to_json() for one in self.places]}


@dataclass(frozen=True, slots=True)
class StackReport:
    """The stacks of many procs, equal ones together.

    `entries` has the stacks that most procs have first, `unread` the procs without a stack to show, `idle` the procs without any thread
    that works, `missing` the hosts that have not answered, with their reasons. `str()` is the report for a person: 1,000 equal stacks are
    at most 20 lines. A report without procs is the neutral element of `merge`.
    """

    entries: tuple[StackEntry, ...] = ()
    unread: tuple[UnreadEntry, ...] = ()
    idle: tuple[Places, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, procs: Iterable[ProcStacks], *, idle: bool = False) -> StackReport:
        """The report on procs of one host. `idle` keeps the threads that wait for work."""
        merging = _Merging()
        for proc in procs:
            merging.add_proc(proc, idle)
        return merging.report()

    @classmethod
    def of_missing_host(cls, host: str, reason: str) -> StackReport:
        """The part of a host that has not answered."""
        return cls(missing=((host, reason),))

    @classmethod
    def merge(cls, reports: Iterable[StackReport]) -> StackReport:
        """The report on the procs of all reports, in any order. A proc belongs to one of them: the same one twice is counted twice."""
        merging = _Merging()
        for one in reports:
            merging.add_report(one)
        return merging.report()

    def __str__(self) -> str:
        lines = [line for one in self.entries[:_MOST_ENTRIES] for line in one.lines()]
        if len(self.entries) > _MOST_ENTRIES:
            rest = self.entries[_MOST_ENTRIES:]
            lines.append(f"… {len(rest):,} more stacks of {sum(one.threads for one in rest):,} threads")
        for one in self.unread[:_MOST_ENTRIES]:
            lines.append(_printable(f"{count(one.places):,} x no stack of {print_places(one.places)}: {one.reason}"))
        if len(self.unread) > _MOST_ENTRIES:
            lines.append(f"… no stacks of {sum(count(one.places) for one in self.unread[_MOST_ENTRIES:]):,} more procs")
        if self.idle:
            lines.append(_printable(f"{count(self.idle):,} x nothing to do in {print_places(self.idle)}"))
        lines += [_printable(f"host {host} has not answered: {reason}") for host, reason in self.missing[:_MOST_ENTRIES]]
        if len(self.missing) > _MOST_ENTRIES:
            lines.append(f"… {len(self.missing) - _MOST_ENTRIES:,} more hosts have not answered")
        return "\n".join(lines or ["no procs"])

    def to_json(self) -> dict[str, object]:
        """The whole report as an object for JSON; `from_json` reads it."""
        return {
            "entries": [one.to_json() for one in self.entries],
            "unread": [one.to_json() for one in self.unread],
            "idle": [one.to_json() for one in self.idle],
            "missing": [{"host": host, "reason": reason} for host, reason in self.missing],
        }

    @classmethod
    def from_json(cls, document: object) -> StackReport:
        """The report of `to_json`. Raises `TelemetryError` that names a malformed field."""
        outer = Fields(document, "")
        merging = _Merging()
        merging.add_report(
            cls(
                tuple(_entry(one) for one in outer.objects("entries")),
                tuple(UnreadEntry(one.text("reason"), parse_places(one, "places")) for one in outer.objects("unread")),
                parse_places(outer, "idle"),
                tuple((one.text("host"), one.text("reason")) for one in outer.objects("missing")),
            )
        )
        return merging.report()


class _Stacks:
    """An entry that is being merged."""

    __slots__ = ("calls", "places", "procs", "sample", "threads")

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self.calls = calls
        self.threads = 0
        # Single procs, and procs that are already merged.
        self.procs: list[Place] = []
        self.places: list[Places] = []
        self.sample: Sample | None = None

    def add(self, calls: tuple[Call, ...], sample: Sample | None) -> None:
        if calls != self.calls:
            # The qualified names, if one of the sources has them.
            self.calls = tuple(max(pair, key=lambda call: (len(call.name), call.name)) for pair in zip(self.calls, calls, strict=True))
        if sample is not None:
            self.sample = sample if self.sample is None else min(self.sample, sample)


# The name of the thread, the note and the common part of equal calls.
_Key = tuple[str, str | None, tuple[tuple[str, int, str], ...]]


class _Merging:
    """A report that is being made."""

    def __init__(self) -> None:
        self.stacks: dict[_Key, _Stacks] = {}
        self.unread: dict[str, list[Places]] = {}
        self.silent: dict[str, list[Place]] = {}
        self.idle: list[Places] = []
        self.idle_procs: list[Place] = []
        self.missing: set[tuple[str, str]] = set()

    def add_proc(self, proc: ProcStacks, idle: bool) -> None:
        if proc.unread is not None:
            self.silent.setdefault(proc.unread, []).append(proc.place)
            return
        # Equal stacks of several threads of a proc are counted once.
        seen: set[_Key] = set()
        for thread in proc.threads:
            # The blocking thread is the important one of a proc that does not run.
            holds = proc.note is not None and thread.owns_gil is True
            if not idle and not holds and waits_for_work(thread):
                continue
            shown = folded(thread.frames)
            calls = tuple(Call(frame.filename, frame.line, frame.name) for frame in shown)
            note = "holds the GIL" if holds else proc.note
            key = (_NUMBERED.sub(r"\1", thread.name or ""), note, tuple(call.key() for call in calls))
            stacks = self.stacks.setdefault(key, _Stacks(calls))
            stacks.add(calls, _sample(proc, thread, shown))
            stacks.threads += 1
            if key not in seen:
                seen.add(key)
                stacks.procs.append(proc.place)
        if not seen and proc.note is not None:
            self.silent.setdefault(f"{proc.note}; its threads wait for work", []).append(proc.place)
        elif not seen:
            self.idle_procs.append(proc.place)

    def add_report(self, report: StackReport) -> None:
        for one in report.entries:
            key = (one.thread, one.note, tuple(call.key() for call in one.calls))
            stacks = self.stacks.setdefault(key, _Stacks(one.calls))
            stacks.add(one.calls, one.sample)
            stacks.threads += one.threads
            stacks.places += one.places
        for one in report.unread:
            self.unread.setdefault(one.reason, []).extend(one.places)
        self.idle += report.idle
        self.missing.update(report.missing)

    def report(self) -> StackReport:
        entries = [
            StackEntry(thread, note, one.calls, one.threads, joined([*places_of(one.procs), *one.places]), one.sample)
            for (thread, note, _), one in self.stacks.items()
        ]
        entries.sort(key=lambda one: (-one.procs, -one.threads, one.thread, one.note or "", one.calls))
        reasons = {*self.unread, *self.silent}
        unread = [UnreadEntry(one, joined([*places_of(self.silent.get(one, [])), *self.unread.get(one, [])])) for one in reasons]
        unread.sort(key=lambda one: (-count(one.places), one.reason))
        idle = joined([*places_of(self.idle_procs), *self.idle])
        return StackReport(tuple(entries), tuple(unread), idle, tuple(sorted(self.missing)))


def _sample(proc: ProcStacks, thread: Thread, shown: tuple[Frame, ...]) -> Sample | None:
    if all(frame.locals is None for frame in shown):
        return None
    values = tuple(tuple((one.name, one.repr or "…") for one in frame.locals or ()) for frame in shown)
    return Sample(proc.place.path, proc.place.rank or 0, thread.thread_id, values)


def _entry(entry: Fields) -> StackEntry:
    calls = tuple(Call(one.text("filename"), one.number("line", 32, signed=True), one.text("name")) for one in entry.objects("frames"))
    sample: Sample | None = None
    if "sample" in entry:
        given = Fields(entry.raw("sample"), entry.path("sample"))
        values: list[tuple[tuple[str, str], ...]] = []
        for index, one in enumerate(given.items("locals")):
            path = f"{given.path('locals')}[{index}]"
            pairs = [items(path, pair) for pair in items(path, one)]
            if not all(len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs):
                raise malformed(path, one, "pairs of texts")
            values.append(tuple((str(name), str(text)) for name, text in pairs))
        if len(values) != len(calls):
            raise malformed(given.path("locals"), len(values), f"one for each of {len(calls)} frames")
        sample = Sample(given.text("path"), given.number("rank", 64), given.number("thread_id", 64), tuple(values))
    places = parse_places(entry, "places")
    return StackEntry(entry.text("thread"), entry.text_or_none("note"), calls, entry.number("threads", 63), places, sample)


def _printable(line: str) -> str:
    """Control characters of names would change the terminal, and the number of lines."""
    return line if line.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in line)


# Files of the wheels of the namespace, in any folder of installation.
_WHEELS = r"/monarch/(?:_[a-z_]+|actor|config|extension|job|rdma|fs|remotemount|gather_mount|telemetry|distributed_telemetry)/"
# Calls of the standard library between the start of a thread and its target, and around coroutines.
_STANDARD = r"/(?:asyncio/\w+|concurrent/futures/\w+|threading|selectors|runpy)\.py$|^<frozen [\w.]+>$"
_FRAMEWORK = re.compile(f"{_WHEELS}|{_STANDARD}")
# `python -c` and the interpreters of procs start in a string. Functions of user code may be in one too.
_STARTS = frozenset({("<string>", "<module>")})

# Innermost functions of threads that wait for work: threads of actors and the runtime, of event loops, of pools.
_WAITS = frozenset({"_run_sync", "_first_message", "next_event", "wait_pop", "run", "select", "sleep", "take", "threads", "_worker"})


def is_framework(frame: Frame) -> bool:
    """Whether the call is of this framework, or of the standard library's threads and event loops."""
    return _FRAMEWORK.search(frame.filename) is not None or (frame.filename, frame.name) in _STARTS


def is_native(frame: Frame) -> bool:
    """Whether the call is of compiled code, which py-spy has found in a library."""
    return frame.line == 0 and frame.module is not None


def simple_name(name: str) -> str:
    """The last part of a qualified name. `faulthandler` has only that, so stacks are compared by it."""
    return name.rpartition(".")[2] or name


def waits_for_work(thread: Thread) -> bool:
    """Whether the thread runs no user code and is where the framework waits for something to do."""
    python = [frame for frame in thread.frames if not is_native(frame)]
    if not all(map(is_framework, python)):
        return False
    return not python or simple_name(python[0].name) in _WAITS


def folded(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames that are shown, innermost first."""
    outward = list(reversed(frames))
    ours = [is_framework(frame) for frame in outward]
    if all(one or is_native(frame) for one, frame in zip(ours, outward, strict=True)):
        return tuple(frames)
    # Native frames before the first call of the user belong to the interpreter and the C library.
    first = next(index for index, frame in enumerate(outward) if not ours[index] and not is_native(frame))
    shown = [frame for index, frame in enumerate(outward) if index >= first and not (ours[index] and ours[index - 1])]
    return tuple(reversed(shown))
