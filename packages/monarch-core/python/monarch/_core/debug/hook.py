"""`breakpoint()` in an actor opens a session of the remote debugger; outside an actor it keeps its usual behaviour.

The hook is installed with the first actor of a process, unless another hook is installed, and costs nothing until it is called.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_VARIABLE = "PYTHONBREAKPOINT"
# Values of `PYTHONBREAKPOINT` that select pdb.
_PDB = ("", "pdb.set_trace")


def install() -> None:
    if sys.breakpointhook is sys.__breakpointhook__ and os.environ.get(_VARIABLE, "") in (*_PDB, "0"):
        sys.breakpointhook = _hook


def _hook(*args: Any, **options: Any) -> Any:
    chosen = os.environ.get(_VARIABLE, "")
    if chosen == "0":
        return None
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    if chosen not in _PDB:
        return sys.__breakpointhook__(*args, **options)
    actor = _actor()
    if actor is None:
        _ordinary(frame, *args, **options)
        return None
    from monarch._core.debug.session import stop_at

    # The last call of this frame: the debugger would stop in any later call.
    return stop_at(frame, actor, *args, **options)


def _actor() -> Any:
    from monarch._core.call.current_actor import current_local_actor
    from monarch._core.process.current import known_process

    return None if known_process() is None else current_local_actor()


def _ordinary(frame: FrameType, *, header: str | None = None, commands: Any = None) -> None:
    """The behaviour of `pdb.set_trace`, for a given frame instead of the caller's."""
    import pdb

    debugger = pdb.Pdb()
    if header is not None:
        debugger.message(header)
    if commands is None:
        debugger.set_trace(frame)
    else:
        debugger.set_trace(frame, commands=commands)  # pyright: ignore[reportCallIssue]
