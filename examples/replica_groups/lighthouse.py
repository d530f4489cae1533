"""The lighthouse: an actor that knows the present replica groups, and gives all of them the same quorum for every step.

The ranks of `run` are programs of their own, without actors. So the lighthouse listens on a TCP port, and rank 0 of each group keeps a
connection to it: one JSON object a line, the first one with the token. A group whose connection closes has left, however it ended.

For each step every group requests a quorum, and is answered when all present groups have requested it. A quorum has a new number if the
groups have changed, or if one of them has lost its connections to the others: all groups then connect again, with the store that the
lighthouse has for this.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from typing import Any, NamedTuple

from torch.distributed import TCPStore

from monarch.actor import Actor, concurrent_endpoint

# Steps: after the last step the groups continue until all of them have trained together for this many.
TOGETHER = 10


class Beacon(NamedTuple):
    """The values with which the ranks find the lighthouse."""

    host: str
    port: int
    store_port: int
    token: str


class Ask(NamedTuple):
    """A group that waits for a quorum."""

    step: int
    is_cut_off: bool
    writer: asyncio.StreamWriter


class Lighthouse(Actor):
    def __init__(self, groups: int, steps: int, host: str = "127.0.0.1") -> None:
        self.expected = set(range(groups))
        self.steps = steps
        self.host = host
        self.token = secrets.token_hex(16)
        self.members: dict[int, asyncio.StreamWriter] = {}
        self.asks: dict[int, Ask] = {}
        self.quorum: list[int] = []
        self.number = 0
        self.together = 0
        self.reports: dict[int, Any] = {}

    @concurrent_endpoint
    async def start(self) -> Beacon:
        self.server = await asyncio.start_server(self._serve, self.host, 0)
        # Groups connect to each other through the store. It has no authentication: the network must be trusted.
        self.store = TCPStore(self.host, 0, is_master=True, wait_for_workers=False)
        return Beacon(self.host, self.server.sockets[0].getsockname()[1], self.store.port, self.token)

    @concurrent_endpoint
    async def give_up(self, group: int) -> None:
        """Gives a group up that does not return: the others end without it."""
        self.expected.discard(group)
        await self._answer()

    @concurrent_endpoint
    async def results(self) -> dict[int, Any]:
        """The results that each group has reported at its end."""
        return self.reports

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        group: int | None = None
        try:
            hello = json.loads(await reader.readline())
            if not hmac.compare_digest(hello["token"], self.token):
                return
            group = int(hello["group"])
            # A host that went silent leaves an open connection; the next attempt of the group replaces it.
            if (earlier := self.members.pop(group, None)) is not None:
                earlier.close()
            self.members[group] = writer
            while line := await reader.readline():
                message = json.loads(line)
                if "report" in message:
                    self.reports[group] = message["report"]
                    continue
                self.asks[group] = Ask(message["step"], message["cut_off"], writer)
                await self._answer()
        except (ConnectionError, ValueError, KeyError, TypeError):
            pass  # a group that sends nothing more, or malformed lines, has left
        finally:
            writer.close()
            if group is not None and self.members.get(group) is writer:
                del self.members[group]
                self.asks.pop(group, None)
                await self._answer()

    async def _answer(self) -> None:
        """Sends the quorum of the next step, once all present groups have requested it."""
        is_first = self.number == 0
        if not self.members or len(self.asks) < len(self.members) or (is_first and len(self.members) < len(self.expected)):
            return
        asks, self.asks = self.asks, {}
        quorum = sorted(asks)
        step = max(ask.step for ask in asks.values())
        if quorum != self.quorum or any(ask.is_cut_off for ask in asks.values()):
            self.number += 1
            print(f"quorum {self.number} at step {step}: groups {', '.join(map(str, quorum))}", flush=True)
        self.quorum = quorum
        behind = [group for group in quorum if asks[group].step < step]
        self.together = self.together + 1 if self.expected.issubset(quorum) and not behind else 0
        text = json.dumps(
            {
                "number": self.number,
                "groups": quorum,
                "source": next(group for group in quorum if asks[group].step == step),
                "behind": behind,
                "over": step >= self.steps and self.together >= TOGETHER,
            }
        )
        for ask in asks.values():
            ask.writer.write(text.encode() + b"\n")
