"""The checks of other wheels by `monarch doctor`: entry points that cannot be loaded, and lines that wheels add.

The imports of all installed wheels take most of the doctor's time, and may run any code. So each wheel has a child process, forked
before this process has threads. The children work at the same time as the checks of the machine. A wheel whose code hangs, or ends
its process, is a finding, and affects no other check.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from monarch._core.config.entry_points import BrokenEntry, LoadedEntry, broken, entries_by_wheel, load_entries, load_entry
from monarch._core.observe.doctor import Line

# Entry points of other wheels that add lines: callables that yield (subject, text, remedy).
GROUP = "monarch.doctor"
# Groups whose entries are checked against those of all wheels, and so in one process.
DECLARATIONS = ("monarch.settings", "monarch.errors")
# Seconds: PyTorch takes ten seconds from a cold disk of a busy machine.
LOAD_TIMEOUT = 60.0
_PR_SET_PDEATHSIG = 1

# Group and name of an entry point.
Key = tuple[str, str]


class Report(NamedTuple):
    """The result of one wheel: how many entry points can be loaded, lines about the others, and the lines that the wheel adds."""

    loaded: int
    left_out: list[Line]
    added: list[Line]


def report_of(keys: Sequence[Key], begin: Callable[[Key], None]) -> Report:
    """Loads entry points in this process; `begin` is called before each."""
    loaded, left_out, added = 0, list[Line](), list[Line]()
    for key in keys:
        begin(key)
        found = load_entry(*key)
        if isinstance(found, BrokenEntry):
            left_out.append(_left_out(found))
        elif found is not None:
            loaded += 1
            if key[0] == GROUP:
                added += _added(found)
    return Report(loaded, left_out, added)


def load_declarations() -> None:
    """Loads the settings and errors that other wheels declare, in this process."""
    import logging

    from monarch._core.config import known_settings as settings
    from monarch._core.errors import known_rows as errors

    log = logging.getLogger("monarch.extension")
    # Declarations that are left out are reported here, so the log need not name them too.
    level, _ = log.level, log.setLevel(logging.CRITICAL)
    try:
        settings.declare()
        errors.declare()
    finally:
        log.setLevel(level)


def _left_out(found: BrokenEntry) -> Line:
    if found.is_extra:
        return Line("extensions", f"{found.wheel}: {found.name!r} of {found.group} is not installed: {found.reason()}", found.todo, True)
    return Line("extensions", found.report(), found.todo)


def _added(found: LoadedEntry) -> Iterator[Line]:
    """The lines of a wheel. An exception while it yields them is a finding."""
    try:
        yield from (Line(*line) for line in found.value())
    except (Exception, SystemExit) as e:  # another wheel may raise anything
        failed = found.broken(e)
        yield Line(found.name, failed.report(), failed.todo)


class Wheels:
    """All wheels with entry points, a child process each. No other thread may run when this object is made."""

    def __init__(self) -> None:
        # This comes before any use of a setting, which would log the declarations that are left out.
        load_declarations()
        self._end = time.monotonic() + LOAD_TIMEOUT
        self._children = [_Child(wheel, [key for key in keys if key[0] not in DECLARATIONS]) for wheel, keys in entries_by_wheel().items()]

    def lines(self) -> Iterator[Line]:
        """Waits for the children. Yields lines about entry points, then lines that wheels add."""
        reports = [child.report(self._end) for child in self._children]
        # The wheels that this process itself has left out: their declarations, or their hooks at the start of a proc.
        own = [_left_out(found) for found in broken()]
        left_out = {line.text: line for line in [*(line for report in reports for line in report.left_out), *own]}
        yield from left_out.values()
        if not any(line.is_finding for line in left_out.values()):
            declared = sum(1 for group in DECLARATIONS for _ in load_entries(group))
            yield Line("extensions", f"{declared + sum(report.loaded for report in reports)} entry points of other wheels can be loaded")
        for report in reports:
            yield from report.added


class _Child:
    """A process that loads the entry points of one wheel. It writes lines of JSON: the key of each before it is loaded, then the report."""

    def __init__(self, wheel: str, keys: Sequence[Key]) -> None:
        self._wheel = wheel
        self._fd, write = os.pipe2(os.O_CLOEXEC)
        doctor = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _end_with(doctor)
                os.dup2(2, 1)  # the output of an import is no part of the report
                _send(write, report_of(keys, lambda key: _send(write, key)))
            finally:
                os._exit(0)
        os.close(write)

    def report(self, end: float) -> Report:
        """The child's report. A child without a report at the time `end` is killed, and is a finding."""
        received = bytearray()
        sent: list[Any] = []
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        is_late = False
        # The loop does not wait for the end of the pipe: processes that a wheel has forked may hold it open.
        while not is_late and not _is_report(sent):
            is_late = not poll.poll(max(end - time.monotonic(), 0) * 1000)
            part = b"" if is_late else os.read(self._fd, 1 << 16)
            if not part:
                break
            received += part
            *complete, _ = bytes(received).split(b"\n")
            sent = [json.loads(line) for line in complete]
        os.close(self._fd)
        if is_late:
            os.kill(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if _is_report(sent):
            loaded, left_out, added = sent[-1]
            return Report(loaded, [Line(*line) for line in left_out], [Line(*line) for line in added])
        how = f"has not finished within {LOAD_TIMEOUT:g} s" if is_late else f"has ended its process ({_ended(code)})"
        which = f"entry point {sent[-1][1]!r} of {sent[-1][0]}" if sent else "the load of entry points"
        todo = f"remove or repair {self._wheel.partition(' ')[0]}: procs that load this entry point fail in the same way"
        return Report(max(len(sent) - 1, 0), [Line("extensions", f"{self._wheel}: {which} {how}", todo)], [])


def _is_report(sent: Sequence[Any]) -> bool:
    """Whether the last line is the report, and not a key."""
    return bool(sent) and len(sent[-1]) == len(Report._fields)


def _end_with(doctor: int) -> None:
    """Ends this process when the doctor is killed: the code of a wheel may hang."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != doctor:
        os._exit(1)


def _send(fd: int, value: object) -> None:
    left = memoryview(json.dumps(value).encode() + b"\n")
    while left:
        left = left[os.write(fd, left) :]


def _ended(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
