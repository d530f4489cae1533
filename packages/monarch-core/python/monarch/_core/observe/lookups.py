"""Threads that look up the address of a name, with the name and the servers that are asked, as far as frames and the kernel show them."""

from __future__ import annotations

import linecache
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Functions of the module `socket` in compiled code: their call is the line of the innermost frame.
_COMPILED = re.compile(r"\b(gethostbyname_ex|gethostbyname|gethostbyaddr|getnameinfo|getaddrinfo)\(")
_RESOLVER = "/etc/resolv.conf"
# The port of name servers, the most characters of a name, and the most descriptors that are looked at.
_PORT = 53
_MOST_NAME = 255
_MOST = 512


def lookups() -> dict[str, Any]:
    """The threads, each with its function and the name, if the function has it; and the servers. Empty where no thread looks up a name."""
    socket: Any = sys.modules.get("socket")
    if socket is None:
        return {}
    found: list[dict[str, Any]] = []
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        code = frame.f_code
        if code is socket.getaddrinfo.__code__:
            found.append({"thread": ident, "function": "getaddrinfo", "name": _name(frame.f_locals.get("host"))})
        elif code is socket.getfqdn.__code__:
            found.append({"thread": ident, "function": "getfqdn", "name": _name(frame.f_locals.get("name"))})
        elif (call := _COMPILED.search(linecache.getline(code.co_filename, frame.f_lineno or 0))) is not None:
            found.append({"thread": ident, "function": call[1], "name": ""})
    return {"threads": found, "servers": asked_servers() or _known()} if found else {}


def _name(given: object) -> str:
    text = given.decode(errors="replace") if isinstance(given, bytes) else given
    return text[:_MOST_NAME] if isinstance(text, str) else ""


def asked_servers() -> list[str]:
    """The addresses of the name servers to which this process has sent a request: the peers of its sockets on their port."""
    own: set[str] = set()
    for number in os.listdir("/proc/self/fd")[-_MOST:]:
        try:
            own.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # it was closed meanwhile
            continue
    found: dict[str, None] = {}
    for table in ("udp", "udp6", "tcp", "tcp6"):
        try:
            rows = _lines(f"/proc/self/net/{table}")[1:]
        except OSError:
            continue
        for words in map(str.split, rows):
            address, _, port = words[2].partition(":")
            if int(port, 16) == _PORT and f"socket:[{words[9]}]" in own:
                found[_address(address)] = None
    return list(found)


def _address(given: str) -> str:
    """The address of eight or 32 hexadecimal digits: words of four bytes in the order of this machine."""
    import socket

    data = bytes.fromhex(given)
    data = b"".join(data[at : at + 4][:: -1 if sys.byteorder == "little" else 1] for at in range(0, len(data), 4))
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def _known() -> list[str]:
    """The name servers of the machine."""
    try:
        words = [line.split() for line in _lines(_RESOLVER)]
    except OSError:
        return []
    return [one[1] for one in words if len(one) > 1 and one[0] == "nameserver"]


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()
