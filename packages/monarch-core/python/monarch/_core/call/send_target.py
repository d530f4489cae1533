"""What `monarch.actor.send` takes beside endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from monarch._core.call.port import Port


class SendTarget(Protocol):
    """A target of `monarch.actor.send` beside endpoints: an object that calls as an endpoint does, such as a remote function."""

    def send_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], port: Port[Any] | None, selection: Literal["all", "choose"], /
    ) -> None:
        """Calls all ranks, or one at random. The result of rank `r` goes to `ranked_port(port, r)`, if there is a port."""
        ...
