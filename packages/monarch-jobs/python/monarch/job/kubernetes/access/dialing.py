"""TCP connections to an API server: direct, through an HTTP proxy (CONNECT), or through a SOCKS5 proxy, as `ssh -D` makes one.

The library python-socks connects through proxies. Ours: the official client knows no SOCKS, and a websocket needs the connection as well.
"""

from __future__ import annotations

import socket
import time
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

# A peer that is gone silently is noticed after half a minute.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class ProxyError(OSError):
    """The proxy did not connect; the text names it, without its password."""


class Address(NamedTuple):
    """A server, and the proxy on the route to it."""

    host: str
    port: int
    proxy: str | None


def check_proxy(url: str) -> None:
    """`ValueError` for a proxy that is not supported."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "socks5", "socks5h") or not parts.hostname:
        raise ValueError(f"the proxy '{_shown(parts)}' is none of http://HOST:PORT, socks5://HOST:PORT")


def connect(address: Address, seconds: float) -> socket.socket:
    """A blocking socket, its time-out set to what is left of `seconds`. `OSError`, `ProxyError`."""
    end = time.monotonic() + seconds
    if address.proxy is None:
        made = socket.create_connection((address.host, address.port), seconds)
    else:
        made = _through(urlsplit(address.proxy), address, end)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    made.settimeout(max(end - time.monotonic(), 0.001))
    return made


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


def _through(parts: SplitResult, address: Address, end: float) -> socket.socket:
    # Loaded where there is a proxy only.
    from python_socks import ProxyError as RefusedError
    from python_socks import ProxyType
    from python_socks.sync import Proxy

    kind, port = (ProxyType.HTTP, 80) if parts.scheme == "http" else (ProxyType.SOCKS5, 1080)
    name, password = (None if one is None else unquote(one) for one in (parts.username, parts.password))
    # The proxy looks up the name of the server.
    proxy = Proxy(kind, parts.hostname or "", parts.port or port, name, password or ("" if name is not None else None), rdns=True)
    try:
        return proxy.connect(address.host, address.port, timeout=max(end - time.monotonic(), 0.001))
    except (RefusedError, OSError) as e:
        raise ProxyError(f"the proxy {_shown(parts)}: {e}") from None
