"""Mesh tensors as arguments of ordinary actors."""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any

from monarch.actor import SupervisionError
from monarch.extension import when_done
from monarch.extension.pickling import receivers
from monarch.tensor._controller.place import place_of_ranks
from monarch.tensor._protocol.commands import Hand, Resume
from monarch.tensor._tensors.dispatch import check_operands
from monarch.tensor._worker import handoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import Future
    from monarch.tensor._controller.place import Place
    from monarch.tensor._tensors.tensor_base import TensorBase

_REFUSAL = (
    "a mesh tensor cannot be pickled: its data are on the workers. Fetch them with `monarch.tensor.inspect`, or pass the tensor to a "
    "remote function, or to actors on the procs of its mesh, by an endpoint or by `spawn`."
)


def pickled(tensor: TensorBase) -> tuple[Any, ...]:
    """For `Tensor.__reduce_ex__`: in a call of an endpoint, and in `spawn`, the actor on each proc gets the tensor of that rank.

    It is as it is at this point. Actor and worker share its memory: the stream goes on when the endpoint or `__init__` has returned, an
    async one when it has come to its first `await`. `ValueError` if an actor is on no proc of the tensor's mesh, and `TypeError` for
    other pickles.
    """
    found = receivers(_REFUSAL)
    handle = tensor.__core__
    key = ("monarch.tensor", id(handle))
    given = found.notes.get(key)
    if given is None:
        place = handle.place
        controller = place.controller
        check_operands("an actor", (tensor,), {}, place)
        ranks = _ranks_of(place, found.procs, repr(tensor))
        number = next(controller.numbers)
        there = place_of_ranks(controller, ranks, place.stream)
        controller.emit(there, controller.defined(Hand()), (handle.id,), (number,), ())
        controller.flush()
        # The actor may write to it, now or later.
        handle.memory.value = None
        given = found.notes[key] = (controller.session, number, repr(tensor))
        found.not_sent.append(lambda: controller.workers.withdraw.broadcast(number))
        held: dict[Place, list[int]] | None = found.notes.get("monarch.tensor")
        if held is None:
            held = found.notes["monarch.tensor"] = {}
            found.sent.append(functools.partial(_resume_after, held))
        held.setdefault(there, []).append(number)
    return handoff.taken, given


def _resume_after(held: dict[Place, list[int]], then: Callable[..., Future[Any]]) -> None:
    """Has streams wait until the actors have handled a message: what comes after it in the program comes after it on each rank."""
    done = then(handoff.handled, [(place.controller.session, number) for place, numbers in held.items() for number in numbers])
    for place, numbers in held.items():
        controller = place.controller
        if controller.failed is None:
            # The first tensor represents the message.
            controller.emit(place, controller.defined(Resume()), (), (numbers[0],), ())
    context = contextvars.copy_context()
    when_done(done, lambda _: context.run(_resume, list(held.items())))


def _resume(held: list[tuple[Place, list[int]]]) -> None:
    """Also of ranks whose actor did not come to it."""
    for place, numbers in held:
        controller = place.controller
        if controller.failed is None:
            try:
                controller.workers.resume.broadcast(numbers)
            except SupervisionError as ended:
                controller.fail(ended)


def _ranks_of(place: Place, procs: tuple[Any, ...], shown: str) -> tuple[int, ...]:
    rank_of = place.controller.rank_of
    mine = set(place.mesh.ranks_in_order)
    ranks = [rank_of.get(proc, -1) for proc in procs]
    outside = sum(rank not in mine for rank in ranks)
    if outside:
        raise ValueError(f"{shown} is given to {len(ranks)} actors, and {outside} of them are on procs that have no shard of it")
    return tuple(sorted(ranks))
