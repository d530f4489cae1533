"""Modules that are used only if other code has imported them."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def loaded_module(name: str) -> Any:
    """The module, or None if no code has imported it. Waits for an import in progress on another thread: until then the module is
    incomplete.
    """
    if name not in sys.modules:
        return None
    __import__(name)
    return sys.modules[name]
