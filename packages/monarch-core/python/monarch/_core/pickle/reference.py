"""The decision whether a class or function is sent by reference, or by value because the other side could not import it."""

from __future__ import annotations

import sys
from typing import Any

from monarch._core.pickle.imports import complete_module

FunctionType = type(lambda: None)

_MAIN = frozenset({"__main__", "__mp_main__"})
# Inspected modules that are no notebooks.
_ordinary: set[str] = {"builtins"}


def goes_by_value(obj: Any) -> bool:
    """Whether the module of a class or function cannot be imported on the other side, or is registered to go by value."""
    module = getattr(obj, "__module__", None)
    return type(module) is not str or module_by_value(module)


def is_in_main(obj: Any) -> bool:
    """Whether `obj` is a class or function that `__main__` has under the name of `obj`."""
    if not isinstance(obj, type | FunctionType) or getattr(obj, "__module__", None) != "__main__":
        return False
    found: Any = sys.modules["__main__"]
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def module_by_value(name: str) -> bool:
    """Whether objects defined in the module of this name are sent by value."""
    if name in _MAIN:
        return True
    registered = registered_by_value()
    if registered:
        parent = name
        while parent:
            if parent in registered:
                return True
            parent = parent.rpartition(".")[0]
    return name not in _ordinary and _is_notebook(name)


def registered_by_value() -> set[str]:
    """Names of the modules that the user registered with cloudpickle."""
    loaded = complete_module("cloudpickle.cloudpickle")
    if loaded is None:
        return set()
    found = getattr(loaded, "_PICKLE_BY_VALUE_MODULES", None)  # without the copy that the public function makes
    return loaded.list_registry_pickle_by_value() if found is None else found


def _is_notebook(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    if type(file) is str and file.endswith(".ipynb"):
        return True
    _ordinary.add(name)
    return False
