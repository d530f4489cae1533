"""Where a process can be asked for chunks: plain data that travels in messages."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple

from monarch.extension import HostId, ProcId, RequestError, ask, is_ending, member, places, reach, when_done

PREFIX = "monarch.fs.chunks."


class Peer(NamedTuple):
    """A process, the name of its requests, and the jobs it can be reached by, with its host in each."""

    proc: int
    name: str
    places: tuple[tuple[int, int], ...]


class PeerEnded(OSError):
    """The peer can answer no more."""


def peer_here(name: str) -> Peer:
    """This process as a peer."""
    return Peer(int(member().proc), name, tuple((int(job), int(host)) for job, host in places()))


def is_near(peer: Peer) -> bool:
    """Whether the peer is on the host of this process: its bytes cross no network."""
    own = {int(host) for _, host in places()}
    return any(host in own for _, host in peer.places)


def ask_peer(peer: Peer, body: bytes, then: Callable[[bytes | Exception], object]) -> None:
    """Sends a request; `then` gets the answer on the extension thread, or `PeerEnded`, or another error after which it may be asked again.

    `PeerEnded` at once where this process ends, or has no route.
    """
    if is_ending():
        raise PeerEnded(errno.ESHUTDOWN, "this process ends")
    own = {int(job) for job, _ in places()}
    place = next(((job, host) for job, host in peer.places if job in own), None)
    if place is None:
        raise PeerEnded(errno.EHOSTUNREACH, f"no common job with the process {ProcId(peer.proc)}")
    try:
        if peer.proc != int(member().proc):
            reach(peer.proc, HostId(place[1]), place[0])
        future = ask(peer.proc, peer.name, body)
    except (LookupError, RuntimeError) as e:
        raise PeerEnded(errno.EHOSTUNREACH, str(e)) from e
    when_done(future, lambda done: then(_outcome(done.get)))


def _outcome(get: Callable[[], bytes]) -> bytes | Exception:
    try:
        return get()
    except RequestError as e:
        return e if e.code == "request_failed" else PeerEnded(errno.EPIPE, str(e))
    except Exception as e:  # the host is lost
        return PeerEnded(errno.EPIPE, str(e))
