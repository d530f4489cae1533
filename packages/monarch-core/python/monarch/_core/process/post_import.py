"""Functions that run after the import of a module by other code."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def when_imported(name: str, action: Callable[[Any], object]) -> None:
    """Runs `action(module)` now if the module is loaded, else right after it has been."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.actions.setdefault(name, []).append(action)


def cancel(name: str) -> None:
    """Runs no action after the import of this module, if it is not loaded yet."""
    if _finder.actions.pop(name, None) is not None and not _finder.actions:
        sys.meta_path.remove(_finder)  # pyright: ignore[reportArgumentType]


class _Finder:
    """A finder that wraps the loader found by the other finders."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[Any], object]]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        actions = self.actions.pop(name, None)
        if actions is None:
            return None
        if not self.actions:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        finders: list[Any] = list(sys.meta_path)
        for finder in finders:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, actions)
                return spec
        return None


class _Loader:
    def __init__(self, loader: Any, actions: list[Callable[[Any], object]]) -> None:
        self._loader = loader
        self._actions = actions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # The module's attributes now show the original loader, so no code sees the wrapper.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for action in self._actions:
            action(module)


_finder = _Finder()
