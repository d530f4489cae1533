"""How a target finds its sources: by the mesh that publishes, with one request to each of its processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch import extension
from monarch.extension.mesh import mesh_view
from monarch.rdma.errors import RDMAError, RDMAPeerLostError, RDMATimeoutError
from monarch.rdma.weights.errors import NotPublishedError
from monarch.rdma.weights.local_tensor import local_tensors
from monarch.rdma.weights.offer import Offer
from monarch.rdma.weights.parent import Parent
from monarch.rdma.weights.planner import Source, find_pieces
from monarch.rdma.weights.published import ask, is_lost, names_in
from monarch.rdma.weights.puller import Feed
from monarch.rdma.weights.relay import needs, new_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monarch.extension.mesh import MeshView
    from monarch.rdma.weights.local_tensor import LocalTensors
    from monarch.rdma.weights.planner import Pieces
    from monarch.rdma.weights.puller import Puller
    from monarch.rdma.weights.table import Table


# Seconds between two requests to a rank that does not publish yet: at first, and at most.
_FIRST, _MOST = 0.01, 0.5
# Ranks that an error lists.
_LISTED = 8
_HINT = "call Weights.publish there; attach(timeout=...) is how long it waits"


class Wanted(NamedTuple):
    """What a target asks for, but for its tensors."""

    name: str
    cast: bool
    fan_out: int
    # Seconds for the answers of all ranks.
    timeout: float

    def until(self) -> float:
        """The end of that time, if it begins now."""
        return time.monotonic() + self.timeout


def members(of: object) -> MeshView:
    """The processes that publish; `TypeError` unless `of` is a mesh of procs or actors."""
    try:
        return mesh_view(of)
    except TypeError:
        what = "expected a mesh of procs or actors: SPMDRun.procs() for a run; monarch.spmd.run_mesh() in its programs"
        raise TypeError(f"of={of!r}: {what}, not {type(of).__name__}") from None


def target_tensors(into: Mapping[str, Any]) -> LocalTensors:
    """The tensors of a state dict; `ValueError` if one cannot take weights, or if there is none."""
    tensors = local_tensors(into)
    if tensors.readonly:
        raise ValueError(f"tensor '{tensors.readonly[0]}' is read-only: it cannot take weights")
    if not tensors.data:
        raise ValueError("there is no tensor to take weights")
    table = tensors.table
    repeated = table.tensor[((table.strides == 0) & (table.shape > 1)).any(axis=1)]
    if len(repeated):
        raise ValueError(f"tensor '{table.names[int(repeated[0])]}' has several items in the same memory: it cannot take weights")
    return tensors


def attached(wanted: Wanted, until: float, mesh: MeshView, table: Table, make: Callable[[Pieces, dict[int, Feed]], Puller]) -> Puller:
    """`make` makes the reader of these pieces, which are those of the table."""
    name = wanted.name
    me = extension.member()
    offers = _offers(wanted, until, mesh)
    distances = [0 if proc == me.proc else 1 if host == me.host else 2 for proc, host in zip(mesh.procs, mesh.hosts, strict=True)]
    sources = [Source(offer.table, distances[rank], rank_name(rank, mesh)) for rank, offer in enumerate(offers)]
    pieces = find_pieces(table, sources, rank=me.rank, cast=wanted.cast)
    puller = make(pieces, {rank: Feed(rank_name(rank, mesh), offer) for rank, offer in enumerate(offers)})
    puller.open(until)
    fan_out = wanted.fan_out
    if fan_out:
        relay = puller.serve(table, pieces)
        number = new_number() if relay is None else relay.number
        puller.follow(Parent(name, mesh.procs[0], needs(table), (fan_out, fan_out if relay else 0), number))
    return puller


def rank_name(rank: int, mesh: MeshView) -> str:
    return f"rank {mesh.ranks[rank]} of '{mesh.name}'"


def _offers(wanted: Wanted, until: float, mesh: MeshView) -> list[Offer]:
    """The answers of all ranks. A rank that does not publish yet is asked again until the time is up."""
    name, timeout = wanted.name, wanted.timeout
    what = f"attach to weights '{name}'"
    offers: dict[int, Offer] = {}
    left, pause = list(range(len(mesh.procs))), _FIRST
    refused: dict[int, NotPublishedError] = {}
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
                if rank in refused:  # the time was up soon after
                    raise _unpublished(refused, what, mesh, name, timeout) from None
                raise RDMATimeoutError(f"{what}: time-out of {timeout:g} s: {rank_name(rank, mesh)} has not answered") from None
        if not refusals:
            return [offers[rank] for rank in range(len(mesh.procs))]
        if time.monotonic() + pause >= until:
            raise _unpublished(refusals, what, mesh, name, timeout)
        time.sleep(pause)
        refused = refusals
        left, pause = list(refusals), min(2 * pause, _MOST)


def _unpublished(refusals: dict[int, NotPublishedError], what: str, mesh: MeshView, name: str, timeout: float) -> NotPublishedError:
    """The error that names the ranks."""
    if len(refusals) == 1:
        return next(iter(refusals.values()))
    listed = ", ".join(str(int(mesh.ranks[rank])) for rank in list(refusals)[:_LISTED])
    if len(refusals) > _LISTED:
        listed += f" and {len(refusals) - _LISTED} more"
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
    if is_lost(error.body):
        return RDMAPeerLostError(f"{what}: {rank} has ended", cause="its program has ended")
    names = [] if error.code == "request_unhandled" else names_in(error.body)
    if names is not None:
        listed = f"; it publishes {', '.join(map(repr, names))}" if names else ""
        return NotPublishedError(f"{what}: {rank} publishes no weights '{name}'{listed}", hint=_HINT)
    return RDMAError(f"{what}: {rank}: {error}")
