"""The connections of a client or an agent to other hosts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import Hosts
    from monarch._core.process.process import LocalProcess


def native_hosts(process: LocalProcess) -> Hosts:
    """The connections of this client or agent to other hosts, made on first need."""
    return process.hosts.connected()
