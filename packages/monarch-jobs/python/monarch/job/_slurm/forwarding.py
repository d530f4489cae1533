"""Ports of this machine that lead to the workers, through the connection to the login node."""

from __future__ import annotations

import re
import socket
from typing import Any

from monarch.job._slurm.commands import Commands
from monarch.job.errors import JobError

_ADDRESS = re.compile(r"(?P<identity>(?:[^@]*@)?)(?:tcp|tls)://(?P<host>\[[^\]]+\]|[^:/@]+):(?P<port>\d+)")


class Forwarding:
    """Forwards are kept in `ids["forwards"]` (address to local port) and made again where nothing listens any more."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def reachable(self, ids: dict[str, Any], addresses: dict[str, list[str | None]]) -> dict[str, list[str | None]]:
        """The same addresses as this machine can dial them."""
        kept: dict[str, int] = ids.setdefault("forwards", {})
        return {name: [self._reachable(kept, address) for address in found] for name, found in addresses.items()}

    def _reachable(self, kept: dict[str, int], address: str | None) -> str | None:
        found = _ADDRESS.fullmatch(address) if address else None
        if address is None or found is None:
            return address
        if address not in kept or not _listens(kept[address]):
            kept[address] = self._forward(f"{found['host']}:{found['port']}")
        return f"{found['identity']}tcp://127.0.0.1:{kept[address]}"

    def _forward(self, target: str) -> int:
        self._commands.run("true")  # the connection that the next command speaks to
        words = ""
        for _ in range(5):  # another process may take the port in between
            port = _free_port()
            result = self._commands.run_here(*self._commands.ssh("-O", "forward", "-L", f"127.0.0.1:{port}:{target}"))
            if result.code == 0 and _listens(port):
                return port
            words = result.words
        raise JobError(f"no port could be forwarded to {target}", title=self._commands.title, cause=words)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
