"""The pickler of torchmonarch 0.7 as far as programs reached into it: the dispatch table, in which they put reducers of their own.

What always holds: an entry of the table is a reducer of `monarch.extension.pickling.register`, so it holds for messages of this process.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any, NoReturn

from monarch.extension.pickling import register


class DispatchTable(UserDict[type[Any], Callable[[Any], Any]]):
    """Reducers by type. A type without one has the reduction of its own."""

    def __setitem__(self, key: type[Any], item: Callable[[Any], Any]) -> None:
        register(key, item)
        super().__setitem__(key, item)

    def __delitem__(self, key: type[Any]) -> None:
        super().__delitem__(key)
        register(key, None)

    def __missing__(self, key: type[Any]) -> Callable[[Any], Any]:
        return _own_reduction


class Pickler:
    """The place of the table. Objects of this class do not exist: `monarch.extension.pickling.dumps` pickles."""

    dispatch_table = DispatchTable()
    _dispatch_table = dispatch_table

    def __new__(cls, *_: object, **__: object) -> NoReturn:
        raise TypeError("this pickler of torchmonarch 0.7 does not exist here: write dumps and loads of monarch.extension.pickling")

    @classmethod
    def _init_torch_dispatch(cls) -> None:
        """Nothing: reducers of a program have precedence over the reduction of tensors at any time."""


def ensure_torch_pickle() -> None:
    """Nothing: tensors are pickled without a preparation."""


def _own_reduction(obj: Any) -> Any:
    return obj.__reduce_ex__(5)
