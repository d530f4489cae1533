"""The declarations of other wheels in one entry-point group, loaded together, once, when one is first needed.

An entry point whose declarations are refused is left out, and the others apply.
"""

from __future__ import annotations

from _thread import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.config.entry_points import LoadedEntry


class Declarations:
    """The entry points of a group. `take` receives each loaded entry point and raises to refuse its declarations."""

    __slots__ = ("_group", "_lock", "_state", "_take")

    def __init__(self, group: str, take: Callable[[LoadedEntry], None]) -> None:
        self._group = group
        self._take = take
        self._lock = RLock()
        self._state = "core only"

    def load(self) -> None:
        """Loads the entry points. Declarations that have been loaded stay as they are."""
        if self._state == "all":
            return
        with self._lock:
            if self._state != "core only":  # a declaration that needs another one, in the thread that loads
                return
            self._state = "loading"
            try:
                from monarch._core.config.entry_points import BrokenEntry, leave_out, load_entries

                for found in load_entries(self._group):
                    if isinstance(found, BrokenEntry):
                        leave_out(found)
                        continue
                    try:
                        self._take(found)
                    except Exception as e:  # another wheel may declare anything
                        leave_out(found.broken(e))
            finally:
                self._state = "all"
