"""The proxy that `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name, by the rules of Go, which are those of kubectl.

https://pkg.go.dev/golang.org/x/net/http/httpproxy describes the rules. `urllib.request` has others: it sends requests to the loopback
through the proxy, and it does not know CIDRs. Ours: the official client has the rules of
`requests`, which send requests to the loopback through the proxy as well.
"""

from __future__ import annotations

import ipaddress
import os

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def proxy_of_environment(scheme: str, host: str, port: int) -> str | None:
    """The URL of the proxy on the route to a server; None for a direct connection."""
    proxy = _variable(f"{scheme}_proxy")
    if not proxy or not _is_proxied(host.lower(), port):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(name: str) -> str:
    """Upper case counts more than lower case."""
    return os.environ.get(name.upper()) or os.environ.get(name) or ""


def _is_proxied(host: str, port: int) -> bool:
    ip = _ip(host)
    if host == "localhost" or (ip is not None and ip.is_loopback):
        return False
    rules = [rule.strip().lower() for rule in _variable("no_proxy").split(",")]
    return not any(_excludes(rule, host, ip, port) for rule in rules if rule)


def _excludes(rule: str, host: str, ip: _Ip | None, port: int) -> bool:
    """Is this entry of `NO_PROXY` one for the server?"""
    if rule == "*":
        return True
    if "/" in rule:
        try:
            return ip is not None and ip in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    named, wanted = _split(rule)
    if wanted and wanted != str(port):
        return False
    address = _ip(named)
    if address is not None:
        return address == ip
    named = named.removeprefix("*")
    # `.example.com` matches names below a domain, `example.com` the domain as well.
    return named.strip(".") != "" and (host == named or host.endswith(f".{named.removeprefix('.')}"))


def _split(rule: str) -> tuple[str, str]:
    """Host and port; an IPv6 address has brackets where it has a port."""
    if rule.startswith("["):
        named, _, port = rule[1:].partition("]")
        return named, port.removeprefix(":")
    named, colon, port = rule.rpartition(":")
    return (named, port) if colon and ":" not in named else (rule, "")


def _ip(text: str) -> _Ip | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
