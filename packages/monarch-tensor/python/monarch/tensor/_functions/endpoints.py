"""Mesh tensors as results of endpoints of ordinary actors."""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any

from monarch.actor import SupervisionError
from monarch.extension import when_done
from monarch.extension.mesh import mesh_view
from monarch.tensor._functions.remote_function import Remote, propagated
from monarch.tensor._worker import handoff

if TYPE_CHECKING:
    from monarch.actor import Future
    from monarch.extension.mesh import EndpointCall
    from monarch.tensor._controller.place import Place


class _Receive(Remote):
    """Takes the result of an endpoint. Its name is that of the endpoint."""

    def __init__(self, name: str) -> None:
        super().__init__("monarch.tensor._worker.handoff.received")
        self._name = name


_receive = functools.lru_cache(1024)(_Receive)


def rref(call: EndpointCall) -> Any:
    """Calls an endpoint; its results are mesh tensors, whose shapes its `propagate` gives. The actors are on the procs of the active mesh.

    While no mesh is active, that is the mesh of the first tensor among the arguments.

    `propagate` is a function of the arguments, or `"inspect"`, which waits for the endpoint. The stream waits for the endpoint where the
    results are computed: its place is that of the call, in the order of torch calls and in that of messages. An exception of an endpoint
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
