"""The last finder of modules below `monarch`: it finds portions of late folders, and the modules of torchmonarch 0.7 (`_old_modules`).

It needs `sys.path`, and loads the tables only when a module is asked for that no wheel has. What always holds: a module that a wheel has is
found before this finder is asked, and the finder of monarch-core that names missing wheels is asked after it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from collections.abc import MutableSequence, Sequence
    from importlib.machinery import ModuleSpec


# The module of monarch-core whose import adds its finder.
_CORE = "monarch.actor"


def extend(path: MutableSequence[str]) -> None:
    """Adds the portions of the package `monarch` in the folders of `sys.path` to the package path."""
    for entry in sys.path:
        portion = os.path.join(entry, "monarch")
        if portion not in path and os.path.isdir(portion):
            path.append(portion)


class OldPaths:
    """The finder; it has no state."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None) -> ModuleSpec | None:
        """The module `name`; `ModuleNotFoundError` with advice for one of torchmonarch 0.7 that does not exist here."""
        if not name.startswith("monarch."):
            return None
        if name.count(".") == 1 and (found := _late_portion(name)) is not None:
            return found
        from ._old_modules.modules import spec

        found = spec(name)
        if found is None and name.count(".") == 1 and name != _CORE:
            _name_missing_wheels()
        return found


def _name_missing_wheels() -> None:
    """Adds the finder of monarch-core that names missing wheels, which is asked next; programs may not have imported monarch-core yet."""
    from importlib import import_module

    try:
        import_module(_CORE)
    except ModuleNotFoundError as error:  # monarch-compat alone
        if error.name != _CORE:
            raise


def _late_portion(name: str) -> ModuleSpec | None:
    """The module in a portion of a folder that was added to `sys.path` after the first import of `monarch`."""
    from importlib.machinery import PathFinder

    path = sys.modules["monarch"].__path__
    before = len(path)
    extend(path)
    return PathFinder.find_spec(name, path[before:]) if len(path) > before else None


# The finder that names missing wheels raises, so it stays behind this one.
_place = next(
    (number for number, finder in enumerate(sys.meta_path) if getattr(finder, "__name__", "") == "MissingWheels"), len(sys.meta_path)
)
sys.meta_path.insert(_place, OldPaths)  # pyright: ignore[reportArgumentType]
