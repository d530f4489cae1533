"""The rendezvous address of the ranks: an address of this host that others reach, and a port that no other program gets meanwhile."""

from __future__ import annotations

import socket
from enum import Enum

from monarch.spmd.errors import SPMDError


class AddrType(Enum):
    """Which addresses of a host are considered. `Default`: IPv6 before IPv4."""

    __module__ = "monarch.spmd"

    Default = "default"
    IPv4 = "ipv4"
    IPv6 = "ipv6"


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}
# Addresses for documentation (RFC 5737, RFC 3849): a socket that is connected to one has the address from which this host reaches others.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """The address of a host as its name service has it.

    `hostname` is a name or an address; `port` is handed to the name service, a number from 0 to 65535. `addr_type` selects the family.
    `SPMDError` (a `RuntimeError`) where the host has no address of the family, or no host has the name.

    >>> get_ipaddr("127.0.0.1", 0, AddrType.IPv4)
    '127.0.0.1'
    """
    last: OSError | None = None
    for family in _FAMILIES[addr_type]:
        try:
            return str(socket.getaddrinfo(hostname, port, family, socket.SOCK_STREAM)[0][4][0])
        except socket.gaierror as error:
            last = error
    what = "address" if addr_type is AddrType.Default else f"{addr_type.name} address"
    raise SPMDError(f"host {hostname} has no {what}: {last}")


def host_address(kind: AddrType | None = None) -> str:
    """The name of this host for None, else an address of it: not a link-local one, and a loopback address only where there is no other.

    `SPMDError` where the host has none of this kind.
    """
    name = socket.gethostname()
    if kind is None:
        return name
    import ipaddress  # ranks import this module, and most of them meet at a name

    loopback: list[str] = []
    for family in _FAMILIES[kind]:
        for address in (*_of_name(name, family), *_of_route(family)):
            found = ipaddress.ip_address(address)
            if not _is_here(address, family):
                continue
            if found.is_loopback:
                loopback.append(address)
            elif not (found.is_link_local or found.is_unspecified):
                return address
    if loopback:
        return loopback[0]
    what = "address" if kind is AddrType.Default else f"{kind.name} address"
    raise SPMDError(f"host {name} has no {what} that other hosts reach", hint="give master_addr and master_port")


def reachable_address() -> str:
    """An address of this host, IPv4 first: gloo and many programs take no other one."""
    try:
        return host_address(AddrType.IPv4)
    except SPMDError:
        return host_address(AddrType.IPv6)


def _is_here(address: str, family: int) -> bool:
    """Whether an interface has it: the name of a host may lead elsewhere, as in a network namespace."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _of_name(name: str, family: int) -> list[str]:
    try:
        return [str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)]
    except OSError:
        return []


def _of_route(family: int) -> list[str]:
    """No packet is sent: a datagram socket only looks up its route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_ELSEWHERE[socket.AddressFamily(family)], 9))
            return [str(probe.getsockname()[0]).partition("%")[0]]
    except OSError:
        return []


class ReservedPort:
    """A TCP port of this host that stays bound until `close`.

    A server that sets SO_REUSEADDR, as torch's store does, may listen on it meanwhile: the socket here does not listen.
    """

    def __init__(self) -> None:
        self._socket = _bound()
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        self._socket.close()


def _bound() -> socket.socket:
    # Both families are tried if the host has both.
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            made.bind(("", 0))
            return made
        except OSError:
            made.close()
    raise SPMDError(f"no TCP port is free on {socket.gethostname()}")
