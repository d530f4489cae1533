"""Names and statements that work in Ray and asyncio, and not here: their errors name what to use."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

ADVERBS = "use .call(), .call_one(), .choose(), .stream() or .broadcast()"


class ForeignName:
    """A name of classes of Ray that a class of actors lacks."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        try:
            # A class behind this one in the order of bases may have the name.
            return getattr(super(self._owner, owner if instance is None else instance), self._name)  # pyright: ignore
        except AttributeError:
            pass
        hint = f": procs.spawn(NAME, {owner.__qualname__}, ...) spawns actors" if instance is None else ""
        raise AttributeError(f"actor class {owner.__qualname__} has no attribute {self._name!r}{hint}")


def no_async_for(kind: str, hint: str) -> Callable[[Any], NoReturn]:
    """The `__aiter__` of objects that `async for` cannot read."""

    def refuse(_: Any) -> NoReturn:
        raise TypeError(f"'async for' does not work with {kind}: {hint}")

    return refuse
