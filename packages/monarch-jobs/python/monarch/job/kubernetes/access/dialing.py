"""TCP connections to an API server: direct, through an HTTP proxy (CONNECT), or through a SOCKS5 proxy, as `ssh -D` makes one."""

from __future__ import annotations

import base64
import socket
import time
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

_SOCKS_ERRORS = {1: "general failure", 2: "not allowed", 3: "network unreachable", 4: "host unreachable", 5: "connection refused"}
_MOST_HEADER = 65536
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
    host = parts.hostname or ""
    port = parts.port or (80 if parts.scheme == "http" else 1080)
    try:
        made = socket.create_connection((host, port), max(end - time.monotonic(), 0.001))
    except OSError as e:
        raise ProxyError(f"the proxy {_shown(parts)}: {e.strerror or e}") from None
    try:
        made.settimeout(max(end - time.monotonic(), 0.001))
        wrong = _ask_http(made, parts, address) if parts.scheme == "http" else _ask_socks(made, parts, address)
    except OSError as e:
        made.close()
        raise ProxyError(f"the proxy {_shown(parts)}: {e.strerror or e}") from None
    if wrong:
        made.close()
        raise ProxyError(f"the proxy {_shown(parts)}: {wrong}")
    return made


def _ask_http(sock: socket.socket, parts: SplitResult, address: Address) -> str:
    target = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    head = b""
    # The header is read byte by byte: the bytes after it are the server's.
    while not head.endswith(b"\r\n\r\n"):
        one = sock.recv(1)
        if not one or len(head) > _MOST_HEADER:
            return "closed the connection"
        head += one
    first = head.partition(b"\r\n")[0].decode(errors="replace").split(None, 2)
    return "" if len(first) > 1 and first[1].startswith("2") else " ".join(first[1:]) or "no answer of HTTP"


def _ask_socks(sock: socket.socket, parts: SplitResult, address: Address) -> str:
    """RFC 1928, and RFC 1929 for name and password; the proxy looks up the name."""
    has_name = parts.username is not None
    sock.sendall(b"\x05\x02\x00\x02" if has_name else b"\x05\x01\x00")
    chosen = _exactly(sock, 2)
    if chosen == b"\x05\x02" and has_name:
        user, password = unquote(parts.username or "").encode(), unquote(parts.password or "").encode()
        sock.sendall(b"\x01" + bytes([len(user)]) + user + bytes([len(password)]) + password)
        if _exactly(sock, 2)[1:] != b"\x00":
            return "does not accept name and password"
    elif chosen != b"\x05\x00":
        return "is no SOCKS5 proxy, or asks for a name"
    host = address.host.encode("idna") if address.host.isascii() is False else address.host.encode()
    sock.sendall(b"\x05\x01\x00\x03" + bytes([len(host)]) + host + address.port.to_bytes(2, "big"))
    answer = _exactly(sock, 4)
    if answer[1:2] != b"\x00":
        return _SOCKS_ERRORS.get(answer[1] if len(answer) > 1 else 0, f"error {answer.hex()}")
    length = {1: 4, 4: 16}.get(answer[3]) or _exactly(sock, 1)[0]
    _exactly(sock, length + 2)
    return ""


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = sock.recv(size - len(found))
        if not part:
            raise ConnectionResetError("closed the connection")
        found += part
    return found
