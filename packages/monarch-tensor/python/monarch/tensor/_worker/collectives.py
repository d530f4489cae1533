"""Reductions and movements between ranks.

A rank whose operand is poisoned takes part with zeros and reports itself: a collective of one number, which comes after that of the
data, has the least rank that did. So no rank waits for one that failed before, and the group stays as it is. Where data are combined,
they have a number more instead, a marker, and the other collective only follows where a rank has set that.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from monarch.tensor._protocol import metrics
from monarch.tensor._protocol.torch_internals import all_gather_bytes
from monarch.tensor._worker.groups import COLLECTIVE
from monarch.tensor._worker.offers import offers
from monarch.tensor._worker.poison import Poison, PoisonedElsewhere, poison_of

if TYPE_CHECKING:
    from monarch.tensor._protocol.commands import Move, Reduce
    from monarch.tensor._protocol.failures import Failure
    from monarch.tensor._worker.groups import Group, Groups

_OPS = {"sum": "SUM", "avg": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}

_FINE = 1 << 40  # more than any rank

# The layout in an offer that is a failure, and has no data.
_NO_LAYOUT = ((0,), torch.uint8, "cpu")


class Collectives:
    """Of one worker. `operations` has for each stream the number of the operation that it executes.

    A rank has its data before a collective begins: a rank that fails before ends its connections, so that no other one waits
    for it. A later failure fails this rank alone, and the group stays: the others have their results, and go on with it.
    """

    def __init__(self, groups: Groups, rank: int, operations: dict[int, int]) -> None:
        self.groups = groups
        self.rank = rank
        self._operations = operations
        # By stream: the operation of its last collective, and its number of collectives: a recording has several.
        self._last: dict[int, tuple[int, int]] = {}

    def _group(self, ranks: tuple[int, ...], stream: int, device: str) -> tuple[Group, int]:
        """The group for the next collective of a stream, and the number of that, which all ranks have in common."""
        moment = self.moment(stream)
        return self.groups.of(ranks, stream, device, moment), moment

    def moment(self, stream: int) -> int:
        """The number of the next collective of a stream, or of a function that may have some. It grows from one to the next."""
        number = self._operations.get(stream, 0)
        before, count = self._last.get(stream, (number, -1))
        count = count + 1 if before == number else 0
        self._last[stream] = number, count
        # The collectives of functions that are called after the previous operation come before it, as `Controller.moment` numbers them.
        return number + 1 << 24 | count

    def reduce(self, stream: int, command: Reduce, inputs: list[Any]) -> Any:
        """The result for this rank, None where it is of no use here. Raises the failure of the rank that had no data."""
        value = inputs[0]
        poison = poison_of(value)
        target = inputs[1] if command.inputs == 2 else None
        poison = poison or poison_of(target)
        group, moment = self._group(command.grid.line(self.rank, command.dims), stream, torch.device(command.layout[2]).type)
        began = time.perf_counter()
        try:
            exchange = _Stacking(group, command, value) if command.reduction == "stack" else _Combining(group, command, value, poison)
        except NotImplementedError:
            raise
        except Exception as e:
            self.groups.leave(group, moment, e)
            if poison is not None:
                raise PoisonedElsewhere(poison.failure) from e
            raise
        try:
            exchange.run()
            # The two are not concurrent: a group whose connections have failed is closed only when no operation of it is in progress.
            misses = exchange.misses_data()
            if misses or not exchange.has_marker:
                _check_flags(self.groups, group, poison, torch.device(command.layout[2]))
            if misses:
                raise RuntimeError(f"a rank of {group.ranks} has no data, and none reported it")
        except PoisonedElsewhere:
            raise
        except Exception as e:
            raise self._ended(group, moment, began, e) from e
        result = exchange.result()
        if command.scatter and command.reduction != "stack":
            # Gloo has no reduction that scatters for all types: each rank takes its part.
            result = result[group.place].clone()
        spent = (time.perf_counter() - began) * 1e3
        metrics.collective_ms.record(spent, {"dims": ",".join(command.dims), "reduction": command.reduction})
        if command.in_place:
            inputs[0].copy_(result.reshape(inputs[0].shape))
            return None
        if target is not None:
            target.copy_(result)
            return None
        if command.result is not None and self.rank not in command.result:
            return None
        return result

    def _ended(self, group: Group, moment: int, began: float, error: Exception) -> Exception:
        """Closes a group in whose connections a collective has failed; gives the reason, as far as a rank has left one, or is known."""
        reason = group.store.reason()
        self.groups.fail(group, moment)
        if reason is None and not is_of_backend(error):
            return error
        return RuntimeError(reason or f"{self._suspects(group, began)}: {error}")

    def _suspects(self, group: Group, began: float) -> str:
        """Who it may be, in words: back ends of torch name an address at most."""
        ended = self.groups.ended_of(group)
        if ended:
            return f"rank {ended[0]} has ended"
        ranks = ", ".join(str(r) for r in group.ranks if r != self.rank)
        if time.perf_counter() - began >= COLLECTIVE.total_seconds():
            return f"one of the ranks {ranks} did not come to a collective in time"
        return f"one of the ranks {ranks} has ended, or has lost its connection, in a collective"

    def move(self, stream: int, command: Move, inputs: list[Any]) -> Any:
        """The tensor for this rank, if it is a destination."""
        device = command.layout[2]
        value = inputs[0] if inputs else None
        sends = [to for of, to in command.routes if of == self.rank and to != self.rank]
        sources = [of for of, to in command.routes if to == self.rank]
        poison = poison_of(value)
        failure = None if poison is None else poison.failure
        result: Any = None
        if any(of != to for of, to in command.routes):
            ranks = tuple(sorted({r for route in command.routes for r in route}))
            group, moment = self._group(ranks, stream, torch.device(device).type)
            try:
                exchange = _Moving(group, self.rank, value, failure, sends, [s for s in sources if s != self.rank], command.layout)
            except Exception as e:
                self.groups.leave(group, moment, e)
                raise
            began = time.perf_counter()
            try:
                exchange.run()
            except Exception as e:
                raise self._ended(group, moment, began, e) from e
            result = exchange.result(self.groups)
        if self.rank in sources:
            if failure is not None:
                raise PoisonedElsewhere(failure)
            assert value is not None, "a rank that sends to itself has the tensor"
            result = value.clone(memory_format=torch.contiguous_format)
        return result


def is_of_backend(error: Exception) -> bool:
    """Whether it may be what a back end of torch raises where a connection is lost."""
    return type(error) is RuntimeError or isinstance(error, dist.DistError)


class _Moving:
    """The tensors that a rank sends and receives in one movement, each with a flag: whether the sender has it."""

    def __init__(
        self, group: Group, rank: int, value: Any, failure: Failure | None, sends: list[int], sources: list[int], layout: Any
    ) -> None:
        shape, dtype, device = layout
        where = torch.device(device)
        self._group = group
        self._rank = rank
        self._failure = failure
        self._sends = sends
        self._layout = layout
        self._key = group.next_key()
        self._poisoned: int | None = None
        if sends:
            data = value.contiguous().resolve_conj().resolve_neg() if failure is None else torch.zeros(shape, dtype=dtype, device=where)
            self._sent = (torch.tensor([failure is not None], dtype=torch.int64, device=where), data)
        self._received = [
            (of, torch.zeros(1, dtype=torch.int64, device=where), torch.empty(shape, dtype=dtype, device=where)) for of in sources
        ]

    def run(self) -> None:
        group = self._group
        works: list[Any] = []
        if self._sends:
            if self._failure is not None:
                offers().offer(f"{self._key}/{self._rank}", Poison(self._failure), len(self._sends))
            flag, data = self._sent
            for to in self._sends:
                place = group.ranks.index(to)
                works += [group.pg.send([flag], place, 0), group.pg.send([_plain(data)], place, 1)]
        for of, flag, received in self._received:
            place = group.ranks.index(of)
            first, second = group.pg.recv([flag], place, 0), group.pg.recv([_plain(received)], place, 1)
            first.wait()
            second.wait()
            if int(flag.item()):
                self._poisoned = of
        for work in works:
            work.wait()

    def result(self, groups: Groups) -> Any:
        """What came; raises the failure of the sender."""
        if self._poisoned is not None:
            offers().pull(f"{self._key}/{self._poisoned}", groups.source(self._poisoned), self._layout)
        return self._received[-1][2] if self._received else None


def _plain(tensor: Any) -> Any:
    """The same memory with a type that every back end moves."""
    if tensor.dtype == torch.bool or tensor.is_complex() or tensor.dtype in (torch.int16, torch.bfloat16):
        return _bytes(tensor)
    return tensor


def _check_flags(groups: Groups, group: Group, poison: Poison | None, device: Any) -> None:
    """Raises the failure of the least place in the group whose data are poisoned, on all ranks, after the collective of the data.

    The failure itself goes by the links of the job: connections of a process group carry numbers only, as they know no peer.
    """
    key = group.next_key()
    flag = torch.tensor([_FINE if poison is None else group.place], dtype=torch.int64, device=device)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MIN
    group.pg.allreduce([flag], options).wait()
    place = int(flag.item())
    if place == _FINE:
        return
    if place == group.place and poison is not None:
        offers().offer(key, poison, group.size - 1)
        raise PoisonedElsewhere(poison.failure)
    if not 0 <= place < group.size:
        raise RuntimeError(f"the process group of ranks {group.ranks} has no place {place}: its connections were tampered with")
    offers().pull(key, groups.source(group.ranks[place]), _NO_LAYOUT)
    raise RuntimeError(f"rank {group.ranks[place]} reported a failure in a collective, and has none")


# By reduction: the marker of a rank with data, and of one without; the result of markers of the first kind alone is that marker.
_MARKERS = {"sum": (0, 1), "avg": (0, 1), "max": (0, 1), "bor": (0, 1), "min": (1, 0), "product": (1, 0), "band": (1, 0)}


def _markers_of(command: Reduce) -> tuple[int, int] | None:
    """None where a marker cannot stand for the ranks without data: nothing is combined, or so many of them would come to 0 again."""
    return None if command.layout[1] in (torch.int8, torch.uint8) else _MARKERS.get(command.reduction)


def _bytes(tensor: Any) -> Any:
    # A contiguous tensor may have any stride where the size is 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class _Stacking:
    """An all-gather, or an all-to-all with `scatter`. A rank without data takes part with zeros."""

    has_marker = False

    def __init__(self, group: Group, command: Reduce, value: Any) -> None:
        shape, dtype, device = command.layout
        self._group = group
        self._scatter = command.scatter
        if isinstance(value, torch.Tensor):
            self._source = value.contiguous().resolve_conj().resolve_neg()
        else:
            self._source = torch.zeros(shape, dtype=dtype, device=device)
        sizes = self._source.shape if command.scatter else (group.size, *self._source.shape)
        self._result = torch.empty(sizes, dtype=self._source.dtype, device=self._source.device)

    def run(self) -> None:
        if not self._source.numel():
            return
        given, made = _bytes(self._source), _bytes(self._result)
        if self._scatter:
            self._group.pg.alltoall_base(made, given, [], [], dist.AllToAllOptions()).wait()
        else:
            all_gather_bytes(self._group.pg, made, given).wait()

    def misses_data(self) -> bool:
        return False

    def result(self) -> Any:
        return self._result


class _Combining:
    """An all-reduce in new memory, with a marker behind the data where the reduction has one for ranks without data."""

    def __init__(self, group: Group, command: Reduce, value: Any, poison: Poison | None) -> None:
        shape, kind, device = command.layout
        reduction = command.reduction
        if kind.is_complex and reduction not in ("sum", "avg"):
            raise NotImplementedError(f"reduce: {reduction!r} of complex numbers")
        markers = _markers_of(command)
        self.has_marker = markers is not None
        self._marker = None if markers is None else markers[False]
        self._group = group
        self._kind = kind
        self._reduction = reduction
        sizes = (*shape, 2) if kind.is_complex else shape
        moved_kind = kind.to_real() if kind.is_complex else kind
        if kind == torch.bool:
            # True is 1: a sum other than 0 is true, as torch counts.
            moved_kind = torch.int32
        elif group.is_gloo and kind in (torch.bfloat16, torch.int16):
            moved_kind = torch.float32 if kind.is_floating_point else torch.int32
        count = math.prod(sizes)
        if poison is None:
            self._moved = torch.empty(count + self.has_marker, dtype=moved_kind, device=device)
            source = torch.view_as_real(value.resolve_conj()) if kind.is_complex else value
            self._moved[:count].view(sizes).copy_(source)
        else:
            self._moved = torch.zeros(count + self.has_marker, dtype=moved_kind, device=device)
        self._data = self._moved[:count].view(sizes)
        if markers is not None:
            self._moved[count] = markers[poison is not None]

    def run(self) -> None:
        if not self._moved.numel():
            return
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, _OPS[self._reduction])
        self._group.pg.allreduce([self._moved], options).wait()

    def misses_data(self) -> bool:
        """Whether a rank has set its marker."""
        return self.has_marker and int(self._moved[-1].item()) != self._marker

    def result(self) -> Any:
        found = self._data
        if self._reduction == "avg":
            found = found / self._group.size
        if self._kind.is_complex:
            found = torch.view_as_complex(found)
        return found if found.dtype == self._kind else found.to(self._kind)
