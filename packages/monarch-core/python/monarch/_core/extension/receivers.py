"""The receivers of a message, for objects in it that may go to known receivers only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._core.extension.ids import ProcId
from monarch._core.pickle import state

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.call.future import Future


class Receivers(NamedTuple):
    """The procs that receive the message being pickled by this thread, in the order of the called mesh.

    A message may be pickled several times before it is sent: `notes` keeps state of its objects from one time to the next. The
    functions of `not_sent` run if the message is not sent after all. The functions of `sent` run when it is: each gets a function
    `then(function, *given)`, which sends one more message. It makes the actors run `function(*given)` after their work for this message,
    an async endpoint after its first `await`. `then` gives a future, which fails if an actor does not reach that message.
    """

    procs: tuple[ProcId, ...]
    notes: dict[Any, Any]
    not_sent: list[Callable[[], object]]
    sent: list[Callable[[Callable[..., Future[Any]]], object]]


def receivers(refusal: str) -> Receivers:
    """The receivers, for the `__reduce_ex__` of an object that may only be an argument of a call of actors, or of `spawn`.

    `TypeError(refusal)` if the object is pickled for another purpose. `__reduce_ex__` must not catch it.
    """
    found = state.receivers(refusal)
    return Receivers(tuple(map(ProcId, found.procs)), found.notes, found.not_sent, found.sent)
