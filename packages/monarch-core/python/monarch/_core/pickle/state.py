"""What the pickling of this thread is for."""

from __future__ import annotations

from _thread import _local  # pyright: ignore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core.call.future import Future


class Receivers:
    """Who gets the message that a thread pickles.

    A message may be pickled several times before it is sent: `notes` keeps what the objects in it remember from one time to the next. The
    functions of `not_sent` run if the message is not sent after all. Those of `sent` run when it is: each gets a function
    `then(function, *given)`, which has the actors run `function(*given)` after the message, and gives the future of that.
    """

    __slots__ = ("not_sent", "notes", "procs", "sent")

    def __init__(self, procs: tuple[int, ...]) -> None:
        self.procs = procs
        self.notes: dict[Any, Any] = {}
        self.not_sent: list[Callable[[], object]] = []
        self.sent: list[Callable[[Callable[..., Future[Any]]], object]] = []


class NeedsReceivers(TypeError):
    """Internal: the message holds something that goes to known receivers only. The text is for the user, where there are none."""


class _State(_local):
    # A message, as opposed to a plain `pickle.dumps` by the user.
    message = False
    # Of a call of actors whose message holds something that asks for them.
    receivers: Receivers | None = None
    # Unpickling leaves classes that exist already as they are.
    trial = False


state = _State()


def in_message() -> bool:
    """Whether this thread is pickling a message."""
    return state.message


def receivers(refusal: str) -> Receivers:
    """For the `__reduce_ex__` of an object that may be an argument of a call of actors, or of `spawn`, and nothing else: its receivers.

    `TypeError(refusal)` where the object is pickled for something else. `__reduce_ex__` lets it pass.
    """
    if not state.message:
        raise TypeError(refusal)
    if state.receivers is None:
        raise NeedsReceivers(refusal)
    return state.receivers


class trial:
    """Context in which unpickling leaves classes that exist already as they are."""

    def __enter__(self) -> None:
        self.before, state.trial = state.trial, True

    def __exit__(self, *_: object) -> None:
        state.trial = self.before


def in_trial() -> bool:
    return state.trial
