"""Objects that are constructed on each rank, and whose methods are called from the controller."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from monarch.tensor._functions.remote_function import Remote, propagated
from monarch.tensor._protocol.opaque_ref import OpaqueRef
from monarch.tensor._worker import objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import Future


def _object(constructor: Any, args: Any, kwargs: Any) -> OpaqueRef:
    return OpaqueRef()


_construct = Remote(objects.construct, _object)
_call = Remote(objects.call_method)
_call_inspected = Remote(objects.call_method, "inspect")


class OpaqueObject(OpaqueRef):
    """An object of each rank of the active mesh, constructed there.

    The first argument is a class or function, or its import path on the workers; the others are those of the call. Mesh tensors among them
    arrive as the tensors of the rank. A construction that fails poisons what is computed with the object.
    """

    def __init__(self, constructor: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if not callable(constructor) and not isinstance(constructor, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{type(self).__name__}({constructor!r}): expected a class, a function or an import path")
        if isinstance(constructor, str) and "." not in constructor:
            raise ValueError(f"{type(self).__name__}({constructor!r}): an import path has a module and a name, as 'package.module.Class'")
        self.__core__ = _construct(constructor, args, kwargs).__core__

    def call_method(self, name: str, propagation: Callable[..., Any] | str | None, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the object of each rank, in the order of torch calls.

        `propagation` is a function of the arguments that returns results without data, `"inspect"`, or None for a method that returns no
        tensors. An `OpaqueRef()` in a result stands for an `OpaqueRef` that the method returns.
        """
        if propagation is None:
            return _call(self, name, *args, **kwargs)
        if propagation == "inspect":
            return _call_inspected(self, name, *args, **kwargs)
        if not callable(propagation):
            raise ValueError(
                f"call_method({name!r}, {propagation!r}): the method is on the workers; expected a function, 'inspect' or None"
            )
        return _call.with_results(propagated(propagation, args, kwargs), (self, name, *args), kwargs)

    def call_method_on_shard_and_fetch(self, name: str, *args: Any, shard: dict[str, int] | None = None, **kwargs: Any) -> Future[Any]:
        """What the method returns on one rank, by value: the first one, unless `shard` has the coordinates of another."""
        return _call.on_shard(shard, (self, name, *args), kwargs)


def opaque_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """For a method of a subclass of `OpaqueObject`: calls that of the same name on the workers. The body gives results without data."""

    @functools.wraps(method)
    def call(self: OpaqueObject, *args: Any, **kwargs: Any) -> Any:
        return self.call_method(method.__name__, functools.partial(method, self), *args, **kwargs)

    return call
