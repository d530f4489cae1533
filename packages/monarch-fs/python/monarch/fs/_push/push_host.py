"""The host's part of a push: an actor in a service process, which brings the chunks and writes the files."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import NamedTuple

from monarch.actor import Actor, endpoint
from monarch.extension import member
from monarch.fs._push.directory_identity import DirectoryIdentity
from monarch.fs._push.push_counts import PushCounts, PushFailure
from monarch.fs._push.pushed_tree import PushedTree
from monarch.fs._push.relocation import PlainRelocation
from monarch.fs._push.stored_chunks import StoredChunks
from monarch.fs._relay.exchange import Exchange
from monarch.fs._relay.host_tree import CLIENT, upstreams_of
from monarch.fs._relay.peer import Peer
from monarch.fs._store.location import open_store
from monarch.fs._tree.table import Table, TableError


def check_interpreter(place: str, counts: PushCounts) -> None:
    """The interpreter of a venv is a link to the one that it was made from, which the host must have."""
    for name in ("python", "python3"):
        path = os.path.join(place, "bin", name)
        if os.path.islink(path) and not os.path.exists(path):
            there = os.path.realpath(path)
            reason = f"leads to {there}, which the host lacks: install it there, or push an environment that has its own interpreter"
            counts.fail(PushFailure(path, errno.ENOENT, reason))
            return


class PushOrder(NamedTuple):
    """One push, the same for all hosts; plain data."""

    # A secret name of the tree.
    tree: str
    table: bytes
    # One for each host, in the order of `hosts`; or one for all of them.
    targets: tuple[str, ...]
    delete: bool
    set_id: bool
    relocation: PlainRelocation | None
    # The hosts in the order of the tree of hosts, and the client.
    hosts: tuple[Peer, ...]
    client: Peer


class PushedHost(NamedTuple):
    """A host before a push: where others ask it, its name, and whether the target overlaps with the source."""

    peer: Peer
    name: str
    overlaps: bool


class PushHost(Actor):
    """One in each host and job. Several pushes may run at once; those into one target wait for each other."""

    def __init__(self) -> None:
        self._store = open_store()
        self._exchange = Exchange(self._store)

    @endpoint
    async def begin(self, targets: tuple[str, ...], source: DirectoryIdentity) -> PushedHost:
        """Writes nothing."""
        overlaps = any(DirectoryIdentity.of(target).overlaps(source) for target in targets)
        return PushedHost(self._exchange.peer(), member().hostname, overlaps)

    @endpoint
    async def apply(self, order: PushOrder) -> PushCounts:
        """Does not raise for what goes wrong with files: it is in the result, so that the other hosts go on."""
        rank = [peer.proc for peer in order.hosts].index(self._exchange.peer().proc)
        place = order.targets[rank % len(order.targets)]
        counts = await asyncio.to_thread(self._apply, order, rank, place)
        counts.host, counts.target = member().hostname, place
        return counts

    def _apply(self, order: PushOrder, rank: int, place: str) -> PushCounts:
        try:
            table = Table.decode(order.table)
            asked = [order.client if other == CLIENT else order.hosts[other] for other in upstreams_of(rank, len(order.hosts))]
            self._exchange.join(order.tree, asked)
            chunks = StoredChunks(self._exchange, self._store, order.tree)
            relocation = None if order.relocation is None else order.relocation._replace(new=os.fsencode(place)).relocation()
            state = self._store.folder / "pushed"
            pushed = PushedTree(table, place, chunks.fetch, delete=order.delete, set_id=order.set_id, relocation=relocation, state=state)
            counts = pushed.apply()
            if relocation is not None:
                check_interpreter(place, counts)
            return counts
        except (OSError, TableError) as e:
            counts = PushCounts()
            path = getattr(e, "filename", None) or place
            number = e.errno if isinstance(e, OSError) and e.errno else errno.EIO
            counts.fail(PushFailure(os.fsdecode(path), number, getattr(e, "strerror", None) or str(e)))
            return counts

    @endpoint
    async def end(self, tree: str) -> None:
        """When all hosts have written: until then other hosts may ask this one."""
        self._exchange.leave(tree)
