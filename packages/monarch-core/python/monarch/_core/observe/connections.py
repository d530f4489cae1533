"""The TCP connections of this process to other machines, with the kernel's counters of each (`TCP_INFO`)."""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Any

# The most descriptors that are looked at, and the most connections of an answer.
_MOST_DESCRIPTORS = 1024
_MOST = 128
_ESTABLISHED = 1
# Fields of `struct tcp_info` (linux/tcp.h): name, offset, format. Kernels append fields, and never move one.
_FIELDS = (
    ("retries", 2, "B"),
    ("unacknowledged", 24, "I"),
    ("since_sent_ms", 44, "I"),
    ("since_received_ms", 52, "I"),
    ("round_trip_us", 68, "I"),
    ("resent", 100, "I"),
    ("acknowledged_bytes", 120, "Q"),
    ("received_bytes", 128, "Q"),
    ("sent_segments", 136, "I"),
    ("received_segments", 140, "I"),
    ("unsent_bytes", 144, "I"),
    ("least_round_trip_us", 148, "I"),
    ("delivery_rate", 160, "Q"),
    ("busy_us", 168, "Q"),
    ("receiver_limited_us", 176, "Q"),
)
_LENGTH = 192


def connections() -> list[dict[str, Any]]:
    """The connections of other machines, each with its ends and counters."""
    import socket

    found: list[dict[str, Any]] = []
    if socket.getdefaulttimeout() is not None:
        # A socket object of Python would make the connection non-blocking for all its users.
        return found
    for number in os.listdir("/proc/self/fd")[:_MOST_DESCRIPTORS]:
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            # A duplicate: another thread may close the descriptor meanwhile.
            with socket.socket(fileno=os.dup(int(number))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    found += _described(one)
        except OSError:  # closed meanwhile, or of a kind without these calls
            continue
        if len(found) >= _MOST:
            break
    return found


def _described(one: socket) -> list[dict[str, Any]]:
    import socket

    here, there = one.getsockname(), one.getpeername()
    if here[0] == there[0] or there[0].startswith("127."):
        return []
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _LENGTH or info[0] != _ESTABLISHED:
        return []
    values = {name: struct.unpack_from(f"={form}", info, offset)[0] for name, offset, form in _FIELDS}
    return [{"here": list(here[:2]), "there": list(there[:2]), **values}]


def since_sent(descriptor: int) -> float | None:
    """The seconds since this end of a TCP connection has sent data, or was connected; None where they are not known."""
    import socket

    if socket.getdefaulttimeout() is not None:
        return None
    try:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:  # closed meanwhile, or of another kind
        return None
    offset = next(offset for name, offset, _ in _FIELDS if name == "since_sent_ms")
    return struct.unpack_from("=I", info, offset)[0] / 1e3 if len(info) >= _LENGTH and info[0] == _ESTABLISHED else None
