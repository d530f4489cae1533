"""The address of a debug server, how `monarch debug` finds it, and which users may connect to it.

The server binds a datagram socket with an abstract name that contains its address. The kernel lists these names and removes them
with the process, however it ends, so no file can become stale. A TCP port of the loopback interface is open to
every user of the machine, and a debugger runs code. So both sides find in the kernel's table of connections the user of the other
end before they read anything. They query the kernel for the one connection. They read the whole table of connections only if the
kernel does not answer such queries.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import NamedTuple

from monarch._core.process.peer import is_own_peer

HOST_VARIABLE = "MONARCH_DEBUG_SERVER_HOST"
PORT_VARIABLE = "MONARCH_DEBUG_SERVER_PORT"
PROTOCOL_VARIABLE = "MONARCH_DEBUG_SERVER_PROTOCOL"
DEFAULT_HOST, DEFAULT_PORT = "localhost", 27000

# The state of a server's socket in the kernel's table.
_LISTEN = 0x0A


class DebugServerAddress(NamedTuple):
    """The address of a debug server. `pid` is the client's, in whose process the server is; `host` is a numeric address."""

    pid: int
    host: str
    port: int


def configured() -> tuple[str, int]:
    """Host and port from the environment; `ValueError` if they are unusable."""
    protocol = os.environ.get(PROTOCOL_VARIABLE) or "tcp"
    if protocol != "tcp":
        raise ValueError(f"{PROTOCOL_VARIABLE}={protocol!r}: the debugger speaks 'tcp' only")
    text = os.environ.get(PORT_VARIABLE) or str(DEFAULT_PORT)
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError(f"{PORT_VARIABLE}={text!r} is no port: expected 0 (any) to 65535")
    return os.environ.get(HOST_VARIABLE) or DEFAULT_HOST, int(text)


def listen(host: str, port: int) -> tuple[socket.socket, bool]:
    """A listening socket, and whether it had to take another port; `ValueError` if other machines could reach the host."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as e:
        raise ValueError(f"{HOST_VARIABLE}={host!r} has no address: {e}") from None
    remote = [info[4][0] for info in found if not _is_loopback(str(info[4][0]))]
    if remote:
        raise ValueError(f"{HOST_VARIABLE}={host!r} is {remote[0]}: the debugger listens on the loopback interface only")
    # Old tools support IPv4 only.
    family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    for candidate in (port, 0):
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address[0], candidate))
            made.listen(16)
        except OSError:
            made.close()
            if candidate == 0:
                raise
            continue
        made.setblocking(False)
        return made, candidate != port
    raise AssertionError


def _is_loopback(address: str) -> bool:
    from ipaddress import ip_address

    return ip_address(address.partition("%")[0]).is_loopback


# Discovery ----------------------------------------------------------------------------------------------------------------------


def announce(host: str, port: int) -> socket.socket | None:
    """Makes the server visible to this user's `monarch debug` as long as the socket is open; None on a system without such names."""
    beacon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        beacon.bind(f"\0monarch-debug-{os.getuid()}-{os.getpid()}-{host}-{port}")
    except OSError:
        beacon.close()
        return None
    return beacon


def find_servers() -> list[DebugServerAddress]:
    """The debug servers of this user on this machine. A name alone proves nothing: the port must be held by this user too."""
    pattern = re.compile(rf"@monarch-debug-{os.getuid()}-([0-9]+)-([0-9a-f.:]+)-([0-9]+)$")
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
            matches = [match for line in table if (match := pattern.search(line.rstrip()))]
    except OSError:
        return []
    named = {DebugServerAddress(int(pid), host, int(port)) for pid, host, port in (match.groups() for match in matches)}
    listening = {(local, uid) for local, _, state, uid in _connections() if state == _LISTEN}
    return sorted(server for server in named if any((end, os.getuid()) in listening for end in _ends(server.host, server.port)))


# Which users may connect --------------------------------------------------------------------------------------------------------


def is_own(connection: socket.socket) -> bool:
    """Whether the other end of this connection on this machine belongs to this user. False for an end that no process has."""
    known = is_own_peer(connection)
    return is_own_by_table(connection) if known is None else known


def is_own_by_table(connection: socket.socket) -> bool:
    """The same check, by the table of all connections of the machine."""
    try:
        theirs, ours = _ends(*connection.getpeername()[:2]), _ends(*connection.getsockname()[:2])
    except OSError:  # the connection is gone
        return False
    for local, remote, _, uid in _connections():
        if local in theirs and remote in ours:
            return uid == os.getuid()
    return False


def _connections() -> list[tuple[str, str, int, int]]:
    """Both ends, state and user of every TCP socket of this machine that a process holds, in the format of the kernel."""
    found: list[tuple[str, str, int, int]] = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as table:
                rows = [line.split() for line in table][1:]
        except OSError:
            continue
        # A socket without an inode is closed, or not accepted yet. The kernel reports root as its user, in place of its real one.
        found += [(row[1], row[2], int(row[3], 16), int(row[7])) for row in rows if row[9] != "0"]
    return found


def _ends(host: str, port: int) -> set[str]:
    """An address in the format of the kernel's tables: 32-bit words in the machine's byte order. An IPv4 address also has its IPv6 form."""
    host = host.partition("%")[0]
    if ":" in host:
        packed = [socket.inet_pton(socket.AF_INET6, host)]
    else:
        short = socket.inet_pton(socket.AF_INET, host)
        packed = [short, bytes(10) + b"\xff\xff" + short]
    return {f"{_words(address)}:{port:04X}" for address in packed}


def _words(address: bytes) -> str:
    words = (address[at : at + 4] for at in range(0, len(address), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
