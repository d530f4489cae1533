"""Imports that messages cause: by one thread of the process at a time, and of whole modules.

Threads that import modules of one package at the same time come to wait for each other where these modules import each other: the import
of `torch` waits for `torch.fx`, which another thread is importing, and that import waits for its parent `torch`. Python resolves this by
giving one thread a module that lacks names, or by raising `_DeadlockError`. Actors of a proc unpickle their classes at the same time, each
on its own thread, so the case is a usual one here. A *turn* has the second thread begin when the first has all that it asked for.

A thread holds the turn while it imports, not while it runs constructors or `__setstate__`. A thread that is within an import already does
without it: others may wait for the locks of the modules it has begun. Code of a module may wait for another actor of the proc, which waits
for the turn; so the wait has an end, and the import then goes on as if there were no turn.
"""

from __future__ import annotations

import sys
from _pickle import Unpickler
from _thread import allocate_lock
from typing import Any

# Seconds. Imports of large packages from slow file systems take less.
IMPORT_TIMEOUT = 60.0

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class ImportTurn:
    """The right of one thread to import."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        # The modules that its holder imports.
        self._module = ""
        # A thread has waited for the holder in vain: no other one does.
        self._stuck = False

    def take(self, module: str) -> bool:
        """Whether the thread has it; False in a thread that is within an import, and where the wait has been in vain."""
        if _within_import():
            return False
        if not self._lock.acquire(timeout=0 if self._stuck else IMPORT_TIMEOUT):
            if not self._stuck:
                self._stuck = True
                import logging

                text = "the import of %s no longer waits for that of %s, which has taken %s s in another thread"
                logging.getLogger("monarch").warning(text, module, self._module, IMPORT_TIMEOUT)
            return False
        self._module = module
        return True

    def give_back(self) -> None:
        self._stuck = False
        self._lock.release()


class MessageUnpickler(Unpickler):
    """The C unpickler; the modules that a message names are imported in turn."""

    def find_class(self, module: str, name: str, /) -> Any:
        found = sys.modules.get(module)
        if found is None or _begun(found):
            import_module(module)
        if name == "subimport" and module == "cloudpickle.cloudpickle":
            return import_module
        return super().find_class(module, name)


def complete_module(name: str) -> Any:
    """The module if its import has ended; None before, and where nothing has imported it."""
    module = sys.modules.get(name)
    return None if module is None or _begun(module) else module


def import_module(name: str) -> Any:
    """The module, imported in turn where that has not been done."""
    module = complete_module(name)
    if module is not None:
        return module
    taken = _turn.take(name)
    try:
        __import__(name)
    finally:
        if taken:
            _turn.give_back()
    return sys.modules[name]


def _begun(module: Any) -> bool:
    """Whether the import of the module has not ended."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _within_import() -> bool:
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


_turn = ImportTurn()
