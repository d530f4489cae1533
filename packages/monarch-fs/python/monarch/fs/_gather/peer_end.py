"""The end of a process that is known as a peer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from monarch.actor import MonarchError
from monarch.extension import HostId, ProcId, places, watch, when_done
from monarch.fs._relay.peer import Peer


def when_peer_ends(peer: Peer, then: Callable[[], object]) -> None:
    """Calls `then` on the extension thread when the process has ended; not for a process that this one cannot watch."""
    own = {int(job) for job, _ in places()}
    at = next((host for job, host in peer.places if job in own), 0)
    with suppress(MonarchError, LookupError, RuntimeError):
        when_done(watch(ProcId(peer.proc), HostId(at)), lambda _: then())
