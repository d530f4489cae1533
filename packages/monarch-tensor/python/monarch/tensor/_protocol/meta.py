"""Metadata of commands: what the program was doing when it issued them, for traces."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


class _Meta(threading.local):
    value: Any = None


_meta = _Meta()


@contextmanager
def set_meta(value: Any) -> Generator[None]:
    """Inside, commands of this thread have this value as their metadata: an inner value replaces the outer one.

    The `Simulator` shows it in traces, as the name of a phase or the number of a microbatch. Workers do not get it.
    """
    before, _meta.value = _meta.value, value
    try:
        yield
    finally:
        _meta.value = before


def get_meta() -> Any:
    """The metadata of the commands that this thread issues now; None outside of `set_meta`."""
    return _meta.value
