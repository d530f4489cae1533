"""Hosts, and the bridge that joins them, in a namespace of its own."""

from __future__ import annotations

import os
import secrets
from types import TracebackType

from tools.netns.host import Host
from tools.netns.namespace import Namespace, living

_SWITCH = "switch"
# Networks are isolated from each other, so all have the same addresses.
_SUBNET = "10.77.0"


class Network:
    """Hosts `h1`, `h2`, … with addresses 10.77.0.1, …, that reach each other by name.

    They exist until `close`, the end of the `with` statement, or the end of this process, whatever its cause; all processes in them end
    with them.
    """

    def __init__(self, count: int, name: str | None = None) -> None:
        self.name = name or f"net-{secrets.token_hex(4)}"
        names = [f"h{i}" for i in range(1, count + 1)]
        addresses = [f"{_SUBNET}.{i}" for i in range(1, count + 1)]
        table = "".join(f"{address}\t{name}\n" for address, name in (("127.0.0.1", "localhost"), *zip(addresses, names, strict=True)))
        end, self._lifeline = os.pipe()
        try:
            self.switch = Namespace.make(self.name, _SWITCH, end)
            spaces = [Namespace.make(self.name, name, end, table) for name in names]
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(end)
        self.hosts = [Host(*host, self.switch) for host in zip(names, addresses, spaces, strict=True)]
        lines = ["link set lo up", "link add bridge type bridge", "link set bridge up"]
        for host in self.hosts:
            lines += [f"link add {host.name} type veth peer name eth0 netns {host.namespace.first}"]
            lines += [f"link set {host.name} master bridge", f"link set {host.name} up"]
        self.switch.configure("ip", "-batch", "-", lines="\n".join(lines))
        for host in self.hosts:
            lines = ["link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up"]
            host.namespace.configure("ip", "-batch", "-", lines="\n".join(lines))

    @staticmethod
    def find(name: str | None = None) -> tuple[str, dict[str, Host]]:
        """The hosts of a network of another process, by name; of the only network, if none is named."""
        networks = living()
        if name is None and len(networks) == 1:
            (name,) = networks
        if name is None or name not in networks:
            raise LookupError(f"no network {name or 'chosen'}; there are: {', '.join(networks) or 'none'}")
        spaces = networks[name]
        switch = spaces.pop(_SWITCH)
        return name, {label: Host(label, f"{_SUBNET}.{label[1:]}", spaces[label], switch) for label in sorted(spaces)}

    def cut_link(self, a: Host, b: Host, *, back: bool = True) -> None:
        """Drops traffic from `a` to `b`, and back with `back`, until `a.heal()`; traffic to others continues."""
        a.drop("iifname", a.name, "oifname", b.name)
        if back:
            a.drop("iifname", b.name, "oifname", a.name)

    def close(self) -> None:
        """Ends all processes in the hosts, and the hosts; returns when all have ended. A second call does nothing."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)
            for space in (self.switch, *(host.namespace for host in self.hosts)):
                space.gone()

    _lifeline: int | None

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
