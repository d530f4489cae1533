"""Reductions and movements between ranks.

A rank whose operand is poisoned takes part with zeros and reports itself: a collective of one number, which runs beside that of the
data, has the least rank that did. So no rank waits for one that failed before, and the group stays as it is. Where data are combined,
they have a number more instead, a marker, and the other collective only follows where a rank has set that.
"""

from __future__ import annotations

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
            markers = _markers_of(command)
            if markers is not None:
                result, marker = _combined(group, command.reduction, value, markers[poison is not None])
                if marker != markers[False]:
                    _Flag(self.groups, group, poison, value.device).check()
                    raise RuntimeError(f"a rank of {group.ranks} has no data, and none reported it")
            else:
                flag = _Flag(self.groups, group, poison, value.device)
                is_stack = command.reduction == "stack"
                result = _stacked(group, value, command.scatter) if is_stack else _combined(group, command.reduction, value)[0]
                flag.check()
            if command.scatter and command.reduction != "stack":
                # Gloo has no reduction that scatters for all types: each rank takes its part.
                result = result[group.place].clone()
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


def _markers_of(command: Reduce) -> tuple[int, int] | None:
    """None where a marker cannot stand for the ranks without data: nothing is combined, or so many of them would come to 0 again."""
    return None if command.layout[1] in (torch.int8, torch.uint8) else _MARKERS.get(command.reduction)


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


def _combined(group: Group, reduction: str, value: Any, marker: int | None = None) -> tuple[Any, int | None]:
    """The reduction over the group, in new memory, and that of the markers of the ranks."""
    kind = value.dtype
    if kind.is_complex:
        if reduction not in ("sum", "avg"):
            raise NotImplementedError(f"reduce: {reduction!r} of complex numbers")
        value = torch.view_as_real(value.resolve_conj())
    moved_kind = value.dtype
    if kind == torch.bool:
        # True is 1: of its sum what is not 0, as torch counts.
        moved_kind = torch.int32
    elif group.is_gloo and kind in (torch.bfloat16, torch.int16):
        moved_kind = torch.float32 if kind.is_floating_point else torch.int32
    count = value.numel()
    moved = torch.empty(count + (marker is not None), dtype=moved_kind, device=value.device)
    result = moved[:count].view(value.shape)
    result.copy_(value)
    if marker is not None:
        moved[count] = marker
    if moved.numel():
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, _OPS[reduction])
        group.pg.allreduce([moved], options).wait()
    if marker is not None:
        marker = int(moved[count].item())
    if reduction == "avg":
        result = result / group.size
    if kind.is_complex:
        result = torch.view_as_complex(result)
    return result if result.dtype == kind else result.to(kind), marker
