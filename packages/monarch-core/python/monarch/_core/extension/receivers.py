"""The receivers of a message, for objects in it that go to known ones only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._core.extension.ids import ProcId
from monarch._core.pickle import state

if TYPE_CHECKING:
    from collections.abc import Callable


class Receivers(NamedTuple):
    """The procs that get the message which a thread pickles, in the order of the called mesh.

    A message may be pickled several times before it is sent: `notes` keeps what the objects in it remember from one time to the next. The
    functions of `not_sent` run if the message is not sent after all.
    """

    procs: tuple[ProcId, ...]
    notes: dict[Any, Any]
    not_sent: list[Callable[[], object]]


def receivers(refusal: str) -> Receivers:
    """For the `__reduce_ex__` of an object that may be an argument of a call of actors, and nothing else: its receivers.

    `TypeError(refusal)` where the object is pickled for something else. `__reduce_ex__` lets it pass.
    """
    found = state.receivers(refusal)
    return Receivers(tuple(map(ProcId, found.procs)), found.notes, found.not_sent)
