"""The purpose of the pickling or unpickling in progress on this thread."""

from __future__ import annotations

from _thread import _local  # pyright: ignore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Receivers:
    """The receivers of the message that a thread pickles.

    A message may be pickled several times before it is sent: `notes` keeps state of its objects from one time to the next. The
    functions of `not_sent` run if the message is not sent after all. The functions of `sent` run when it is: each gets a function
    `then(function, *given)`, which makes the actors run `function(*given)` after the message, and returns the future of that.
    """

    __slots__ = ("not_sent", "notes", "procs", "sent")

    def __init__(self, procs: tuple[int, ...]) -> None:
        self.procs = procs
        self.notes: dict[Any, Any] = {}
        self.not_sent: list[Callable[[], object]] = []
        self.sent: list[Callable[[Callable[..., Any]], object]] = []


class NeedsReceivers(TypeError):
    """Internal: the message holds an object for known receivers only. The text is for the user, if the message has no such receivers."""


class NeedsRanks(TypeError):
    """Internal: the message has an argument with a value for each rank. It was not pickled."""


class _State(_local):
    # True for a message, false for a plain `pickle.dumps` by the user.
    message = False
    # The receivers of a call whose message holds an object that asks for them.
    receivers: Receivers | None = None
    # True while unpickling leaves existing classes unchanged.
    trial = False


state = _State()


def in_message() -> bool:
    """Whether this thread is pickling a message."""
    return state.message


def receivers(refusal: str) -> Receivers:
    """The receivers, for the `__reduce_ex__` of an object that may only be an argument of a call of actors, or of `spawn`.

    `TypeError(refusal)` if the object is pickled for another purpose. `__reduce_ex__` must not catch it.
    """
    if not state.message:
        raise TypeError(refusal)
    if state.receivers is None:
        raise NeedsReceivers(refusal)
    return state.receivers


class trial:
    """Context in which unpickling leaves existing classes unchanged."""

    def __enter__(self) -> None:
        self.before, state.trial = state.trial, True

    def __exit__(self, *_: object) -> None:
        state.trial = self.before


def in_trial() -> bool:
    return state.trial
