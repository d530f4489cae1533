"""Methods of meshes that other wheels implement: entry points of the group `monarch.mesh`, each loaded with its first call."""

from __future__ import annotations

from monarch._core.config.entry_points import BrokenEntry, load_entry
from monarch._core.config.wheel import broken_wheel, missing_wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core.call.actor_mesh import ActorMesh
    from monarch._core.call.endpoint import Endpoint
    from monarch._core.call.future import Future
    from monarch._core.call.value_mesh import ValueMesh

GROUP = "monarch.mesh"
# The wheel of this project that implements most of these methods.
WHEEL = "monarch-tensor"


def implementation(method: str, what: str, wheel: str = WHEEL) -> Callable[..., Any]:
    """The function that an entry point has for this method; `NotImplementedError` names the wheel that is missing or cannot be loaded.

    `wheel` is the wheel of this project that implements the method.
    """
    found = load_entry(GROUP, method)
    if found is None:
        raise missing_wheel(what, wheel)
    if isinstance(found, BrokenEntry):
        raise broken_wheel(what, found.describe()) from found.error
    if not callable(found.value):
        raise broken_wheel(what, f"{found.wheel}: entry point {method!r} of {GROUP} ({found.target}) is {found.value!r}, not a function")
    function: Callable[..., Any] = found.value
    return function


class EndpointCall:
    """A call of an endpoint whose result stays with the actors, as `Endpoint.rref` passes it on; immutable.

    `endpoint` has the adverbs that send the call, `mesh` is the called actors, `name` the method, `propagate` the argument of the
    endpoint's declaration. The arguments fit the signature of the method.
    """

    __slots__ = ("args", "endpoint", "kwargs", "mesh", "name", "propagate")

    endpoint: Endpoint[Any, Any]
    mesh: ActorMesh
    name: str
    propagate: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(
        self, endpoint: Endpoint[Any, Any], mesh: ActorMesh, name: str, propagate: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        for field, value in zip(self.__slots__, (args, endpoint, kwargs, mesh, name, propagate), strict=True):
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"EndpointCall.{name} cannot be set: a call is immutable")

    def through(self, function: Callable[..., Any], async_function: Callable[..., Any], *given: Any) -> Future[ValueMesh[Any]]:
        """Sends the call. In place of `method(*args, **kwargs)` the actors run `function(*given, method, *args, **kwargs)`.

        The answer of an actor is the result of that function. An async method is given to `async_function`, which is awaited. The messages
        of a caller stay in order, these and others. `TypeError` for an endpoint that answers by a port.
        """
        from monarch._core.call.actor import Actor
        from monarch._core.call.coroutine_function import is_coroutine_function

        if self.endpoint._explicit:
            raise TypeError(f"{self.endpoint._endpoint_name} answers by a port, and not with what it returns")
        is_async = is_coroutine_function(self.endpoint._method)
        through, name = (Actor._await_through, "_await_through") if is_async else (Actor._call_through, "_call_through")
        sent: Endpoint[Any, Any] = type(self.endpoint)(self.mesh, name, through)
        return sent.call(async_function if is_async else function, given, self.name, *self.args, **self.kwargs)

    def __repr__(self) -> str:
        return f"<EndpointCall {self.name} of {self.mesh!r}>"
