"""Ports of this machine that lead to workers, through a connection of ssh."""

from __future__ import annotations

import re
import socket
from typing import Any

from monarch.job._commands import Commands
from monarch.job.errors import JobError

DIAL_TIMEOUT_S = 2.0
_ADDRESS = re.compile(r"(?P<identity>(?:[^@]*@)?)(?:tcp|tls)://(?P<host>\[[^\]]+\]|[^:/@]+):(?P<port>\d+)")


class Forwarding:
    """Forwards are kept in `ids["forwards"]` (address to local port) and made again where nothing listens any more."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def reachable(self, ids: dict[str, Any], addresses: dict[str, list[str | None]]) -> dict[str, list[str | None]]:
        """The same addresses as this machine can dial them."""
        kept: dict[str, int] = ids.setdefault("forwards", {})
        return {name: [self._reachable(kept, address) for address in found] for name, found in addresses.items()}

    def of_login(self, ids: dict[str, Any], address: str) -> str:
        """Where this machine can dial a worker of the login machine itself: there, or by a forward if its port is closed from here."""
        found = _ADDRESS.fullmatch(address)
        if found is None:
            return address
        name = self._commands.host_name()
        if listens(name, int(found["port"])):
            return f"{found['identity']}tcp://{f'[{name}]' if ':' in name else name}:{found['port']}"
        kept: dict[str, int] = ids.setdefault("forwards", {})
        return self._forwarded(kept, found, address, f"127.0.0.1:{found['port']}")

    def _reachable(self, kept: dict[str, int], address: str | None) -> str | None:
        found = _ADDRESS.fullmatch(address) if address else None
        if address is None or found is None:
            return address
        return self._forwarded(kept, found, address, f"{found['host']}:{found['port']}")

    def _forwarded(self, kept: dict[str, int], found: re.Match[str], address: str, target: str) -> str:
        if address not in kept or not listens("127.0.0.1", kept[address]):
            kept[address] = self._forward(target)
        return f"{found['identity']}tcp://127.0.0.1:{kept[address]}"

    def _forward(self, target: str) -> int:
        self._commands.run("true")  # the connection that the next command speaks to
        words = ""
        for _ in range(5):  # another process may take the port in between
            port = _free_port()
            result = self._commands.run_here(*self._commands.ssh("-O", "forward", "-L", f"127.0.0.1:{port}:{target}"))
            if result.code == 0 and listens("127.0.0.1", port):
                return port
            words = result.words
        raise JobError(f"no port could be forwarded to {target}", title=self._commands.title, cause=words)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(host: str, port: int) -> bool:
    """Does somebody take a connection there within two seconds?"""
    try:
        socket.create_connection((host, port), DIAL_TIMEOUT_S).close()
    except OSError:
        return False
    return True
