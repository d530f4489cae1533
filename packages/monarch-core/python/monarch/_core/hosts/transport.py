"""The transport of agents that this client starts, chosen once, before the first use of Monarch."""

from __future__ import annotations

from monarch._core.config import config
from monarch._core.config.address import BindSpec, ChannelTransport
from monarch._core.process.current import has_exited, known_process

_enabled: BindSpec | None = None


def enable_transport(transport: ChannelTransport | str) -> None:
    """Sets how agents started by this client listen: a `ChannelTransport`, its short name (`tcp`, `ipc`, `tls`), or a URL.

    Workers that were started in another way do not need it: the client only dials out. `RuntimeError` after Monarch has been used, or for a
    second, different value; the same value again changes nothing. `ValueError` for an address at which no agent can listen.
    """
    global _enabled
    spec = BindSpec(transport)
    spec.require_supported()
    if _enabled is not None:
        if _enabled != spec:
            raise RuntimeError(f"Only one transport type may be enabled at one time: {_enabled} is")
        return
    if known_process() is not None or has_exited():
        raise RuntimeError("enable_transport must be called before any other calls to Monarch")
    config.configure(default_transport=spec)
    _enabled = spec
