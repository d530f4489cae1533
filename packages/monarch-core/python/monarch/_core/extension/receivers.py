"""The receivers of a message, for objects in it that go to known ones only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._core.extension.ids import ProcId
from monarch._core.pickle import state

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.call.future import Future


class Receivers(NamedTuple):
    """The procs that get the message which a thread pickles, in the order of the called mesh.

    A message may be pickled several times before it is sent: `notes` keeps what the objects in it remember from one time to the next. The
    functions of `not_sent` run if the message is not sent after all. Those of `sent` run when it is: each gets a function
    `then(function, *given)`, which sends one more message. By that the actors run `function(*given)` after what they do for this message,
    an async endpoint after its first `await`. `then` gives a future, which fails where an actor does not come to it.
    """

    procs: tuple[ProcId, ...]
    notes: dict[Any, Any]
    not_sent: list[Callable[[], object]]
    sent: list[Callable[[Callable[..., Future[Any]]], object]]


def receivers(refusal: str) -> Receivers:
    """For the `__reduce_ex__` of an object that may be an argument of a call of actors, or of `spawn`, and nothing else: its receivers.

    `TypeError(refusal)` where the object is pickled for something else. `__reduce_ex__` lets it pass.
    """
    found = state.receivers(refusal)
    return Receivers(tuple(map(ProcId, found.procs)), found.notes, found.not_sent, found.sent)
