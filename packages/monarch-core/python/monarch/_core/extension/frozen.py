"""The base of values for other wheels: their fields are set once."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Frozen:
    """A value whose fields, those of its `__slots__`, cannot be set again. It equals another value of its class with equal fields."""

    __slots__ = ()

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: it is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted: it is immutable")

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._fields())


def _made(cls: type[Frozen], fields: tuple[Any, ...]) -> Frozen:
    made = cls.__new__(cls)
    for name, value in zip(cls.__slots__, fields, strict=True):
        object.__setattr__(made, name, value)
    return made
