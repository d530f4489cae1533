"""The user of the other end of a TCP connection on this machine, from a kernel query for that one connection (`sock_diag`).

The query takes microseconds, however many connections there are.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

# The state of a server's socket.
_LISTEN = 0x0A

# Constants of `linux/netlink.h` and `linux/inet_diag.h`. A request without `NLM_F_DUMP` finds one connection by its addresses.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_NLMSGHDR = struct.Struct("=LHHLL")
_INET_DIAG_REQ_V2 = struct.Struct("=BBBBL2s2s16s16sLQ")
_INET_DIAG_MSG = struct.Struct("=BBBB48sLLLLL")
_ANY_COOKIE = (1 << 64) - 1


def is_own_peer(connection: socket.socket) -> bool | None:
    """Whether the other end of this TCP connection is a process of this user on this machine; None if the kernel does not answer.

    False for an end that no process has, and for one on another machine.
    """
    try:
        theirs, ours = connection.getpeername()[:2], connection.getsockname()[:2]
    except OSError:  # the connection is gone
        return False
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _NETLINK_SOCK_DIAG) as netlink:
            found = _look_up(netlink, connection.family, theirs, ours)
            if found is None:
                # A kernel without the module also answers "no such connection". The query for this end, which exists, distinguishes the
                # cases.
                return None if _look_up(netlink, connection.family, ours, theirs) is None else False
    except (OSError, struct.error):
        return None
    state, uid, inode = found
    # Without a connection of these addresses the kernel returns the listening socket at the first one. An end without an inode has no
    # process, and the kernel reports root as its user.
    return state != _LISTEN and inode != 0 and uid == os.getuid()


def _look_up(netlink: socket.socket, family: int, near: tuple[str, int], far: tuple[str, int]) -> tuple[int, int, int] | None:
    """State, user and inode of the end `near` of a TCP connection; `OSError` for any other answer of the kernel."""
    ends = [(struct.pack("!H", port), socket.inet_pton(family, host.partition("%")[0])) for host, port in (near, far)]
    (source_port, source), (target_port, target) = ends
    body = _INET_DIAG_REQ_V2.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF, source_port, target_port, source, target, 0, _ANY_COOKIE)
    netlink.send(_NLMSGHDR.pack(_NLMSGHDR.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + body)
    answer = netlink.recv(4096)
    kind = _NLMSGHDR.unpack_from(answer)[1]
    if kind == _NLMSG_ERROR:
        number = -struct.unpack_from("=l", answer, _NLMSGHDR.size)[0]
        if number == errno.ENOENT:
            return None
        raise OSError(number, os.strerror(number))
    fields = _INET_DIAG_MSG.unpack_from(answer, _NLMSGHDR.size)
    return fields[1], fields[8], fields[9]
