"""How long a command takes: the adjustable model of the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from monarch.tensor._protocol.commands import Reduce
from monarch.tensor.simulator.work import Work, bytes_of


class Link(NamedTuple):
    """A way between two ranks, or to the controller: bytes each second, and the seconds of a message without bytes."""

    bandwidth: float
    latency: float


Override = float | Callable[[Work], float]


@dataclass(frozen=True)
class CostModel:
    """The seconds of each command; all fields can be set.

    | command | seconds |
    |---|---|
    | an operator | `launch` and the greater of bytes read and written by `memory_bandwidth`, and operations by `flops` |
    | a view, a borrow, memory that is reserved only | 0 |
    | all-reduce over `n` ranks of `b` bytes | `launch + 2 (n - 1) (latency + b / n / bandwidth)`: a ring |
    | all-gather | `launch + (n - 1) (latency + b / bandwidth)`, with the bytes of one rank |
    | reduce-scatter, all-to-all | `launch + (n - 1) (latency + b / n / bandwidth)` |
    | reduce to one rank | `launch + (n - 1) latency + b / bandwidth` |
    | `to_mesh`, one source to `k` ranks | `launch + ceil(log2(k + 1)) (latency + b / bandwidth)`: a tree |
    | a remote function | `function` |
    | a fetch, or a tensor of the controller | `latency + b / bandwidth` of `controller` |

    The link is `inside` if all ranks that take part are on one host, and `between` otherwise. `half_flops` is the rate of types of 16 bits
    and fewer. `overrides` has the seconds of commands by name, as `"aten.mm.default"`, `"aten.mm"`, `"reduce"`, `"to_mesh"`, `"fetch"`,
    `"constant"`, or the name of a remote function: a number, or a function of the `Work`.
    """

    memory_bandwidth: float = 2e12
    flops: float = 60e12
    half_flops: float = 600e12
    launch: float = 5e-6
    inside: Link = Link(300e9, 3e-6)
    between: Link = Link(40e9, 8e-6)
    controller: Link = Link(20e9, 20e-6)
    function: float = 100e-6
    overrides: Mapping[str, Override] = field(default_factory=dict[str, Override])

    def __post_init__(self) -> None:
        for name in ("memory_bandwidth", "flops", "half_flops"):
            if not getattr(self, name) > 0:
                raise ValueError(f"CostModel: {name} is a rate, not {getattr(self, name)!r}")
        for name in ("launch", "function"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"CostModel: {name} is seconds, not {getattr(self, name)!r}")
        for name in ("inside", "between", "controller"):
            link = getattr(self, name)
            if not (link.bandwidth > 0 and link.latency >= 0):
                raise ValueError(f"CostModel: {name} is a bandwidth and a latency, not {link!r}")

    def seconds(self, work: Work, ranks: int = 1, crossing: bool = False) -> float:
        """Of one command. `ranks` take part in a collective, or receive from one source; `crossing` if they are on several hosts."""
        override = self.overrides.get(work.name, self.overrides.get(work.name.rpartition(".")[0]))
        if override is not None:
            found = override(work) if callable(override) else override
            if not isinstance(found, int | float) or not found >= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"CostModel: the override of {work.name!r} is seconds, not {found!r}")
            return float(found)
        if work.is_free:
            return 0.0
        if work.kind == "function":
            return self.function
        if work.kind in ("fetch", "constant"):
            size = sum(map(bytes_of, work.inputs)) + sum(map(bytes_of, work.outputs))
            return self.controller.latency + size / self.controller.bandwidth
        link = self.between if crossing else self.inside
        if work.kind == "collective":
            return self.launch + _ring(work, ranks, link)
        if work.kind == "move" and ranks:
            rounds = math.ceil(math.log2(ranks + 1))
            return self.launch + rounds * (link.latency + bytes_of(work.inputs[0]) / link.bandwidth)
        layout = next((x for x in (*work.inputs, *work.outputs) if x is not None), None)
        rate = self.half_flops if layout is not None and layout.dtype.itemsize <= 2 else self.flops
        return self.launch + max(work.bytes_moved / self.memory_bandwidth, flops_of(work) / rate)


def _ring(work: Work, n: int, link: Link) -> float:
    command = work.definition
    assert isinstance(command, Reduce)
    size = bytes_of(work.inputs[0])
    share = link.latency + size / max(n, 1) / link.bandwidth
    if command.scatter:
        return (n - 1) * share
    if command.reduction == "stack":
        return (n - 1) * (link.latency + size / link.bandwidth)
    if command.result is not None:
        return (n - 1) * link.latency + (size / link.bandwidth if n > 1 else 0.0)
    return 2 * (n - 1) * share


# The position of the first matrix among the operands.
_MATRICES = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1, "_scaled_mm": 0, "_int_mm": 0, "addbmm": 1}
_CONVOLUTIONS = {"convolution", "convolution_overrideable", "_convolution", "convolution_backward"}


def flops_of(work: Work) -> int:
    """The multiplications and additions of products of matrices, convolutions and attention; 0 for other commands, which memory bounds."""
    if work.kind != "operator":
        return 0
    shapes: list[tuple[int, ...]] = [x.shape if x is not None else () for x in work.inputs]
    name = work.name.split(".")[1] if work.name.count(".") > 1 else work.name
    first = _MATRICES.get(name)
    if first is not None:
        one, other = shapes[first], shapes[first + 1]
        return 2 * math.prod(one) * other[-1]
    if name in _CONVOLUTIONS:
        # Each weight is used once for each position of the smaller side: of the output, or of the input of a transposed one.
        backward = name == "convolution_backward"
        weight = shapes[2] if backward else shapes[1]
        given = work.definition.args
        at = 7 if backward else 6
        transposed = len(given) > at and given[at] is True
        output = shapes[0] if backward or work.outputs[0] is None else work.outputs[0].shape
        places = (shapes[1] if backward else shapes[0]) if transposed else output
        once = 2 * math.prod(places) * math.prod(weight[1:])
        return once * (sum(map(bool, given[-1][:2])) if backward else 1)
    if name.startswith("_scaled_dot_product") and len(shapes) > 2:
        backward = "backward" in name
        query, key, value = shapes[1:4] if backward else shapes[:3]
        once = 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
        # The scores are computed again, and there are four products more.
        return once * 5 // 2 if backward else once
    return 0
