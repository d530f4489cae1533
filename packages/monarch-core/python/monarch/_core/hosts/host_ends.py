"""The ends of hosts that are shut down: which hosts may still run.

A host has ended if its agent has answered the request to end or sent a goodbye, or if its port refuses connections or leads to another
process after the end of its connections. The loss of a host proves no end: a machine that is silent or cut off may still run its worker. A
loss that was reported before the shutdown is not raised again; the log names the host.
"""

from __future__ import annotations

from monarch._core.process import runtime_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch._core._native import Hosts
    from monarch._core.hosts.attachment import Attachment


class HostEnds:
    """The agents of one shutdown. It is made before the agents are asked to end."""

    __slots__ = ("_addresses", "_agents", "_hosts", "_reported")

    def __init__(self, hosts: Hosts, agents: Sequence[int], attachment: Attachment) -> None:
        self._hosts = hosts
        self._agents = agents
        self._addresses = dict(zip(attachment.ids, attachment.addresses, strict=True))
        unreported = attachment.unreported()
        # The hosts that were lost before, with the reasons.
        self._reported = {agent: why for agent in agents if agent not in unreported and (why := hosts.unknown_end(agent)) is not None}

    def unknown(self, answered: set[int]) -> dict[str, str]:
        """The hosts of this shutdown that may still run, by address, with the reasons. An agent answers when it is about to end."""
        found: dict[str, str] = {}
        for agent in self._agents:
            if agent in answered:
                continue
            address = self._addresses[agent]
            if agent in self._reported:
                detail = f"{address} was lost before it was shut down, and may still run: {self._reported[agent]}"
                # The user was notified of the loss: a program that has handled it ends in silence.
                runtime_log.event("host.not_shut_down", runtime_log.WARN, is_notified=True, peer=address, detail=detail)
            elif (why := self._hosts.unknown_end(agent)) is not None:
                found[address] = why
        return found
