"""Processes of this machine that outlive their starter: each in a session of its own, found again and ended without mistakes.

A pid alone names the process that has that number now. So a process is known by pid and start time, and what belongs to its session is only
ended if it carries the mark in its environment that it was started with.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MARK = "MONARCH_APPLY_ID"
GRACE_SECONDS = 1.0
# Sessions that are children of this process, which has to reap them.
_children: dict[int, subprocess.Popen[bytes]] = {}


class _Outliving(subprocess.Popen[bytes]):
    """A child that is meant to go on when this process ends: that needs no warning."""

    def __del__(self) -> None:
        self.poll()


class Session(NamedTuple):
    """The leader of a session: its pid, and when it was started, in the kernel's ticks since boot."""

    pid: int
    start: int


# Variables that make a process part of a job, or name its job.
_OWN = frozenset({"MONARCH_JOB", "MONARCH_JOB_SHRINK", "MONARCH_BATCH_JOB", "MONARCH_BATCH_JOB_FILE", "MONARCH_JOB_SECRET_FILE"})


def inherited() -> dict[str, str]:
    """The environment of this process without its own job, which must not become that of what it starts."""
    return {name: value for name, value in os.environ.items() if name not in _OWN}


def start(
    argv: Sequence[str], env: Mapping[str, str], mark: str, out: str, err: str, keep: Sequence[int] = (), directory: str | None = None
) -> Session:
    """Starts a process in a session of its own; its output goes to the ends of these files, `keep` are descriptors that it gets."""
    with open(out, "ab", opener=_private) as stdout, open(err, "ab", opener=_private) as stderr:
        child = _Outliving(
            list(argv),
            env={**env, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=tuple(keep),
            cwd=directory,
        )
    _children[child.pid] = child
    found = _stat(child.pid)
    assert found is not None  # it has not been reaped
    return Session(child.pid, found.start)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def child(session: Session) -> subprocess.Popen[bytes] | None:
    """The process as a child of this one, if it is that."""
    return _children.get(session.pid)


def exit_code(session: Session) -> int | None:
    """How it ended, if it is a child of this process and has."""
    child = _children.get(session.pid)
    return None if child is None else child.poll()


def is_running(session: Session) -> bool:
    exit_code(session)  # a child that has ended is reaped
    found = _stat(session.pid)
    return found is not None and found.start == session.start and found.state not in "ZX"


def end(sessions: Iterable[Session], mark: str, *, is_everywhere: bool = False) -> list[int]:
    """SIGTERM to all, a second, SIGKILL to whatever is left of their sessions. Gives the pids that did not end.

    With `is_everywhere`, SIGKILL goes to all processes with the mark: to other sessions that these have started, too.
    """
    sessions = list(sessions)
    fds = {pid: fd for pid in (s.pid for s in sessions if is_running(s)) if (fd := _open(pid)) is not None}
    try:
        for session in sessions:
            if session.pid in fds and is_running(session):
                _signal(session.pid, signal.SIGTERM)
        _await_end(fds, GRACE_SECONDS)
    finally:
        for fd in fds.values():
            os.close(fd)
    ids = {session.pid for session in sessions}
    left: list[int] = []
    # A process may fork during the search; its children are found in the next round.
    for _ in range(100):
        left = members(None if is_everywhere else ids, mark)
        if not left:
            break
        opened = {pid: fd for pid in left if (fd := _open(pid)) is not None}
        for pid in opened:
            _signal(pid, signal.SIGKILL)
        _await_end(opened, GRACE_SECONDS)
        for fd in opened.values():
            os.close(fd)
    for session in sessions:
        child = _children.get(session.pid)
        if child is not None and child.poll() is not None:
            del _children[session.pid]
    return left


def members(sessions: set[int] | None, mark: str) -> list[int]:
    """Living processes of these sessions, or of any, that carry the mark."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        seen = _stat(int(name))
        if seen is None or (sessions is not None and seen.session not in sessions) or seen.state in "ZX":
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                if wanted in f.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return sorted(found)


class _Stat(NamedTuple):
    state: str
    session: int
    start: int


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            text = f.read()
    except OSError:
        return None
    # The second field is the name in parentheses, which may contain any character.
    fields = text.rpartition(b")")[2].split()
    return _Stat(fields[0].decode(), int(fields[3]), int(fields[19]))


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _await_end(fds: Mapping[int, int], seconds: float) -> None:
    waiting = set(fds.values())
    deadline = time.monotonic() + seconds
    while waiting and (left := deadline - time.monotonic()) > 0:
        waiting -= set(_readable(waiting, left))


def _readable(fds: set[int], seconds: float) -> list[int]:
    poller = select.poll()  # `select` itself supports a thousand descriptors only
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(seconds * 1000)]
