"""One host, and what can be done to its network.

| call | does | others see |
|---|---|---|
| `cut()` | the bridge drops what goes to it, and what comes from it | silence, both ways |
| `cut(inbound=False)`, `cut(outbound=False)` | one of these | silence, one way |
| `reset()` | destroys its established connections | resets, then all is as before |
| `refuse(port)` | answers what comes to the port with a reset | resets, then refused connections |
| `heal()` | ends all of these | |

A cut of the link between two hosts alone is `Network.cut_link`. No cut takes a port down: the kernel looks at carriers once a second, so
the way back would be open a second or two late.
"""

from __future__ import annotations

import subprocess
from typing import Any, NamedTuple

from tools.netns.namespace import Namespace
from tools.netns.process import Process


class Host(NamedTuple):
    """`name` is its host name, and the name of its port at the bridge in `switch`."""

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
        """Nothing goes to it (`inbound`), nothing comes from it (`outbound`)."""
        if inbound:
            self.drop("oifname", self.name)
        if outbound:
            self.drop("iifname", self.name)

    def drop(self, *match: str) -> None:
        """The bridge drops the frames that match, until `heal` of this host."""
        rules = (f"add table bridge {self.name}", f"add chain bridge {self.name} cut {{ type filter hook forward priority 0 ; }}")
        self.switch.configure("nft", "; ".join((*rules, f"add rule bridge {self.name} cut {' '.join(match)} drop")))

    def reset(self) -> None:
        """Its TCP connections are no more: here an error, at their other ends a reset."""
        self.namespace.configure("ss", "--kill", "--tcp", "state", "established")

    def refuse(self, port: int) -> None:
        """The port is as if nobody listened: connections to it, made or to be made, are reset."""
        rules = ("add table inet refuse", "add chain inet refuse in { type filter hook input priority 0 ; }")
        self.namespace.configure("nft", "; ".join((*rules, f"add rule inet refuse in tcp dport {port} reject with tcp reset")))

    def heal(self) -> None:
        """All is as it was; connections that were reset stay so."""
        # A table that is there can be added, so that it can be deleted whether it was there or not.
        self.switch.configure("nft", f"add table bridge {self.name}; delete table bridge {self.name}")
        self.namespace.configure("nft", "add table inet refuse; delete table inet refuse")
