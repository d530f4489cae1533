"""The process of a keeper: `main` is what a client starts.

Its arguments are two descriptors: one has the configuration, the other takes the word that it listens. One keeper runs for each job: it
has an exclusive lock on a file of its directory as long as it lives, and waits for one that is ending. A keeper that is to follow one which
has lost hosts first checks that these hosts answer, and then asks that one to leave.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from monarch.extension.channel import ChannelEnded
from monarch.job._client import keeper_channel
from monarch.job._client.keeper import LOCK, LOG

if TYPE_CHECKING:
    from monarch.actor import MeshFailure

# Seconds to wait for a keeper that is ending, whose services have a few seconds to stop.
_LOCK_SECONDS = 20.0
_PAUSE_S = 0.05
# Seconds for the answer of a keeper that is requested to leave.
_LEAVE_SECONDS = 10.0
# Seconds for the interpreter to end. Then only a thread that hangs is left.
_EXIT_SECONDS = 10.0


def main() -> None:
    """Runs the keeper; its output is the log."""
    config, ready = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (config, ready):
        os.set_inheritable(descriptor, False)
    try:
        with open(config, "rb") as f:
            given: dict[str, Any] = json.load(f)
        why = _keep(given, ready)
    except BaseException as e:
        if isinstance(e, Exception):
            _log(f"{type(e).__name__}: {e}")
            _report(ready, f"{type(e).__name__}: {e}".encode())
            _leave_soon()
        raise
    _log(f"ends: {why}")
    _leave_soon()


def _keep(given: dict[str, Any], ready: int) -> str:
    folder = keeper_channel.opened(given["folder"])
    follows: list[list[Any]] | None = given.get("follows")
    # The working directory stays that of the script: jobs may have relative paths.
    lock = _locked(folder) if follows is None else -1
    _log(f"keeper of {given['title']}, pid {os.getpid()}")
    import monarch.actor
    from monarch.extension import SignalThread
    from monarch.job._keeper.keeper_server import KeeperServer
    from monarch.job._keeper.kept_job import KeptJob
    from monarch.job._keeper.kept_services import KeptServices

    # The services handle the failure of a host: it must not end this process.
    monarch.actor.unhandled_fault_hook = _log_failure
    job = KeptJob(given["record"], given["path"], given["modules"])
    if follows is not None:
        job.check([(mesh, rank) for mesh, rank in follows])
        _ask_to_leave(given["folder"])
        lock = _locked(folder)
    services = KeptServices(folder=given["folder"])
    services.restore(job.hosts)
    server = KeeperServer(folder, os.path.join(given["folder"], LOG), job.hosts, services, lost=job.lost)
    SignalThread((signal.SIGTERM, signal.SIGINT), lambda number: server.end(signal.Signals(number).name))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    job.watch(server.end)
    _report(ready, b"ready")
    why = server.run()
    _held.append(lock)
    return why


# The descriptors of the lock: only the end of the process closes them.
_held: list[int] = []


def _locked(folder: int) -> int:
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= end:
                raise RuntimeError(f"another keeper runs: pid {os.pread(lock, 32, 0).decode(errors='replace')}") from None
            time.sleep(_PAUSE_S)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _ask_to_leave(folder: str) -> None:
    """Has the keeper that runs end; its services stay as they are."""
    channel = keeper_channel.connect(folder, _LEAVE_SECONDS)
    if channel is None:
        return
    try:
        with contextlib.suppress(ChannelEnded):
            channel.take(_LEAVE_SECONDS)
            channel.send({"do": "leave"})
            channel.take(_LEAVE_SECONDS)
    finally:
        channel.close()


def _report(ready: int, text: bytes) -> None:
    try:
        os.write(ready, text)
        os.close(ready)
    except OSError:
        pass  # the client is gone, or has been notified


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)


def _log_failure(failure: MeshFailure) -> None:
    _log(f"failure: {failure}")


def _leave_soon() -> None:
    threading.Thread(target=_leave, name="monarch-keeper-exit", daemon=True).start()


def _leave() -> None:
    time.sleep(_EXIT_SECONDS)
    os._exit(0)
