"""Ctrl-C while a job is being submitted, at chosen points: where the backend's own functions are called."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from types import FrameType
from typing import Any

_LIBRARY = (sysconfig.get_path("stdlib"), "<")


class Interrupted(KeyboardInterrupt):
    """The Ctrl-C of the suite."""


def calls(action: Callable[[], object]) -> int:
    """How many functions the action calls, those of the standard library left out: each is a point for `interrupted_at`."""
    return _profiled(action, None)


def interrupted_at(point: int, action: Callable[[], object]) -> bool:
    """Runs the action with a Ctrl-C at the call of that number; False where it was over before, or went on in spite of it."""
    try:
        _profiled(action, point)
    except Interrupted:
        return True
    return False


def _profiled(action: Callable[[], object], point: int | None) -> int:
    seen = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal seen
        # Python drops what a finalizer raises: an interrupt there would interrupt nothing.
        if event != "call" or frame.f_code.co_name == "__del__" or frame.f_code.co_filename.startswith(_LIBRARY):
            return
        seen += 1
        if seen == point:
            sys.setprofile(None)
            raise Interrupted

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
    return seen
