"""The stacks of this process's threads, with the GIL or without."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from monarch._core.process.process import LocalProcess

# Calls faulthandler's handler, on the I/O thread and only while no thread gets the GIL. It is a real-time signal that neither the C library
# nor Python uses, and no other code sends.
_SIGNAL = 43
# The most frames of one thread; faulthandler writes as many.
_MOST_FRAMES = 100

_file: int | None = None


def install(process: LocalProcess) -> None:
    """Makes the process visible, and its stacks available even while some code keeps the GIL."""
    import faulthandler
    import os

    global _file
    if _file is None:
        _file = os.memfd_create("stacks", os.MFD_CLOEXEC)
    faulthandler.register(_SIGNAL, file=_file, all_threads=True, chain=False)
    process.native.set_inspection(process.name, _file, _SIGNAL)


def uninstall(process: LocalProcess) -> None:
    """Removes the handler before the interpreter does."""
    process.native.set_inspection(process.name, -1, 0)


def take(process: LocalProcess, **more: Any) -> bytes:
    """All threads with their names and frames, innermost first, and `more`, as JSON. Needs the GIL, which this thread has."""
    import json

    return json.dumps({"uid": f"{process.uid:016x}", "pid": process.pid, "threads": threads(), **more}).encode()


def threads() -> list[dict[str, Any]]:
    # `threading.enumerate` would need a lock that another thread may hold.
    threading = sys.modules.get("threading")
    known: dict[int, Any] = dict(threading._active) if threading is not None else {}
    found: list[dict[str, Any]] = []
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        thread = known.get(ident)
        name, native = (None, None) if thread is None else (thread.name, thread.native_id)
        found.append({"thread": ident, "name": name, "native": native, "ran": _ran(native), "frames": _frames(frame)})
    return found


def _ran(native: int | None) -> int | None:
    """Nanoseconds of a thread on a processor: of two looks with equal frames they separate work from a wait. None where not known."""
    try:
        with open(f"/proc/self/task/{native}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _frames(frame: FrameType | None) -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        found.append((code.co_filename, frame.f_lineno or 0, getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    return found


def parse_dump(text: str) -> list[dict[str, Any]]:
    """Converts the output of faulthandler to the form of `threads`."""
    import re

    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        head = re.match(r"(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\)", line)
        if head is not None:
            found.append({"thread": int(head[1], 16), "name": head[2], "frames": []})
            continue
        frame = re.match(r'  File "(.*)", line (\d+|\?\?\?) in (.*)', line)
        if frame is not None and found:
            found[-1]["frames"].append((frame[1], int(frame[2]) if frame[2].isdigit() else 0, frame[3]))
    return found
