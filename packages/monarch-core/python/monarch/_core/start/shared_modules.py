"""The modules of the standard library that a forked proc has from its zygote, which its end leaves as they are.

Python's finalisation clears each module. A proc shares the pages of these modules with its zygote, and the kernel copies a page at the
first change: that was two thirds of the processor time of a proc's end. So the last exit handler of a proc takes these modules out of
`sys.modules`, and finalisation does not see them. All others end as in any program: those of the program, of installed packages, and of
Monarch, whose registries lead to objects of the program. Such an object may need the builtins at its end, which finalisation clears last.

What always holds: the modules live until the process has ended, because `_kept` refers to itself and is frozen with the zygote's objects.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

# Finalisation ends these two by itself.
_OF_THE_INTERPRETER = ("sys", "builtins")
_shared: dict[str, ModuleType] = {}
_kept: list[object] = [_shared]
_kept.append(_kept)
_known = 0


def prepare() -> None:
    """In the zygote, before other exit handlers are there: the first of them runs last."""
    atexit.register(_leave, os.getpid())


def share() -> None:
    """In the zygote, before each fork: the modules that it has now."""
    global _known
    if _known != len(sys.modules):
        _known = len(sys.modules)
        of_library = sys.stdlib_module_names.difference(_OF_THE_INTERPRETER)
        _shared.update({name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in of_library})


def _leave(zygote: int) -> None:
    if os.getpid() == zygote:
        return
    for name, module in _shared.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
