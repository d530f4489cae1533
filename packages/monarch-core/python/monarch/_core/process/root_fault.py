"""Failures that reach the root: the fault hook, and the end of a script that has an unhandled failure.

The housekeeping thread decides whether the script has seen a failure. The hook is the user's code and may block, or call actors whose
messages wait for the housekeeping thread: it runs on a thread of its own, one failure after another.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock

from monarch._core.process import interrupt
from monarch._core.process.forked_child import leave_if_child
from monarch._core.process.recent import Recent
from monarch._core.process.runtime_log import ERROR, INFO, failure_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from monarch._core.errors.failure import MeshFailure
    from monarch._core.process.parts import Owned
    from monarch._core.process.process import LocalProcess


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Called in the client for each failure that no owner handled, on a thread of its own. The default ends the program with exit code 1.

    Set `monarch.actor.unhandled_fault_hook` to another function to decide otherwise.

    Args:
        failure: the failure; `failure.report()` is the text for the user.

    Raises:
        SystemExit: the default: the program ends with exit code 1. A function that returns drops the failure.

    ```python
    import threading

    import monarch.actor
    from monarch.actor import Actor, MeshFailure, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def fail(self) -> None:
            raise ValueError("no data")

    failed: list[MeshFailure] = []
    seen = threading.Event()

    def hook(failure: MeshFailure) -> None:
        failed.append(failure)
        seen.set()

    monarch.actor.unhandled_fault_hook = hook
    with this_host().spawn_procs({"procs": 1}) as procs:
        procs.spawn("worker", Worker).fail.broadcast()
        seen.wait()
    assert "no data" in failed[0].report()
    ```
    """
    sys.exit(1)


_lock = allocate_lock()
# (mesh uid, rank) of failures that the script has seen as an exception.
_seen = Recent()
# Processes whose ends the script has seen: later spawns on them fail for the same reason.
_seen_procs = Recent()
# Failures for which the script still holds an exception that it has not read.
_held: dict[tuple[int, int], MeshFailure] = {}
_fatal = False
# The failure that ends the program: every later call raises it.
fatal_failure: MeshFailure | None = None
# Failures for which the hook must still be called, in order, and the lock held by the thread that calls it.
_pending: list[tuple[LocalProcess, MeshFailure]] = []
_calling = allocate_lock()
# The number of failures for the hook so far, and that number when an exit last waited for the hook in vain.
_asked = 0
_given_up = -1
# Seconds after the spawn in which the first call to a mesh may come: `spawn(...).method.call_one().get()` is one statement.
FIRST_CALL_TIME = 0.5
# Failures of meshes that have just been spawned.
_first_calls: list[FirstCall] = []
# Seconds that an exit waits for the hook.
_HOOK_TIMEOUT = 3.0


def has_fault() -> bool:
    """Whether the program ends because of an unhandled failure."""
    return _fatal


def current_hook() -> Any:
    module = sys.modules.get("monarch.actor")
    return getattr(module, "unhandled_fault_hook", unhandled_fault_hook)


def failure_seen(mesh: int, failure: MeshFailure, others: Iterable[int] = ()) -> None:
    """Records that a call of the script has raised this failure. The ranks `others` have not answered the call either."""
    with _lock:
        for rank in (*failure.crashed_ranks, *others):
            _seen.add((mesh, rank))
            if _held.pop((mesh, rank), None) is not None:
                failure_event("failure.handled", INFO, failure, "<root>")


def root_failed(process: LocalProcess, failure: MeshFailure) -> None:
    """Handles a failure of a mesh that the root owns. Called on the housekeeping thread."""
    if process.execution.world is not None:
        process.execution.world.root_failed(failure)
        return
    if current_hook() is not unhandled_fault_hook:
        _call(process, failure)
        return
    owned = next((m for m in list(process.meshes.owned.values()) if m.info.unique_name == failure.mesh_name), None)
    info = None if owned is None else owned.info
    key = (info.uid if info is not None else 0, failure.crashed_ranks[0] if failure.crashed_ranks else -1)
    with _lock:
        if key in _seen or (info is not None and key[1] >= 0 and info.procs[key[1]] in _seen_procs):
            failure_event("failure.handled", INFO, failure, "<root>")
            return
        _held[key] = failure
    until = _first_call_until(process, owned)
    if until is not None:
        _first_calls.append(FirstCall(process, key, until))
    elif not _may_be_seen(process, *key):
        _act(process, key)


def _first_call_until(process: LocalProcess, owned: Owned | None) -> float | None:
    """The time until which the first call may come, if the mesh has just been spawned."""
    until = 0.0 if owned is None else owned.since + FIRST_CALL_TIME
    return until if process.execution.now() < until else None


class FirstCall:
    """Watches a failure of a mesh that has just been spawned: a call to it may come, and raise the failure."""

    __slots__ = ("key", "process", "until")

    def __init__(self, process: LocalProcess, key: tuple[int, int], until: float) -> None:
        self.process = process
        self.key = key
        self.until = until

    def over(self) -> bool:
        if self.key in _held:
            if self.left(self.process.execution.now()) > 0:
                return False
            if not _may_be_seen(self.process, *self.key):
                _act(self.process, self.key)
        return True

    def left(self, now: float) -> float:
        return self.until - now


def first_calls() -> list[FirstCall]:
    """Removes and returns the failures to watch that were added since the last call."""
    taken = _first_calls[:]
    del _first_calls[: len(taken)]
    return taken


def _may_be_seen(process: LocalProcess, mesh: int, rank: int) -> bool:
    """Whether the script holds a call to this mesh, or to the mesh of procs under it, whose `initialized` raises the same failure."""
    native = process.native
    if native.failure_may_be_seen(mesh):
        return True
    owned = process.meshes.owned.get(mesh)
    if owned is None or not owned.is_actors:
        return False
    proc = owned.info.procs[rank]
    below = [m.info for m in list(process.meshes.owned.values()) if not m.is_actors]
    return any(proc in info.procs and native.failure_may_be_seen(info.uid) for info in below)


def was_seen(key: tuple[int, int]) -> bool:
    return key in _seen


def forget_meshes(meshes: set[int]) -> None:
    """Forgets the seen failures of meshes of a universe that has ended."""
    with _lock:
        _seen.discard_all([key for key in _seen if key[0] in meshes])


def proc_failure_seen(process: LocalProcess, proc: int) -> None:
    """Records that the script has got the end of this process as an exception, which covers all meshes that the root has there."""
    with _lock:
        _seen_procs.add(proc)
        for mesh in list(process.meshes.owned.values()):
            for rank, uid in enumerate(mesh.info.procs):
                if uid == proc:
                    _seen.add((mesh.info.uid, rank))
                    held = _held.pop((mesh.info.uid, rank), None)
                    if held is not None:
                        failure_event("failure.handled", INFO, held, "<root>")


def abandoned(process: LocalProcess) -> None:
    """Acts on failures whose last chance to be seen by the script may be gone."""
    if process.execution.world is not None:  # a universe checks its failures when it ends
        return
    for key in list(_held):
        # Failures of meshes that have just been spawned are still watched.
        if _first_call_until(process, process.meshes.owned.get(key[0])) is None and not _may_be_seen(process, *key):
            _act(process, key)


def act_at_exit(process: LocalProcess) -> None:
    """Calls the hook for failures that the script has not seen at its end. No thread can be interrupted any more."""
    global _given_up
    interrupt.leave()
    with _lock:
        left = list(_held.values())
        _held.clear()
    for failure in left:
        _call(process, failure)
    # A hook that does not return decides nothing, and the exit waits for it once. Another failure means another wait.
    asked = _asked
    if _calling.acquire(timeout=0.0 if asked == _given_up else _HOOK_TIMEOUT):
        _calling.release()
    else:
        _given_up = asked


def repeat_at_exit() -> None:
    """Repeats the first line of the failure for which the script was interrupted, if the traceback of a `KeyboardInterrupt` follows it."""
    if fatal_failure is not None and getattr(sys, "last_type", None) is KeyboardInterrupt:
        from monarch._core.errors.complaint import complain
        from monarch._core.errors.text import interrupted_by_failure

        complain(interrupted_by_failure(fatal_failure.report()))


def _act(process: LocalProcess, key: tuple[int, int]) -> None:
    with _lock:
        failure = _held.pop(key, None)
    if failure is not None:
        _call(process, failure)


def _call(process: LocalProcess, failure: MeshFailure) -> None:
    global _asked
    with _lock:
        _asked += 1
        _pending.append((process, failure))
        if not _calling.acquire(False):
            return
    try:
        process.execution.start_thread(_call_pending)
    except (RuntimeError, MemoryError):  # no thread can be started: the hook runs on this thread, although it may block
        _call_pending()


def _call_pending() -> None:
    from monarch._core._native import set_runtime_thread

    set_runtime_thread()
    while True:
        with _lock:
            if not _pending or _fatal:
                _calling.release()
                return
            process, failure = _pending.pop(0)
        try:
            current_hook()(failure)
            leave_if_child()
            failure_event("failure.handled", INFO, failure, "<root>")
        except BaseException as e:
            leave_if_child(e)
            _report(process, failure, e)
            if not interrupt.is_leaving():
                interrupt.interrupt_main_thread() if process.display.cells is None else process.display.cells.interrupt()


def _report(process: LocalProcess, failure: MeshFailure, error: BaseException) -> None:
    global _fatal, fatal_failure
    import time

    from monarch._core.errors.complaint import complain
    from monarch._core.errors.text import fault_hook_failed, fill

    head = fill("unhandled_at_root", host=process.host, pid=process.pid, time=time.strftime("%Y-%m-%d %H:%M:%S"))
    report = failure.report()
    if not isinstance(error, (SystemExit, KeyboardInterrupt)):  # the exception is an error and no deliberate exit
        report += "\n" + fault_hook_failed(error)
    if process.display.cells is None:
        _fatal = True
        fatal_failure = failure
    if process.display.cells is None or interrupt.is_leaving():
        complain(f"{head}\n{report}")
    else:
        # An interactive shell continues.
        process.display.cells.show(head, report)
    failure_event("failure.unhandled", ERROR, failure, "<root>")
