"""How a target finds its sources: by the mesh that publishes, with one request to each of its processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from monarch import extension
from monarch.extension.mesh import mesh_view
from monarch.rdma.errors import RDMAError, RDMAPeerLostError, RDMATimeoutError
from monarch.rdma.weights.errors import NotPublishedError
from monarch.rdma.weights.local_tensor import local_tensors, table_of
from monarch.rdma.weights.planner import Source, find_pieces
from monarch.rdma.weights.published import Offer, ask, names_in
from monarch.rdma.weights.puller import Feed, Puller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.extension.mesh import MeshView


def members(of: object) -> MeshView:
    """The processes that publish; `TypeError` unless `of` is a mesh of procs or actors."""
    return mesh_view(of)


def attached(name: str, mesh: MeshView, into: Mapping[str, Any], buffers: int, cast: bool, timeout: float) -> Puller:
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
    pieces = find_pieces(table_of(tensors), sources, rank=me.rank, cast=cast)
    feeds = {rank: Feed(rank_name(rank, mesh), offer) for rank, offer in enumerate(offers)}
    return Puller(name, tensors, pieces, feeds, buffers > 1)


def rank_name(rank: int, mesh: MeshView) -> str:
    return f"rank {rank} of '{mesh.name}'"


def _offers(name: str, mesh: MeshView, timeout: float) -> list[Offer]:
    until = time.monotonic() + timeout
    answers = [ask(proc, "attach", name) for proc in mesh.procs]
    offers: list[Offer] = []
    for rank, answer in enumerate(answers):
        what = f"attach to weights '{name}'"
        try:
            offers.append(Offer(answer.get(timeout=max(until - time.monotonic(), 0.0))))
        except extension.RequestError as e:
            raise source_error(e, what, rank_name(rank, mesh), name) from None
        except TimeoutError:
            raise RDMATimeoutError(f"{what}: time-out of {timeout:g} s: {rank_name(rank, mesh)} has not answered") from None
    return offers


def source_error(error: extension.RequestError, what: str, rank: str, name: str) -> RDMAError:
    """What a failed request to a source means."""
    if error.code == "request_proc_ended":
        lost = RDMAPeerLostError(f"{what}: {rank} has ended", cause="" if error.end is None else error.end.describe())
        lost.reason = None if error.end is None else error.end.reason.kind
        return lost
    names = [] if error.code == "request_unhandled" else names_in(error.body)
    if names is not None:
        listed = f"; it publishes {', '.join(map(repr, names))}" if names else ""
        return NotPublishedError(f"{what}: {rank} publishes no weights '{name}'{listed}", hint="call Weights.publish there first")
    return RDMAError(f"{what}: {rank}: {error}")
