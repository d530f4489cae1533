"""The sending of a call whose arguments have a value for each rank.

All pickling happens before the first message is sent, so a value that cannot be pickled harms no rank. Each value is pickled once, also if
several ranks get it, and so is each object that is the value of several ranks. There are two forms of messages. Where the common arguments
are few and plain, and no value would be pickled twice, the message of a rank is one pickle, as of other calls. Otherwise it is several
pickles, which the messages of all ranks share (`pickle/pieces.py`).
"""

from __future__ import annotations

from monarch._core._native.protocol import ONLY_ANSWER
from monarch._core.call.per_rank import PerRank
from monarch._core.pickle.pickling import OUT_OF_BAND, dumps, is_small_and_plain
from monarch._core.pickle.pieces import envelope
from monarch._core.pickle.state import state
from monarch._core.shape.shape import Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from monarch._core._native import Caller, PendingCall
    from monarch._core.call.actor_ranks import ActorRanks
    from monarch._core.shape.shape import Extent

    Pickled: TypeAlias = tuple[bytes, list[Any]]


class _Column:
    """The values of one argument by rank. They are held until the call is sent: an object is known by its address."""

    def __init__(self, name: int | str, argument: PerRank, extent: Extent, title: str) -> None:
        self.name = name
        self.extent = extent
        try:
            positions = argument.positions(extent)
        except ValueError as e:
            raise ValueError(f"{title}: per_rank argument {name!r} does not fit: {e}") from None
        found: dict[int, Any] = {}
        for rank, position in enumerate(positions):
            if position not in found:
                try:
                    found[position] = argument.value(position)
                except Exception as e:
                    self.blame(e, rank)
                    raise
        self.values = [found[position] for position in positions]
        self.ids = [id(value) for value in self.values]

    def blame(self, error: Exception, rank: int) -> None:
        """Names the value in a note of the error."""
        error.add_note(f"in the value of rank {rank} {dict(Point(rank, self.extent))} of per_rank argument {self.name!r}")


def send_rank_values(
    to: ActorRanks, caller: Caller, title: str, args: tuple[Any, ...], kwargs: dict[str, Any], mode: int, rank: int | None = None
) -> PendingCall | None:
    """Sends a call with `PerRank` arguments to all actors. `rank` is that of a call of one actor, which is refused."""
    if mode == ONLY_ANSWER or rank is not None:
        raise TypeError(
            f"{title}: per_rank(...) has a value for each rank, and this call has one receiver: use `call`, or the value itself"
        )
    extent = to.shape.extent
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    columns = [_Column(name, argument, extent, title) for name, argument in given if type(argument) is PerRank]
    own = {column.name for column in columns}
    rest = tuple([None if i in own else item for i, item in enumerate(args)]), {k: v for k, v in kwargs.items() if k not in own}
    common = dumps(rest)
    # No value is for all receivers, so none may ask for them.
    before, state.receivers = state.receivers, None
    try:
        if len(common[0]) < OUT_OF_BAND and is_small_and_plain(rest) and _differ(columns):
            return caller.send_each(None, *_whole(args, kwargs, columns), mode)
        return caller.send_each(common, *_shared(columns, 1 + len(common[1])), mode)
    finally:
        state.receivers = before


def _differ(columns: list[_Column]) -> bool:
    """Whether each value is in one message only, or in messages that are equal."""
    messages = len(set(zip(*[column.ids for column in columns], strict=True))) if len(columns) > 1 else 0
    return len(columns) == 1 or all(len(set(column.ids)) == messages for column in columns)


def _whole(args: tuple[Any, ...], kwargs: dict[str, Any], columns: list[_Column]) -> tuple[list[Pickled], list[int]]:
    """One pickle for each different message, and its place for each rank."""
    pickles: list[Pickled] = []
    places: list[int] = []
    known: dict[int, int] = {}
    positional, keywords = list(args), dict(kwargs)
    for rank, first in enumerate(columns[0].ids):
        place = known.get(first)
        if place is None:
            for column in columns:
                if type(column.name) is int:
                    positional[column.name] = column.values[rank]
                else:
                    keywords[str(column.name)] = column.values[rank]
            place = known[first] = len(pickles)
            try:
                pickles.append(dumps((tuple(positional), keywords)))
            except Exception as e:
                for column in columns:
                    column.blame(e, rank)
                raise
        places.append(place)
    return pickles, places


def _shared(columns: list[_Column], common: int) -> tuple[list[Pickled], list[int]]:
    """One pickle for each value, and for each rank the places of its envelope and its values. `common` is the number of common parts."""
    pickles: list[Pickled] = []
    known: dict[int, int] = {}
    for column in columns:
        for rank, (value, address) in enumerate(zip(column.values, column.ids, strict=True)):
            if address not in known:
                known[address] = len(pickles)
                try:
                    pickles.append(dumps(value))
                except Exception as e:
                    column.blame(e, rank)
                    raise
    names = tuple([column.name for column in columns])
    envelopes: dict[tuple[int, ...], int] = {}
    places: list[int] = []
    for rank in range(len(columns[0].ids)):
        own = [known[column.ids[rank]] for column in columns]
        counts = (*[1 + len(pickles[place][1]) for place in own], common)
        first = envelopes.get(counts)
        if first is None:
            first = envelopes[counts] = len(pickles)
            pickles.append((envelope(names, counts), []))
        places += (first, *own)
    return pickles, places
