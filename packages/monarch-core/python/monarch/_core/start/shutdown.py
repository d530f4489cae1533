"""The end of the client: silent, complete, with the right exit code."""

from __future__ import annotations

import os
import sys

from monarch._core._native import begin_exit, begin_leaving, run_at_exit, set_runtime_thread, was_interrupted
from monarch._core._native.protocol import GATHER
from monarch._core.call.future import Future
from monarch._core.call.runs import each_of
from monarch._core.config import config
from monarch._core.process import stacks
from monarch._core.process.current import known_process, mark_exited, simulated_process
from monarch._core.process.loaded import loaded_module
from monarch._core.process.process import LocalProcess
from monarch._core.process.runtime_log import event

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal  # without the enumerations that the other one makes first

# What a stop of local procs may take (contract 6.4).
_HOST_TIMEOUT = 10.0
# How long lines that were printed may take to reach the console.
_OUTPUT_TIMEOUT = 3.0
# From the end of its drain to the kill of a proc, seconds.
_KILL_DELAY = 0.25
# Until everything is killed that owners should have stopped.
_STOP_TIMEOUT = 5.0
_KILL_TIMEOUT = 2.0
# The last words to other hosts, seconds.
_GOODBYE = 2.0
# The exit code of Ctrl-C.
_INTERRUPTED = 130
# How soon a Ctrl-C during the exit is noticed.
_LOOK_EVERY = 0.1


def register_exit(process: LocalProcess) -> None:
    import atexit

    atexit.register(run_at_exit, lambda: _at_exit(process))


def _at_exit(process: LocalProcess) -> None:
    """A Ctrl-C during it hurries it up and decides the exit code, but does not cut it off."""
    if os.getpid() != process.pid or known_process() is not process:
        _end_deferring()
        return
    fault = True
    try:
        from monarch._core.process.root_fault import act_at_exit, has_fault

        begin_leaving()
        act_at_exit(process)
        if _ended is not None:
            _ended.get()
        elif not process.closed:
            process.closed = True
            mark_exited()
            each = config.seconds("exit_grace") or 0.0
            _stop_everything(process, each, each)
        # What failed in the end, a clean-up for example, has nobody else to be told.
        _settle(process)
        act_at_exit(process)
        fault = has_fault()
        event("client.exit", fault=fault)
    except Exception as e:  # what failed, and was to be said, may be lost: no success
        sys.excepthook(type(e), e, e.__traceback__)
    finally:
        stacks.uninstall(process)
        begin_exit()
        _flush_streams()
        _end_deferring()
        # Threads that are parked hold the process for ever; the classes and modules of the user are to be torn down.
        process.owned.clear()
        process.failed_meshes.clear()
    # The other exit handlers and destructors still run.
    if fault:
        _end_with(1)
    elif was_interrupted():
        _end_with(_INTERRUPTED)


def _settle(process: LocalProcess) -> None:
    """Returns when the housekeeping thread has handled what has arrived."""
    from monarch._core.process.process import PING

    cell = process.native.cell(GATHER, 1, [process.uid])
    process.native.request(process.uid, PING, bytes(4), cell.slot)
    cell.wait(0, _KILL_TIMEOUT)


def _flush_streams() -> None:
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError, AttributeError):  # the interpreter reports it at its own flush
            continue


def _end_deferring() -> None:
    from monarch._core.process.root_fault import has_fault

    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        # Nothing is left that an exception could reach: from here on a Ctrl-C ends the process as it should, and the interrupt of a
        # fault, whose exit code is decided, does nothing.
        handler = signal.SIG_IGN if has_fault() else signal.SIG_DFL
    if handler is not None:
        signal.signal(signal.SIGINT, handler)


def _end_with(code: int) -> None:
    """The rest of the exit goes on, and its code is this one, whatever the script makes of an interrupt."""
    from monarch._core._native import set_exit_code

    set_exit_code(code)
    try:
        import ctypes

        # Running code anew, even none, makes the interpreter forget that it ends for an interrupt, which it would do by a signal.
        ctypes.pythonapi.PyRun_SimpleString(b"")
    except (ImportError, OSError):
        os._exit(code)


def _stop_everything(process: LocalProcess, each: float, whole: float) -> None:
    """Stops what the root owns; actors stop what they own. What is left after its time is killed."""
    import time

    from monarch._core.supervise.supervision import CLIENT_EXITS, stop_reason

    native = process.native
    faults = loaded_module("monarch._core.testing.fault")
    if faults is not None:
        faults.heal_all(process)
    native.flush_links(each)
    cleanup = config.seconds("cleanup_timeout") or 0.0
    stopping: list[Any] = []
    procs: set[int] = set()
    # A host that has not joined has nothing that could stop, and no answer.
    away: set[int] = set()
    joined: set[int] = set()
    for attached in process.attachments:
        for host, answer in zip(attached.ids, attached.cell.results(), strict=True):
            (away if answer is None else joined).add(host)
    # One that is attached again may have joined before.
    away -= joined
    absent: set[int] = set()
    for mesh in list(process.owned.values()):
        if mesh.owner.actor is not None:
            continue
        if not mesh.is_actors:
            procs.update(mesh.info.procs)
            if away:
                absent.update(proc for proc, agent in zip(mesh.info.procs, each_of(mesh.info.agents), strict=True) if agent in away)
        elif process.uid in mesh.info.procs:
            stopping.append(mesh.stop(CLIENT_EXITS, (each, whole)))
        mesh.info.stopped = mesh.info.stopped or CLIENT_EXITS
    text = stop_reason(CLIENT_EXITS, each, whole)
    end = time.monotonic() + whole + cleanup + _STOP_TIMEOUT
    left = [uid for uid in procs - absent if uid not in process.ended]
    elsewhere = native.cell(GATHER, len(left), left) if process.hosts is not None and left else None
    for uid in procs:
        native.stop_proc(uid, whole + _KILL_DELAY, text)
    native.stop_procs_of_guests(whole + _KILL_DELAY, text)
    for future in stopping:
        try:
            future.get(timeout=max(0.0, end - time.monotonic()))
        except Exception as e:  # reported to its owner, which is us
            del e
    while not (quiet := native.wait_quiet(_LOOK_EVERY)):
        if was_interrupted() or time.monotonic() > end:
            for uid, _ in native.alive_procs():
                native.kill_proc(uid)
            quiet = native.wait_quiet(_KILL_TIMEOUT)
            break
    if elsewhere is not None:
        while not elsewhere.wait(0, _LOOK_EVERY) and not was_interrupted() and time.monotonic() < end:
            continue
    if process.hosts is not None:
        process.hosts.close(_GOODBYE)
    native.close_agent(_OUTPUT_TIMEOUT)
    if process.console is not None:
        process.console.close()
    workspaces = loaded_module("monarch._core.sync.host_workspaces")
    if workspaces is not None:
        workspaces.close_for_agent(quiet)


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Stops everything that this process's client owns, then the client; begins at once.

    `host_timeout` bounds the stop of local procs (10 s if left out); `ValueError` unless it is finite and not negative.
    """
    if host_timeout is not None and not 0 <= host_timeout < float("inf"):
        raise ValueError(f"invalid host_timeout {host_timeout}: must be finite and not negative")
    simulated = simulated_process()
    if simulated is not None and simulated.universe is not None:
        return simulated.universe._shutdown()
    process = known_process()
    if process is None or process.closed or not process.is_client:
        return _ended or Future._value(None)
    return _begin(process, _HOST_TIMEOUT if host_timeout is None else host_timeout)


_ended: Future[None] | None = None


def _begin(process: LocalProcess, bound: float) -> Future[None]:
    global _ended
    process.closed = True
    cell = process.native.cell(0, 1)
    _ended = Future._of(cell, lambda c: None)
    mark_exited()

    def run() -> None:
        set_runtime_thread()
        each, whole = config.seconds("stop_grace_period") or 0.0, min(bound, config.seconds("stop_actor_timeout") or 0.0)
        _stop_everything(process, each, whole)
        cell.complete(0, 0, b"")

    try:
        process.start_thread(run)
    except RuntimeError:  # no thread is to be had
        run()
    return _ended
