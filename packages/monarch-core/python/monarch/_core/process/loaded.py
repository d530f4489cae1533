"""Modules that are used only where something else has imported them."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def loaded_module(name: str) -> Any:
    """The module, or None if nothing has imported it. Where another thread is importing it, this waits: until then it lacks names."""
    if name not in sys.modules:
        return None
    __import__(name)
    return sys.modules[name]
