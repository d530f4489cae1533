"""How a target finds its sources: by the mesh that publishes, with one request to each of its processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from monarch import extension
from monarch.extension.mesh import mesh_view
from monarch.rdma.errors import RDMAError, RDMAPeerLostError, RDMATimeoutError
from monarch.rdma.weights.errors import NotPublishedError
from monarch.rdma.weights.local_tensor import local_tensors, table_of
from monarch.rdma.weights.offer import Offer
from monarch.rdma.weights.parent import Parent
from monarch.rdma.weights.planner import Source, find_pieces
from monarch.rdma.weights.published import ask, names_in
from monarch.rdma.weights.puller import Feed, Puller
from monarch.rdma.weights.relay import needs, new_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.extension.mesh import MeshView


# Seconds between two requests to a rank that does not publish yet: at first, and at most.
_FIRST, _MOST = 0.01, 0.5
# Ranks that an error lists.
_LISTED = 8
_HINT = "call Weights.publish there; attach(timeout=...) is how long it waits"


def members(of: object) -> MeshView:
    """The processes that publish; `TypeError` unless `of` is a mesh of procs or actors."""
    return mesh_view(of)


def attached(name: str, mesh: MeshView, into: Mapping[str, Any], buffers: int, cast: bool, fan_out: int, timeout: float) -> Puller:
    tensors = local_tensors(into)
    for tensor in tensors:
        if tensor.readonly:
            raise ValueError(f"tensor '{tensor.name}' is read-only: it cannot take weights")
    if not tensors:
        raise ValueError("there is no tensor to take weights")
    me = extension.member()
    offers = _offers(name, mesh, timeout)
    distances = [0 if proc == me.proc else 1 if host == me.host else 2 for proc, host in zip(mesh.procs, mesh.hosts, strict=True)]
    sources = [Source(offer.table, distances[rank], rank_name(rank, mesh)) for rank, offer in enumerate(offers)]
    table = table_of(tensors)
    pieces = find_pieces(table, sources, rank=me.rank, cast=cast)
    feeds = {rank: Feed(rank_name(rank, mesh), offer) for rank, offer in enumerate(offers)}
    puller = Puller(name, tensors, pieces, feeds, buffers > 1)
    if fan_out:
        relay = puller.serve(table, pieces)
        number = new_number() if relay is None else relay.number
        puller.follow(Parent(name, mesh.procs[0], needs(table), (fan_out, fan_out if relay else 0), number))
    return puller


def rank_name(rank: int, mesh: MeshView) -> str:
    return f"rank {rank} of '{mesh.name}'"


def _offers(name: str, mesh: MeshView, timeout: float) -> list[Offer]:
    """The answers of all ranks. A rank that does not publish yet is asked again until the time is up."""
    until = time.monotonic() + timeout
    what = f"attach to weights '{name}'"
    offers: dict[int, Offer] = {}
    left, pause = list(range(len(mesh.procs))), _FIRST
    while True:
        answers = [(rank, ask(mesh.procs[rank], "attach", name)) for rank in left]
        refusals: dict[int, NotPublishedError] = {}
        for rank, answer in answers:
            try:
                offers[rank] = Offer(answer.get(timeout=max(until - time.monotonic(), 0.0)))
            except extension.RequestError as e:
                error = source_error(e, what, rank_name(rank, mesh), name)
                if not isinstance(error, NotPublishedError):
                    raise error from None
                refusals[rank] = error
            except TimeoutError:
                raise RDMATimeoutError(f"{what}: time-out of {timeout:g} s: {rank_name(rank, mesh)} has not answered") from None
        if not refusals:
            return [offers[rank] for rank in range(len(mesh.procs))]
        if time.monotonic() + pause >= until:
            raise _unpublished(refusals, what, mesh, name, timeout)
        time.sleep(pause)
        left, pause = list(refusals), min(2 * pause, _MOST)


def _unpublished(refusals: dict[int, NotPublishedError], what: str, mesh: MeshView, name: str, timeout: float) -> NotPublishedError:
    """The error that names the ranks."""
    if len(refusals) == 1:
        return next(iter(refusals.values()))
    listed = ", ".join(map(str, list(refusals)[:_LISTED])) + (f" and {len(refusals) - _LISTED} more" if len(refusals) > _LISTED else "")
    cause = "\n".join(str(error).splitlines()[0].removeprefix(f"{what}: ") for error in list(refusals.values())[:_LISTED])
    return NotPublishedError(
        f"{what}: time-out of {timeout:g} s: ranks {listed} of '{mesh.name}' publish no weights '{name}'", cause=cause, hint=_HINT
    )


def source_error(error: extension.RequestError, what: str, rank: str, name: str) -> RDMAError:
    """What a failed request to a source means."""
    if error.code == "request_proc_ended":
        lost = RDMAPeerLostError(f"{what}: {rank} has ended", cause="" if error.end is None else error.end.describe())
        lost.reason = None if error.end is None else error.end.reason.kind
        return lost
    names = [] if error.code == "request_unhandled" else names_in(error.body)
    if names is not None:
        listed = f"; it publishes {', '.join(map(repr, names))}" if names else ""
        return NotPublishedError(f"{what}: {rank} publishes no weights '{name}'{listed}", hint=_HINT)
    return RDMAError(f"{what}: {rank}: {error}")
