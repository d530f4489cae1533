"""A driver's shared library: its functions return a number, 0 if all went well."""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, c_char_p, c_int
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Signature = tuple[Any, ...]


class DriverError(Exception):
    """A call of a driver went wrong; the text has its name and that of the error."""


class Library:
    """The first of `names` that can be loaded; one that the process has loaded already goes first. `maker` is whose driver it is.

    `DriverError` if there is none, or if it lacks one of `functions`; what `optional` names fails when it is called.
    """

    def __init__(
        self, names: Sequence[str], maker: str, functions: Mapping[str, Signature], optional: Mapping[str, Signature] | None = None
    ) -> None:
        self.name, self._loaded = _load(names, maker)
        self._functions: dict[str, Callable[..., int]] = {}
        for name, types in {**functions, **(optional or {})}.items():
            function = getattr(self._loaded, name, None)
            if function is not None:
                function.argtypes, function.restype = types, c_int
                self._functions[name] = function
            elif name in functions:
                raise self._too_old(name)

    def call(self, name: str, *arguments: Any) -> int:
        function = self._functions.get(name)
        if function is None:
            raise self._too_old(name)
        return function(*arguments)

    def text(self, name: str, code: int) -> str:
        """Of a function that returns one."""
        return (CFUNCTYPE(c_char_p, c_int)((name, self._loaded))(code) or b"error").decode()

    def _too_old(self, name: str) -> DriverError:
        return DriverError(f"{self.name} has no {name}: the driver is too old")


def _load(names: Sequence[str], maker: str) -> tuple[str, ctypes.CDLL]:
    # Two copies of a driver's runtime in one process would not know each other's memory, and torch has its own.
    for mode in (os.RTLD_NOLOAD | os.RTLD_NOW, os.RTLD_NOW):
        for name in names:
            try:
                return name, ctypes.CDLL(name, mode=mode)
            except OSError:
                continue
    raise DriverError(f"{names[0]} cannot be loaded: no {maker} driver")
