"""Endpoints for methods of actors that their class does not declare as endpoints."""

from __future__ import annotations

from monarch._core.call.actor import NotAnEndpoint
from monarch._core.call.actor_mesh import endpoint_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

    from monarch._core.call.endpoint import Endpoint
    from monarch._core.call.port import Port

    P = ParamSpec("P")
    R = TypeVar("R")


if TYPE_CHECKING:

    @overload
    def as_endpoint(method: Endpoint[P, R], *, propagate: Any = None, explicit_response_port: bool = False) -> Endpoint[P, R]: ...
    @overload
    def as_endpoint(
        method: Callable[P, Awaitable[R]], *, propagate: Any = None, explicit_response_port: Literal[False] = False
    ) -> Endpoint[P, R]: ...
    @overload
    def as_endpoint(method: Callable[P, R], *, propagate: Any = None, explicit_response_port: Literal[False] = False) -> Endpoint[P, R]: ...
    @overload
    def as_endpoint(
        method: Callable[Concatenate[Port[R], P], Awaitable[None] | None], *, propagate: Any = None, explicit_response_port: Literal[True]
    ) -> Endpoint[P, R]: ...


def as_endpoint(method: Any, *, propagate: Any = None, explicit_response_port: bool = False) -> Endpoint[Any, Any]:
    """An endpoint for a plain method of a spawned actor.

    Args:
        method: a method that is not an endpoint, taken from a handle: `handle.method`.
        propagate, explicit_response_port: as for `endpoint`.

    Returns:
        The endpoint, with the adverbs `call`, `call_one`, `choose`, `stream` and `broadcast`.

    Raises:
        ValueError: `method` is not a plain method of a handle.

    ```python
    from monarch.actor import Actor, as_endpoint, this_host

    class Worker(Actor):
        def version(self) -> int:
            return 3

    with this_host().spawn_procs({"procs": 1}) as procs:
        assert as_endpoint(procs.spawn("worker", Worker).version).call_one().get() == 3
    ```
    """
    if not isinstance(method, NotAnEndpoint):
        raise ValueError("expected an method of a spawned actor")
    return endpoint_of(*method.__core__, explicit_response_port, propagate)
