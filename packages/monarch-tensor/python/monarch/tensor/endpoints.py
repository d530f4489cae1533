"""Mesh tensors as arguments of ordinary actors, and as results of their endpoints."""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any

from monarch.actor import SupervisionError
from monarch.extension import when_done
from monarch.extension.mesh import mesh_view
from monarch.extension.pickling import receivers
from monarch.tensor.commands import Hand, Resume
from monarch.tensor.dispatch import check_operands
from monarch.tensor.remote_function import Remote, propagated
from monarch.tensor.worker import handoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import Future
    from monarch.extension.mesh import EndpointCall
    from monarch.tensor.place import Place
    from monarch.tensor.tensor import Tensor

_REFUSAL = (
    "a mesh tensor cannot be pickled: its data are on the workers. Fetch them with `monarch.tensor.inspect`, or pass the tensor to a "
    "remote function, or to actors on the procs of its mesh, by an endpoint or by `spawn`."
)


def pickled(tensor: Tensor) -> tuple[Any, ...]:
    """For `Tensor.__reduce_ex__`: in a call of an endpoint, and in `spawn`, the actor on each proc gets the tensor of that rank.

    It is as it is at this point. Actor and worker share its memory: the stream goes on when the endpoint or `__init__` has returned, an
    async one when it has come to its first `await`. `ValueError` if an actor is on no proc of the tensor's mesh, and `TypeError` for
    other pickles.
    """
    found = receivers(_REFUSAL)
    handle = tensor._handle
    key = ("monarch.tensor", id(handle))
    given = found.notes.get(key)
    if given is None:
        place = handle.place
        controller = place.controller
        check_operands("an actor", (tensor,), {}, place)
        ranks = _ranks_of(place, found.procs, repr(tensor))
        number = next(controller.numbers)
        there = controller.place_of_ranks(ranks, place.stream)
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


@functools.lru_cache(1024)
def _receive(name: str) -> Remote:
    made = Remote("monarch.tensor.worker.handoff.received")
    made._name = name
    return made


def rref(call: EndpointCall) -> Any:
    """Calls an endpoint; its results are mesh tensors, whose shapes its `propagate` gives. The actors are on the procs of the active mesh.

    While no mesh is active, that is the mesh of the first tensor among the arguments.

    `propagate` is a function of the arguments, or `"inspect"`, which waits for the endpoint. The stream waits for the endpoint where the
    results are computed: its place is that of the call, in the order of torch calls and in that of messages. What an endpoint raises
    poisons its results, and the actor goes on. `ValueError` for actors on other procs, and for an endpoint without such a `propagate`.
    """
    name = f"{mesh_view(call.mesh).name}.{call.name}"
    if call.propagate != "inspect" and not callable(call.propagate):
        raise ValueError(
            f"{name}.rref: the endpoint has propagate={call.propagate!r}; expected a function that gives the shapes of results, or "
            "'inspect', as in @endpoint(propagate=lambda x: x)"
        )
    receive = _receive(name)
    place = receive.place(call.args, call.kwargs)
    controller = place.controller
    receive.arguments(place, call.args, call.kwargs)
    on = [controller.rank_of.get(proc, -1) for proc in mesh_view(call.mesh).procs]
    if sorted(on) != sorted(place.mesh.ranks_in_order):
        raise ValueError(f"{name}.rref: {call.mesh!r} is on other procs than the mesh of the call, {place.mesh!r}")
    results = None if call.propagate == "inspect" else propagated(call.propagate, call.args, call.kwargs)
    key = next(controller.numbers)
    answer = call.through(handoff.keep, handoff.keep_async, controller.session, key)
    context = contextvars.copy_context()
    when_done(answer, lambda future: context.run(_check, place, future, key))
    # This comes after the message, whose tensors the stream has to hand over before it waits.
    given = receive.arguments(place, (controller.session, key), {})
    return receive.inspected(place, given)[1] if results is None else receive.emitted(place, given, results)


def _check(place: Place, answer: Future[Any], key: int) -> None:
    """Has the results fail on ranks whose actor does not answer."""
    try:
        answer.get()
    except Exception as e:
        if place.controller.failed is None:
            try:
                place.controller.workers.undelivered.broadcast(key, e)
            except SupervisionError as ended:
                place.controller.fail(ended)
