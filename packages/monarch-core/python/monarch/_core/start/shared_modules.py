"""The modules that a forked proc has from its zygote, which its end leaves as they are.

Python's finalisation clears each module. A proc shares the pages of these modules with its zygote, and the kernel copies a page at the
first change: that was four fifths of the processor time of a proc's end. So the last exit handler of a proc takes these modules out of
`sys.modules`, and finalisation does not see them. Modules that the program has imported, its `__main__`, and classes that were sent by
value end as in any program.

What always holds: the modules live until the process has ended, because `_kept` refers to itself and is frozen with the zygote's objects.
"""

from __future__ import annotations

import atexit
import os
import sys

from monarch._core.pickle import class_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

# Finalisation ends these two by itself.
_OF_THE_INTERPRETER = ("sys", "builtins")
_shared: dict[str, ModuleType] = {}
_kept: list[object] = [_shared]
_kept.append(_kept)


def prepare() -> None:
    """In the zygote, before other exit handlers are there: the first of them runs last."""
    atexit.register(_leave, os.getpid())


def share() -> None:
    """In the zygote, before each fork: all modules that it has now."""
    if len(_shared) != len(sys.modules):
        _shared.update(sys.modules)


def _leave(zygote: int) -> None:
    if os.getpid() == zygote:
        return
    class_cache.forget()
    for name, module in _shared.items():
        if name not in _OF_THE_INTERPRETER and sys.modules.get(name) is module:
            del sys.modules[name]
