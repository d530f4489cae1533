"""What was done with jobs and hosts, and by whom: one line of JSON each in `MONARCH_HOME/audit.jsonl`, for its owner alone.

A line is written by one append, so those of several processes never mix. A failure to write is reported once and stops nothing. Values
of environment variables are never in it. Hosts have one too, with the commands and shells that were started there, and for whom. The
clients that have come to a host are in the log of its agent (`host.joined`, `host.refused`).
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.job._files import credentials

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

FILE = "audit.jsonl"
# Bytes at which the file becomes `audit.jsonl.1`, and replaces the previous one.
MOST_BYTES = 16 << 20
_LONGEST_DETAIL = 4096
_is_reported = False


class Origin(NamedTuple):
    """The user of an action, and the machine and process that it came from, as that process reports them."""

    who: str
    source: str


def origin() -> Origin:
    """The user of this process."""
    return Origin(_user(), _source())


def record(action: str, target: str, outcome: str = "done", **detail: object) -> None:
    """`target` is what it was done to; fields of `detail` that are None are left out."""
    _write(_line(origin(), action, target, outcome, detail))


def record_here(asked: Origin, action: str, outcome: str, **detail: object) -> None:
    """An action on the host of this process, by the user of another one; `runs_as` is this process's own user."""
    _write(_line(asked, action, os.uname().nodename, outcome, {"runs_as": _user(), **detail}))


def _write(line: bytes) -> None:
    global _is_reported
    path = os.path.join(credentials.home(), FILE)
    try:
        os.makedirs(credentials.home(), 0o700, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(fd).st_size > MOST_BYTES:
                os.replace(path, f"{path}.1")
            os.write(fd, line)
        finally:
            os.close(fd)
    except OSError as e:
        if not _is_reported:
            _is_reported = True
            print(f"monarch: cannot write {path}: {e.strerror}: what is done with jobs is not written down", file=sys.stderr, flush=True)


@contextlib.contextmanager
def recorded(action: str, target: str, **detail: object) -> Generator[None]:
    """The same when it is over, with why it failed if it did."""
    try:
        yield
    except BaseException as e:
        _write(_line(origin(), action, target, f"{type(e).__name__}: {e}".partition("\n")[0][:_LONGEST_DETAIL], detail))
        raise
    _write(_line(origin(), action, target, "done", detail))


def _line(by: Origin, action: str, target: str, outcome: str, detail: dict[str, object]) -> bytes:
    now = time.time_ns()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1_000_000_000))
    row: dict[str, Any] = {
        "time": f"{stamp}.{now // 1000 % 1_000_000:06}Z",
        "who": by.who,
        "source": by.source,
        "action": action,
        "target": target,
        "outcome": outcome,
    }
    row.update((key, value) for key, value in detail.items() if value is not None)
    return json.dumps(row, default=str).encode() + b"\n"


def _user() -> str:
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in a container without a user database
        name = "?"
    return f"{name} (uid {os.geteuid()})"


def _source() -> str:
    """This process, and where its user has come from."""
    come = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    return f"{os.uname().nodename} pid {os.getpid()}" + (f" from {come}" if come else "")


def command_line(words: Sequence[str | None]) -> str:
    """A command as it is written down; None is the place of a script that goes along."""
    return shlex.join(word if word is not None else "SCRIPT" for word in words)[:_LONGEST_DETAIL]
