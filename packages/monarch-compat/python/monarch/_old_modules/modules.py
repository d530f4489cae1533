"""The modules of torchmonarch 0.7, made from the tables `homes` and `gone`: their names are aliases that are resolved on first use.

It imports a module of another wheel only when a name of it is used. What always holds: a value is the public object itself, never a copy;
one old path warns once in a process, where it is used; a name without a home raises `ImportError` with what to write instead.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING

from . import gone, homes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# The page with all rows of the tables.
PAGE = "docs/migration.md"


def names(module: str) -> Iterable[str]:
    """The old names of a module that have a home."""
    return homes.names(module)


def value(module: str, name: str) -> object:
    """The object that the old name `module.name` stands for; for `monarch`, its public modules as well.

    `ImportError` for a name without a home, with what to write instead; `AttributeError` for a name that torchmonarch 0.7 did not have.
    """
    home = homes.home(module, name)
    if home is None:
        if homes.is_module(f"{module}.{name}") or f"{module}.{name}" in homes.SOURCES:
            return importlib.import_module(f"{module}.{name}")
        advice = gone.advice(module, name)
        if advice is not None:
            raise ImportError(f"{module}.{name} of torchmonarch 0.7 does not exist here: {advice} ({PAGE})", name=module)
        if module == "monarch" and (part := _part(name)) is not None:
            return part
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules.get(module))
    place, attribute = home
    found = importlib.import_module(place)
    if attribute:
        found = getattr(found, attribute)
    new = homes.INSTEAD.get(place) or (f"{place}.{attribute}" if attribute else place)
    # The frames above: the `__getattr__` of the module, and the code that uses the name.
    warnings.warn(f"{module}.{name} is an import path of torchmonarch 0.7: write {new}", DeprecationWarning, stacklevel=3)
    # The next use does not come here.
    setattr(sys.modules[module], name, found)
    return found


def spec(name: str) -> ModuleSpec | None:
    """How an old module is made; None for a module that torchmonarch 0.7 did not have. `ModuleNotFoundError` for one without a home."""
    if name in homes.SOURCES:
        return spec_from_file_location(name, os.path.join(os.path.dirname(os.path.abspath(__file__)), homes.SOURCES[name]))
    if homes.is_module(name):
        return ModuleSpec(name, _Loader, is_package=True)  # pyright: ignore[reportArgumentType]
    advice = gone.module_advice(name)
    if advice is not None:
        raise ModuleNotFoundError(f"{name} of torchmonarch 0.7 does not exist here: {advice} ({PAGE})", name=name)
    return None


def _part(name: str) -> types.ModuleType | None:
    """The module `monarch.name`: `import monarch` makes `monarch.actor` usable, as in torchmonarch 0.7."""
    if name.startswith("_"):
        return None
    try:
        return importlib.import_module(f"monarch.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"monarch.{name}":
            raise
        return None


class OldModule(types.ModuleType):
    """A module of torchmonarch 0.7."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        return value(self.__name__, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *names(self.__name__)})

    def __reduce__(self) -> tuple[Callable[[str], types.ModuleType], tuple[str]]:
        """Pickles by name, as cloudpickle does it for modules of the exact type: an actor of `__main__` may refer to the module."""
        return importlib.import_module, (self.__name__,)


class _Loader:
    @staticmethod
    def create_module(spec: ModuleSpec) -> types.ModuleType:
        module = OldModule(spec.name, f"Names of {spec.name} in torchmonarch 0.7, as aliases of public names.")
        # `from MODULE import *` takes the names with a home.
        vars(module)["__all__"] = [name for name in names(spec.name) if not name.startswith("_")]
        return module

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        """Nothing is executed: names are resolved on first use."""
