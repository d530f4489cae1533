"""The current process: at most one, started on first need; in a `Universe`, the simulated one."""

from __future__ import annotations

import os
from _contextvars import ContextVar
from _thread import RLock

from monarch._core.process.forked_child import become_child, watch
from monarch._core.process.provided import provided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import Process as NativeProcess
    from monarch._core.process.parts import World
    from monarch._core.process.process import LocalProcess

_lock = RLock()
_process: LocalProcess | None = None
_forked_from = 0
# The number of simulated worlds in this process, and the simulated process of this context.
_universes = 0
_simulated: ContextVar[LocalProcess | None] = ContextVar("monarch_simulated", default=None)


def simulated_process() -> LocalProcess | None:
    """The process of a `Universe` that this code belongs to."""
    return _simulated.get() if _universes else None


def simulated_world() -> tuple[LocalProcess | None, World | None]:
    """The simulated process of this code, and its world."""
    process = simulated_process()
    return (None, None) if process is None else (process, process.execution.world)


def enter_simulated(process: LocalProcess | None) -> None:
    """Makes this context belong to the simulated process; None: to no universe."""
    _simulated.set(process)


def count_universes(more: int) -> None:
    global _universes
    with _lock:
        _universes += more


def current_process() -> LocalProcess:
    """This process. A script without a client starts one. In a `Universe`, the simulated process."""
    if _universes:
        process = _simulated.get()
        if process is not None and not _forked_from:
            return process
    process = _process
    if process is not None:
        return process
    refuse_in_child()
    with _lock:
        return _process or provided.start_client()


def refuse_in_child() -> None:
    """`RuntimeError` in a fork of a process that was using Monarch."""
    if _forked_from:
        raise RuntimeError(
            f"process {os.getpid()} was forked from process {_forked_from}, which was using Monarch: "
            "use the multiprocessing start method `spawn` or `forkserver`"
        )


def known_process() -> LocalProcess | None:
    """This process if it has a runtime."""
    return _process


def set_process(process: LocalProcess) -> None:
    global _process
    _process = process
    watch()
    os.register_at_fork(after_in_child=_forget_in_child)


def _forget_in_child() -> None:
    global _process
    process = _process
    if process is not None:
        _process = None
        forked(process.pid, [process], process.native)


def forked(parent: int, processes: list[LocalProcess], native: NativeProcess | None = None) -> None:
    """Makes this process a fork of `parent`, in which `processes` lived, on the runtime `native`."""
    global _forked_from
    _forked_from = _forked_from or parent
    become_child(_forked_from, processes, native)


def begin_with(uid: int) -> LocalProcess:
    """Starts the client of this process with an identity that other processes know already; `RuntimeError` if it has another."""
    process = known_process()
    if process is None and not _forked_from:
        with _lock:
            process = _process or provided.start_client(uid)
    process = process or current_process()
    if process.uid != uid:
        raise RuntimeError("this process has an identity already: begin to be a worker before anything else is done with monarch")
    return process


_exited = False


def mark_exited() -> None:
    global _exited, _process
    _exited = True


def has_exited() -> bool:
    return _exited
