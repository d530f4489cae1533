"""One host, and the operations on its network.

| call | does | others see |
|---|---|---|
| `cut()` | the bridge drops all frames to and from the host | silence, both ways |
| `cut(inbound=False)`, `cut(outbound=False)` | one of these | silence, one way |
| `reset()` | destroys its established connections | resets, then all is as before |
| `destroy(flows)` | destroys these connections alone | resets; during a cut silence, until they send |
| `lose(flows)` | drops the packets of these connections | silence, both ways, on these connections alone |
| `refuse(port)` | answers packets to the port with a reset | resets, then refused connections |
| `heal()` | ends all of these | |

A cut of the link between two hosts alone is `Network.cut_link`. No cut takes a port down: the kernel checks carriers once a second, so
the link would come back a second or two late.
"""

from __future__ import annotations

import subprocess
from typing import Any, NamedTuple

from tools.netns.namespace import Namespace
from tools.netns.process import Process


class Flow(NamedTuple):
    """An established TCP connection, by its ports here and there."""

    local: int
    peer: int


class Host(NamedTuple):
    """A host. `name` is its host name, and the name of its port at the bridge in `switch`."""

    name: str
    address: str
    namespace: Namespace
    switch: Namespace

    def run(self, *argv: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, and raises if that is not 0; the options are those of `subprocess.run`."""
        return self.namespace.run(*argv, check=check, **options)

    def popen(self, *argv: str, **options: Any) -> Process:
        """Starts a command; the options are those of `subprocess.Popen`."""
        return self.namespace.popen(*argv, **options)

    def cut(self, *, inbound: bool = True, outbound: bool = True) -> None:
        """Drops traffic to the host (`inbound`) and from it (`outbound`)."""
        if inbound:
            self.drop("oifname", self.name)
        if outbound:
            self.drop("iifname", self.name)

    def drop(self, *match: str) -> None:
        """Makes the bridge drop the frames that match, until `heal` of this host."""
        rules = (f"add table bridge {self.name}", f"add chain bridge {self.name} cut {{ type filter hook forward priority 0 ; }}")
        self.switch.configure("nft", "; ".join((*rules, f"add rule bridge {self.name} cut {' '.join(match)} drop")))

    def reset(self) -> None:
        """Destroys the host's TCP connections: an error at this end, a reset at the other one."""
        self.namespace.configure("ss", "--kill", "--tcp", "state", "established")

    def flows(self, *, besides: int) -> list[Flow]:
        """The host's established connections, without those of the process `besides`, given by its id outside."""
        rows = [line.split() for line in self.namespace.list_sockets("-p", "state", "established")]
        return [
            Flow(*(int(address.rpartition(":")[2]) for address in row[2:4]))
            for row in rows
            if len(row) > 4 and f"pid={besides}," not in row[4]
        ]

    def destroy(self, flows: list[Flow]) -> None:
        """Destroys the host's ends of these connections. During a cut the other ends do not learn of it."""
        for flow in flows:
            self.namespace.configure("ss", "--kill", "--tcp", "sport", "=", f":{flow.local}", "and", "dport", "=", f":{flow.peer}")

    def lose(self, flows: list[Flow]) -> None:
        """Drops the packets of these connections until `heal`, like a firewall that has forgotten them; others continue."""
        rules = ["add table inet lost"]
        for chain, hook, here, there in (("in", "input", "dport", "sport"), ("out", "output", "sport", "dport")):
            rules.append(f"add chain inet lost {chain} {{ type filter hook {hook} priority 0 ; }}")
            rules += [f"add rule inet lost {chain} tcp {here} {flow.local} tcp {there} {flow.peer} drop" for flow in flows]
        self.namespace.configure("nft", "; ".join(rules))

    def refuse(self, port: int) -> None:
        """Resets all present and new connections to the port, as if no process listened."""
        rules = ("add table inet refuse", "add chain inet refuse in { type filter hook input priority 0 ; }")
        self.namespace.configure("nft", "; ".join((*rules, f"add rule inet refuse in tcp dport {port} reject with tcp reset")))

    def heal(self) -> None:
        """Restores the network; connections that were reset stay so."""
        # An existing table can be added again, so it can be deleted whether it existed or not.
        self.switch.configure("nft", f"add table bridge {self.name}; delete table bridge {self.name}")
        self.namespace.configure("nft", "; ".join(f"add table inet {name}; delete table inet {name}" for name in ("refuse", "lost")))
