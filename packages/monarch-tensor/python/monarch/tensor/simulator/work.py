"""What one command of a program does: names, layouts, memory. The costs and the timeline are computed from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.tensor._protocol.commands import Alias, Call, Constant, Move, RankOf, Reduce
from monarch.tensor._protocol.layout import Layout, contiguous_layout

if TYPE_CHECKING:
    from monarch.tensor._controller.place_base import PlaceBase
    from monarch.tensor._controller.propagate import Known
    from monarch.tensor._protocol.frames import Site

# Results that have the memory of their operand, although the schema of the operator has no such mark.
_UNMARKED_VIEWS = {"aten._unsafe_view.default"}
# Operators that only reserve memory.
_NO_KERNEL = {"aten.empty", "aten.empty_strided", "aten.empty_like", "aten.new_empty", "aten.new_empty_strided"}


class Work:
    """One kind of command with its operands. Two are the same only if they are one object.

    `kind` is one of operator, constant, rank, collective, move, borrow, function and fetch. `sources` has, for each of the `outputs`, the
    input whose memory the output shares, or None. An entry of `inputs` or `outputs` is None for what is no tensor.
    """

    __slots__ = ("definition", "inputs", "kind", "mutates", "name", "outputs", "sources")

    def __init__(
        self,
        kind: str,
        name: str,
        definition: Any,
        inputs: tuple[Layout | None, ...],
        outputs: tuple[Layout | None, ...],
        sources: tuple[int | None, ...],
        mutates: tuple[int, ...],
    ) -> None:
        self.kind = kind
        self.name = name
        self.definition = definition
        self.inputs = inputs
        self.outputs = outputs
        self.sources = sources
        self.mutates = mutates

    @property
    def is_free(self) -> bool:
        """Whether no kernel runs: a view, reserved memory, or a borrow."""
        if self.kind == "borrow":
            return True
        if self.kind != "operator":
            return False
        if self.name.rpartition(".")[0] in _NO_KERNEL:
            return True
        return bool(self.outputs) and not self.mutates and all(s is not None for s in self.sources)

    @property
    def bytes_moved(self) -> int:
        """What is read and written: each input once, each output once, and each input that is written once more."""
        inputs = [bytes_of(x) for x in self.inputs]
        return sum(inputs) + sum(map(bytes_of, self.outputs)) + sum(inputs[i] for i in self.mutates)

    def __repr__(self) -> str:
        inputs = ", ".join(described(x) for x in self.inputs)
        return f"<{self.name}({inputs}) -> {', '.join(described(x) for x in self.outputs) or 'nothing'}>"


class Entry(NamedTuple):
    """One line of the log.

    `work` is a `Work`, or the kind of a command that has none: release, signal or wait. The `inputs` of these are their numbers.
    """

    work: Work | str
    place: PlaceBase
    inputs: tuple[int, ...]
    results: tuple[int, ...] = ()
    # The only rank that has it, for a fetch.
    rank: int | None = None
    site: Site = ()
    # The argument of `set_meta`.
    meta: Any = None


def bytes_of(layout: Layout | None) -> int:
    """The bytes of the distinct elements."""
    if layout is None:
        return 0
    count = 1
    for size, stride in zip(layout.shape, layout.stride, strict=True):
        count *= size if stride or not size else 1
    return count * layout.dtype.itemsize


def bytes_of_memory(layout: Layout | None) -> int:
    """The bytes that the memory behind a tensor needs."""
    if layout is None or 0 in layout.shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(layout.shape, layout.stride, strict=True))
    return (layout.offset + last + 1) * layout.dtype.itemsize


def described(layout: Layout | None) -> str:
    return "object" if layout is None else layout.describe()


def work_of(definition: Any, known: Known | None, inputs: tuple[Layout | None, ...], constants: Any) -> Work:
    """The work of a command with operands of these layouts. A recording has none: its commands are taken one by one."""
    if isinstance(definition, Call):
        assert known is not None
        new = [r for r in known.results if r.operand is None]
        sources = tuple(r.source for r in new)
        if definition.operator in _UNMARKED_VIEWS:
            sources = (0,)
        return Work("operator", definition.operator, definition, inputs, tuple(r.layout for r in new), sources, definition.mutates)
    if isinstance(definition, Constant):
        value = constants[0]
        layout = contiguous_layout(tuple(value.shape), value.dtype, value.device)
        return Work("constant", "constant", definition, (), (layout,), (None,), ())
    if isinstance(definition, RankOf):
        import torch

        return Work("rank", "rank_tensor", definition, (), (contiguous_layout((), torch.int64, torch.device("cpu")),), (None,), ())
    if isinstance(definition, Reduce):
        made = (contiguous_layout(*definition.out_layout),) if definition.keep else ()
        return Work("collective", "reduce", definition, inputs, made, (None,) * len(made), definition.mutates)
    if isinstance(definition, Move):
        return Work("move", "to_mesh", definition, inputs, (contiguous_layout(*definition.layout),), (None,), ())
    if isinstance(definition, Alias):
        return Work("borrow", "borrow", definition, inputs, inputs, (0,), ())
    # A remote function, or the command that takes its results apart.
    outputs = tuple(layout if isinstance(layout, Layout) else None for layout in getattr(definition, "results", ()))
    outputs += (None,) * (len(definition.keep) - len(outputs))
    return Work("function", definition.name, definition, inputs, outputs, (None,) * len(outputs), tuple(definition.mutates))
