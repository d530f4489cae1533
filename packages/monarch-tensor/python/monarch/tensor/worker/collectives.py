"""Reductions and movements between ranks.

A rank whose operand is poisoned takes part with zeros and reports itself: a collective of one number, which runs beside that of the
data, has the least rank that did. So no rank waits for one that failed before, and the group stays as it is. Small data have a number
more instead, a marker, and the other collective only follows where a rank has set that.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from monarch.tensor import metrics
from monarch.tensor.worker.offers import offers
from monarch.tensor.worker.poison import Poison, PoisonedElsewhere, poison_of

if TYPE_CHECKING:
    from monarch.tensor.commands import Move, Reduce
    from monarch.tensor.failures import Failure
    from monarch.tensor.worker.groups import Group, Groups

_OPS = {"sum": "SUM", "avg": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}

_FINE = 1 << 40  # more than any rank

# Of an offer that is a failure, and has no data.
_NO_LAYOUT = ((0,), torch.uint8, "cpu")


class Collectives:
    """Of one worker."""

    def __init__(self, groups: Groups, rank: int) -> None:
        self.groups = groups
        self.rank = rank

    def reduce(self, stream: int, command: Reduce, inputs: list[Any]) -> Any:
        """The result for this rank, None where it is of no use here. Raises the failure of the rank that had no data."""
        shape, dtype, device = command.layout
        value = inputs[0]
        poison = poison_of(value)
        target = inputs[1] if command.inputs == 2 else None
        poison = poison or poison_of(target)
        group = self.groups.of(command.grid.line(self.rank, command.dims), stream, torch.device(device).type)
        if poison is not None:
            value = torch.zeros(shape, dtype=dtype, device=device)
        began = time.perf_counter()
        try:
            result = _marked(group, command, value, poison is not None)
            if result is None:
                flag = _Flag(self.groups, group, poison, value.device)
                result = _reduced(group, command, value)
                flag.check()
            spent = (time.perf_counter() - began) * 1e3
            metrics.collective_ms.record(spent, {"dims": ",".join(command.dims), "reduction": command.reduction})
        except (PoisonedElsewhere, NotImplementedError):
            raise
        except Exception:
            self.groups.forget(group)
            raise
        if command.in_place:
            inputs[0].copy_(result.reshape(inputs[0].shape))
            return None
        if target is not None:
            target.copy_(result)
            return None
        if command.result is not None and self.rank not in command.result:
            return None
        return result

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
            group = self.groups.of(ranks, stream, torch.device(device).type)
            try:
                result = self._exchange(group, value, failure, sends, [s for s in sources if s != self.rank], command.layout)
            except PoisonedElsewhere:
                raise
            except Exception:
                self.groups.forget(group)
                raise
        if self.rank in sources:
            if failure is not None:
                raise PoisonedElsewhere(failure)
            assert value is not None, "a rank that sends to itself has the tensor"
            result = value.clone(memory_format=torch.contiguous_format)
        return result

    def _exchange(self, group: Group, value: Any, failure: Failure | None, sends: list[int], sources: list[int], layout: Any) -> Any:
        shape, dtype, device = layout
        where = torch.device(device)
        works: list[Any] = []
        kept: list[Any] = []
        key = group.next_key()
        if sends:
            data = value.contiguous().resolve_conj().resolve_neg() if failure is None else torch.zeros(shape, dtype=dtype, device=where)
            flag = torch.tensor([failure is not None], dtype=torch.int64, device=where)
            if failure is not None:
                offers().offer(f"{key}/{self.rank}", Poison(failure), len(sends))
            kept += [data, flag]
            for to in sends:
                place = group.ranks.index(to)
                works += [group.pg.send([flag], place, 0), group.pg.send([_plain(data)], place, 1)]
        received: Any = None
        poisoned: int | None = None
        for of in sources:
            place = group.ranks.index(of)
            flag = torch.zeros(1, dtype=torch.int64, device=where)
            received = torch.empty(shape, dtype=dtype, device=where)
            first, second = group.pg.recv([flag], place, 0), group.pg.recv([_plain(received)], place, 1)
            first.wait()
            second.wait()
            if int(flag.item()):
                poisoned = of
        for work in works:
            work.wait()
        if poisoned is not None:
            offers().pull(f"{key}/{poisoned}", self.groups.source(poisoned), layout)
        return received


def _plain(tensor: Any) -> Any:
    """The same memory with a type that every back end moves."""
    if tensor.dtype == torch.bool or tensor.is_complex() or tensor.dtype in (torch.int16, torch.bfloat16):
        return _bytes(tensor)
    return tensor


class _Flag:
    """The least place in the group whose data are poisoned, found beside the collective of the data.

    The failure itself goes by the links of the job: connections of a process group carry numbers only, as they know no peer.
    """

    def __init__(self, groups: Groups, group: Group, poison: Poison | None, device: Any) -> None:
        self._groups = groups
        self._group = group
        self._poison = poison
        self._key = group.next_key()
        self._flag = torch.tensor([_FINE if poison is None else group.place], dtype=torch.int64, device=device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._work = group.pg.allreduce([self._flag], options)

    def check(self) -> None:
        """Raises the failure of that rank, on all ranks."""
        self._work.wait()
        place = int(self._flag.item())
        if place == _FINE:
            return
        group = self._group
        if place == group.place and self._poison is not None:
            offers().offer(self._key, self._poison, group.size - 1)
            raise PoisonedElsewhere(self._poison.failure)
        if not 0 <= place < group.size:
            raise RuntimeError(f"the process group of ranks {group.ranks} has no place {place}: its connections were tampered with")
        offers().pull(self._key, self._groups.source(group.ranks[place]), _NO_LAYOUT)
        raise RuntimeError(f"rank {group.ranks[place]} reported a failure in a collective, and has none")


# By the reduction, the marker of a rank that has its data, and of one that has not; the result of the first alone is the first.
_MARKERS = {"sum": (0, 1), "avg": (0, 1), "max": (0, 1), "bor": (0, 1), "min": (1, 0), "product": (1, 0), "band": (1, 0)}
# What gloo reduces without a conversion.
_MARKED_TYPES = {torch.float32, torch.float64, torch.int32, torch.int64}
# Elements for which a copy costs less than a collective.
_MARKED_ELEMENTS = 16_384


def _marked(group: Group, command: Reduce, value: Any, is_poisoned: bool) -> Any:
    """The reduction of data with a marker in one collective; None where that is of no use, or where a rank has no data."""
    markers = _MARKERS.get(command.reduction)
    # All ranks decide alike.
    shape, dtype, _ = command.layout
    count = math.prod(shape)
    if markers is None or command.scatter or dtype not in _MARKED_TYPES or not group.is_gloo or count > _MARKED_ELEMENTS:
        return None
    moved = torch.empty(count + 1, dtype=dtype, device=value.device)
    moved[:count].copy_(value.reshape(-1))
    moved[count] = markers[is_poisoned]
    group.pg.allreduce([moved], _options(command.reduction)).wait()
    if moved[count].item() != markers[False]:
        return None
    result = moved[:count].view(shape)
    return result / group.size if command.reduction == "avg" else result


def _options(reduction: str) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, _OPS[reduction])
    return options


def _reduced(group: Group, command: Reduce, value: Any) -> Any:
    if command.reduction == "stack":
        return _stacked(group, value, command.scatter)
    result = _summed(group, value, command.reduction)
    # Gloo has no reduction that scatters for all types: each rank takes its part.
    return result[group.place].clone() if command.scatter else result


def _stacked(group: Group, value: Any, scatter: bool) -> Any:
    source = value.contiguous().resolve_conj().resolve_neg()
    if scatter:
        result = torch.empty(source.shape, dtype=source.dtype, device=source.device)
        if source.numel():
            group.pg.alltoall_base(_bytes(result), _bytes(source), [], [], dist.AllToAllOptions()).wait()
        return result
    result = torch.empty((group.size, *source.shape), dtype=source.dtype, device=source.device)
    if source.numel():
        group.pg._allgather_base(_bytes(result), _bytes(source)).wait()
    return result


def _bytes(tensor: Any) -> Any:
    # A contiguous tensor may have any stride where the size is 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _summed(group: Group, value: Any, reduction: str) -> Any:
    """The reduction over the group, in new memory."""
    options = _options(reduction)
    result = value.clone(memory_format=torch.contiguous_format)
    moved = result
    if value.is_complex():
        if reduction not in ("sum", "avg"):
            raise NotImplementedError(f"reduce: {reduction!r} of complex numbers")
        moved = torch.view_as_real(result)
    elif value.dtype == torch.bool:
        # True is 1: of its sum what is not 0, as torch counts.
        moved = result.to(torch.int32)
    elif group.is_gloo and value.dtype in (torch.bfloat16, torch.int16):
        moved = result.to(torch.float32 if value.is_floating_point() else torch.int32)
    if moved.numel():
        group.pg.allreduce([moved], options).wait()
    if reduction == "avg":
        moved = moved / group.size
    if value.is_complex():
        return torch.view_as_complex(moved)
    return moved if moved.dtype == value.dtype else moved.to(value.dtype)
