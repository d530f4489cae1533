"""What the end of a forked proc leaves out: work on memory that the proc shares with its zygote.

Python's finalisation clears each module. A proc shares the pages of these modules with its zygote, and the kernel copies a page at the
first change. So the last exit handler of a proc takes those of the standard library out of `sys.modules`, where finalisation finds
modules. All others end as in any program: those of the program, of installed packages, and of Monarch, whose registries lead to objects of
the program. Such an object may need the builtins at its end, which finalisation clears last.

The process ends as soon as finalisation has ended the objects of the program. The rest frees memory of the interpreter itself, such as its
interned strings.

What always holds: the modules live until the process has ended, because `_kept` refers to itself and is frozen with the zygote's objects.
"""

from __future__ import annotations

import atexit
import os
import sys

from monarch._core._native import exit_when_cleared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

# Finalisation ends these two by itself.
_OF_THE_INTERPRETER = ("sys", "builtins")
_shared: dict[str, ModuleType] = {}
_kept: list[object] = [_shared]
_kept.append(_kept)
_known = 0
# The proc has ended in order: its exit code is 0.
is_orderly = False


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
    if is_orderly:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:  # Python reports that, and gives the exit code
            return
        exit_when_cleared()
