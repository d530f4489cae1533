"""The end of the client: silent, complete, with the right exit code."""

from __future__ import annotations

import os
import sys

from monarch._core._native import begin_exit, begin_leaving, run_at_exit, set_runtime_thread, was_interrupted
from monarch._core._native.protocol import GATHER
from monarch._core.call.future import Future, done_future, new_future
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
    import _signal as signal  # without the enumerations that `signal` creates first

# Seconds for a stop of local procs.
_HOST_TIMEOUT = 10.0
# Seconds for printed lines to reach the console.
_OUTPUT_TIMEOUT = 3.0
# Seconds from the end of a proc's drain to its kill.
_KILL_DELAY = 0.25
# Seconds until all processes are killed that owners should have stopped.
_STOP_TIMEOUT = 5.0
_KILL_TIMEOUT = 2.0
# Seconds for the last messages to other hosts.
_GOODBYE = 2.0
# The exit code of Ctrl-C.
_INTERRUPTED = 130
# Seconds between two checks for a Ctrl-C during the exit.
_LOOK_EVERY = 0.1


def register_exit(process: LocalProcess) -> None:
    import atexit

    atexit.register(run_at_exit, lambda: _at_exit(process))


def _at_exit(process: LocalProcess) -> None:
    """Ends the client at the exit of the script. A Ctrl-C meanwhile shortens it and decides the exit code, but does not abort it."""
    if os.getpid() != process.pid or known_process() is not process:
        _end_deferring()
        return
    fault = True
    try:
        from monarch._core.process.root_fault import act_at_exit, has_fault, repeat_at_exit

        begin_leaving()
        act_at_exit(process)
        if _ended is not None:
            _ended.get()
        elif not process.closed:
            process.closed = True
            mark_exited()
            each = config.seconds("exit_grace") or 0.0
            _stop_everything(process, each, each)
        # Failures of the last steps, such as clean-ups, have no other owner: the hook gets them now.
        _settle(process)
        act_at_exit(process)
        _report_unread(process)
        repeat_at_exit()
        fault = has_fault()
        event("client.exit", fault=fault)
    except Exception as e:  # a failure may not have been reported, so the exit is no success
        sys.excepthook(type(e), e, e.__traceback__)
    finally:
        stacks.uninstall(process)
        begin_exit()
        _flush_streams()
        _end_deferring()
        # Parked threads hold the process for ever, but the classes and modules of the user must be torn down.
        process.meshes.owned.clear()
        process.meshes.forget_failed()
    # The other exit handlers and destructors still run.
    if fault:
        _end_with(1)
    elif was_interrupted():
        _end_with(_INTERRUPTED)


def _report_unread(process: LocalProcess) -> None:
    """Writes a line for each exception that the script holds in a Future and has not looked at."""
    for answer in process.native.take_unread_errors():
        from monarch._core.call.answer import report_unread

        report_unread(answer)


def _settle(process: LocalProcess) -> None:
    """Returns when the housekeeping thread has handled all events that have arrived."""
    from monarch._core.process.process import PING

    cell = process.native.cell(GATHER, 1, [process.uid])
    process.native.request(process.uid, PING, bytes(4), cell.slot)
    cell.wait(0, _KILL_TIMEOUT)


def _flush_streams() -> None:
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError, AttributeError):  # the interpreter reports the error at its own flush
            continue


def _end_deferring() -> None:
    from monarch._core.process.root_fault import has_fault

    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        # No code is left that could handle an exception. From now on a Ctrl-C ends the process. After a fault, whose exit code is decided,
        # an interrupt has no effect.
        handler = signal.SIG_IGN if has_fault() else signal.SIG_DFL
    if handler is not None:
        signal.signal(signal.SIGINT, handler)


def _end_with(code: int) -> None:
    """Sets the exit code. The remaining exit continues, however the script handles an interrupt."""
    from monarch._core._native import set_exit_code

    set_exit_code(code)
    try:
        import ctypes

        # Running any code, even none, makes the interpreter forget an interrupt, for which it would end by a signal.
        ctypes.pythonapi.PyRun_SimpleString(b"")
    except (ImportError, OSError):
        os._exit(code)


def _stop_everything(process: LocalProcess, each: float, whole: float) -> None:
    """Stops the meshes that the root owns; actors stop their own. Processes that remain after the time are killed."""
    import time

    from monarch._core.supervise.supervision import CLIENT_EXITS

    native = process.native
    faults = loaded_module("monarch._core.testing.fault")
    if faults is not None:
        faults.heal_all(process)
    native.flush_links(each)
    cleanup = config.seconds("cleanup_timeout") or 0.0
    stopping: list[Any] = []
    procs: set[int] = set()
    # A host that has not joined has nothing to stop, and does not answer.
    away: set[int] = set()
    joined: set[int] = set()
    for attached in process.hosts.attachments:
        for host, answer in zip(attached.ids, attached.cell.results(), strict=True):
            (away if answer is None else joined).add(host)
    # A host that was attached several times may have joined before.
    away -= joined
    absent: set[int] = set()
    for mesh in list(process.meshes.owned.values()):
        if mesh.owner.actor is not None:
            continue
        if not mesh.is_actors:
            procs.update(mesh.info.procs)
            if away:
                absent.update(proc for proc, agent in zip(mesh.info.procs, each_of(mesh.info.agents), strict=True) if agent in away)
        elif process.uid in mesh.info.procs:
            stopping.append(mesh.stop(CLIENT_EXITS, (each, whole)))
        mesh.info.stopped = mesh.info.stopped or CLIENT_EXITS
    end = time.monotonic() + whole + cleanup + _STOP_TIMEOUT
    left = [uid for uid in procs - absent if uid not in process.peers.ended]
    elsewhere = native.cell(GATHER, len(left), left) if process.hosts.native is not None and left else None
    for uid in procs:
        native.stop_proc(uid, whole + _KILL_DELAY, (each, whole), CLIENT_EXITS)
    native.stop_external_procs(whole + _KILL_DELAY, (each, whole), CLIENT_EXITS)
    for future in stopping:
        try:
            future.get(timeout=max(0.0, end - time.monotonic()))
        except Exception as e:  # the owner, which is this process, has the failure
            del e
    while not (quiet := native.wait_idle(_LOOK_EVERY)):
        if was_interrupted() or time.monotonic() > end:
            for uid, _ in native.alive_procs():
                native.kill_proc(uid)
            quiet = native.wait_idle(_KILL_TIMEOUT)
            break
    if elsewhere is not None:
        while not elsewhere.wait(0, _LOOK_EVERY) and not was_interrupted() and time.monotonic() < end:
            continue
    if process.hosts.native is not None:
        process.hosts.native.close(_GOODBYE)
    native.close_agent(_OUTPUT_TIMEOUT)
    if process.display.console is not None:
        process.display.console.close()
    workspaces = loaded_module("monarch._core.sync.host_workspaces")
    if workspaces is not None:
        workspaces.close_for_agent(quiet)


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Stops everything that this process's client owns, then the client. The stop begins with this call.

    Args:
        host_timeout: seconds for the stop of local procs; None is 10 s.

    Returns:
        A Future that is done when the client has ended.

    Raises:
        ValueError: `host_timeout` is negative or not finite.

    ```python
    from monarch.actor import shutdown_context, this_host

    procs = this_host().spawn_procs({"procs": 1})
    procs.initialized.get()
    shutdown_context().get()
    ```
    """
    if host_timeout is not None and not 0 <= host_timeout < float("inf"):
        raise ValueError(f"invalid host_timeout {host_timeout}: must be finite and not negative")
    simulated = simulated_process()
    if simulated is not None and simulated.execution.world is not None:
        return simulated.execution.world.shutdown()
    process = known_process()
    if process is None or process.closed or not process.is_client:
        return _ended or done_future(None)
    return _begin(process, _HOST_TIMEOUT if host_timeout is None else host_timeout)


_ended: Future[None] | None = None


def _begin(process: LocalProcess, bound: float) -> Future[None]:
    global _ended
    process.closed = True
    cell = process.native.cell(0, 1)
    _ended = new_future(cell, lambda c: None)
    mark_exited()

    def run() -> None:
        set_runtime_thread()
        each, whole = config.seconds("stop_grace_period") or 0.0, min(bound, config.seconds("stop_actor_timeout") or 0.0)
        _stop_everything(process, each, whole)
        cell.complete(0, 0, b"")

    try:
        process.execution.start_thread(run)
    except RuntimeError:  # no thread can be started
        run()
    return _ended
