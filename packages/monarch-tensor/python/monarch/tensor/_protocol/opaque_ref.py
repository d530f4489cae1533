"""A Python object on each rank, which the controller names and does not have."""

from __future__ import annotations

from typing import Any, NoReturn

from monarch.tensor.errors import TensorMeshError


class OpaqueRef:
    """An object of any kind that stays on the workers.

    A remote function returns `OpaqueRef(value)`; its `propagate` returns `OpaqueRef()` in that place. The controller gets an `OpaqueRef`
    without the value. Given to a remote function, it arrives as an `OpaqueRef` whose `value` is the object of that rank.
    """

    def __init__(self, value: Any = None) -> None:
        self._value = value
        # On the controller: the `Handle` of the workers' object.
        self.__core__: Any = None

    @property
    def value(self) -> Any:
        """The object, on the workers. On the controller: `TensorMeshError`."""
        if self.__core__ is not None:
            raise TensorMeshError("the value of an OpaqueRef is on the workers: pass it to a remote function, which reads `value` there")
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        if self.__core__ is not None:
            raise TensorMeshError("the value of an OpaqueRef is on the workers: set it in a remote function")
        self._value = value

    def handle_at(self, place: Any) -> Any:
        """Its `Handle`, for a call at this `Place`. `TypeError` for an object of another mesh or stream, and for one that no worker has."""
        if self.__core__ is None:
            raise TypeError("this OpaqueRef was made on the controller, so that no worker has its value: let a remote function return it")
        if self.__core__.place is not place:
            raise TypeError(f"{self!r} is on {self.__core__.place!r}, and the call is on {place!r}")
        return self.__core__

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an OpaqueRef cannot be copied or pickled: its value stays where it is. Pass it to a remote function.")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{'' if self.__core__ is None else f' on {self.__core__.place.mesh!r}'}>"


def new_ref(handle: Any) -> OpaqueRef:
    """The controller's reference to the object that the workers have under the number of this `Handle`."""
    made = OpaqueRef()
    made.__core__ = handle
    return made
