"""Messages to endpoints, and to what calls as an endpoint does, with the answers in a port."""

from __future__ import annotations

from monarch._core._native.protocol import NO_ANSWER, STREAM
from monarch._core.call.endpoint import Endpoint
from monarch._core.call.port import forward

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from monarch._core.call.port import Port
    from monarch._core.call.send_target import SendTarget


def send(
    endpoint: Endpoint[Any, Any] | SendTarget,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None = None,
    selection: Literal["all", "choose"] = "all",
) -> None:
    """Sends to all actors of the endpoint, or to one picked at random. Their results go to `port` if there is one.

    A remote function of monarch-tensor is sent to the ranks of the active mesh.
    """
    if selection not in ("all", "choose"):
        raise ValueError(f"selection must be 'all' or 'choose', not {selection!r}")
    if not isinstance(endpoint, Endpoint):
        if not hasattr(type(endpoint), "send_call"):
            raise TypeError(f"send({endpoint!r}): expected an endpoint, as in `send(actors.method, ...)`, not {type(endpoint).__name__}")
        endpoint.send_call(tuple(args), kwargs, port, selection)
        return
    from random import randrange

    target = endpoint.__core__
    only = randrange(target.size) if selection == "choose" else None
    cell = target.begin(tuple(args), kwargs, NO_ANSWER if port is None else STREAM, only)
    if isinstance(cell, BaseException):
        target.seen(cell)
        raise cell
    if cell is not None and port is None:
        raise target.expired(cell, only or 0)
    if port is not None:
        assert cell is not None
        forward(port, cell, 1 if only is not None else target.size, target.error, only)
