"""Random programs run on a mesh and, rank by rank, on this process, and all tensors agree at their end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import operators
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree

from monarch import tensor as mt
from monarch.actor import ProcMesh, this_host

# Torch warns once per process, at any place.
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:Casting complex values to real")]

RANKS = 2
TYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.int16)
SHAPES = ((), (2,), (3,), (2, 3), (3, 2), (2, 2, 2), (1, 4), (0, 2))
One = Callable[[Any], Any]
Two = Callable[[Any, Any], Any]
# Torch's exceptions for invalid calls.
_REFUSED = (RuntimeError, IndexError, TypeError, ValueError)


@dataclass
class Memory:
    """What the rules allow with a storage."""

    state: str | None = None
    borrows: int = 0
    read_only: bool = False


@dataclass
class Slot:
    """A tensor on the mesh, and as each rank is to have it."""

    mesh: Any
    ranks: list[Any]
    memory: Memory
    stream: int


@dataclass
class Lending:
    """A borrow that has not ended."""

    borrow: Any
    owner: Memory
    lent: Memory


@dataclass
class Program:
    """The state of a run; its methods that begin with `do_` are the instructions, each with three numbers that decide what it does."""

    mesh: Any
    streams: tuple[Any, Any]
    current: int = 0
    slots: list[Slot] = field(default_factory=list[Slot])
    lendings: list[Lending] = field(default_factory=list[Lending])
    done: int = 0

    # Help for instructions

    def problem(self, slot: Slot, write: bool, stream: int) -> str | None:
        """The marker of the refusal."""
        state = slot.memory.state
        if state == "DROPPED":
            return state
        if slot.stream != stream:
            return "WRONG_STREAM"
        if state == "BORROWED":
            return state
        return "MUTATING_BORROW" if state == "SHARED" and write else None

    def pick(self, number: int, write: bool = False, here: bool = True) -> Slot | None:
        """One of the tensors that can be used. Now and then another one, whose use is refused, and then none is given."""
        if not self.slots:
            return None
        if number % 8:
            usable = [s for s in self.slots if self.problem(s, write, self.current if here else s.stream) is None]
            return usable[number // 8 % len(usable)] if usable else None
        slot = self.slots[number // 8 % len(self.slots)]
        problem = self.problem(slot, write, self.current)
        if problem is None:
            return slot
        with pytest.raises(TypeError, match=problem):
            slot.mesh.add_(1) if write else slot.mesh.add(1)
        return None

    def call(self, function: Callable[..., Any], *operands: Slot | None) -> bool:
        """The same on the mesh and on each rank; new tensors among the results get slots. False if torch refuses the call."""
        slots = [s for s in operands if s is not None]
        if len(slots) != len(operands):
            return False
        with mt.no_mesh.activate():
            try:
                expected = [function(*(s.ranks[r] for s in slots)) for r in range(RANKS)]
            except _REFUSED:
                return False
        got = function(*(s.mesh for s in slots))
        self.keep(got, expected, slots)
        return True

    def keep(self, got: Any, expected: list[Any], operands: Sequence[Slot], stream: int | None = None) -> None:
        """Compares the results with what is expected, and keeps them."""
        leaves, spec = _pytree.tree_flatten(got)
        columns = [_pytree.tree_flatten(e) for e in expected]
        assert all(other == spec for _, other in columns)
        for index, value in enumerate(leaves):
            ranks = [values[index] for values, _ in columns]
            if not isinstance(value, torch.Tensor):
                assert value == ranks[0]
                continue
            same = next((s for s in operands if s.ranks[0] is ranks[0]), None)
            assert (same is not None) == any(s.mesh is value for s in operands)
            if same is not None:
                assert value is same.mesh
                check_layout(same)
                continue
            with mt.no_mesh.activate():
                source = next((s for s in operands if shares(s.ranks[0], ranks[0])), None)
            memory = Memory() if source is None else source.memory
            self.slots.append(Slot(value, ranks, memory, self.current if stream is None else stream))
            check_layout(self.slots[-1])
        self.done += 1

    # Factories

    def do_make(self, a: int, b: int, c: int) -> None:
        shape, dtype = SHAPES[a % len(SHAPES)], TYPES[b % len(TYPES)]
        functions: list[Callable[[], Any]] = [
            lambda: torch.full(shape, c % 3, dtype=dtype),
            lambda: torch.ones(shape, dtype=dtype),
            lambda: torch.arange(c % 7, dtype=torch.float32),
            lambda: torch.tensor([[c % 5, 1], [2, 3]], dtype=dtype),
            lambda: torch.tensor(c % 4),
            lambda: torch.linspace(0, 4, 6).to(dtype).reshape(2, 3),
        ]
        self.call(functions[c % len(functions)])

    def do_rank(self, a: int, b: int, c: int) -> None:
        self.keep(self.mesh.rank("gpus"), [torch_of(r) for r in range(RANKS)], ())

    # Arithmetic

    def do_binary(self, a: int, b: int, c: int) -> None:
        functions: list[Two] = [
            torch.add,
            torch.sub,
            lambda x, y: torch.remainder(x * y, 17),
            torch.maximum,
            torch.eq,
            lambda x, y: torch.where(x != 0, x, y),
            lambda x, y: x + y * 2,
        ]
        self.call(functions[c % len(functions)], self.pick(a), self.pick(b))

    def do_unary(self, a: int, b: int, c: int) -> None:
        functions: list[One] = [
            lambda x: x + c % 3,
            lambda x: 1 - x,
            torch.neg,
            lambda x: x.sum(),
            lambda x: x.sum(0),
            lambda x: x.max(-1),
            lambda x: x.cumsum(0),
            lambda x: x.clone(),
            lambda x: x.sort(),
            lambda x: x.flip(0),
            lambda x: x.contiguous(),
            lambda x: torch.zeros_like(x),
        ]
        self.call(functions[b % len(functions)], self.pick(a))

    def do_convert(self, a: int, b: int, c: int) -> None:
        def convert(x: Any) -> Any:
            return x.to(TYPES[b % len(TYPES)], copy=bool(c % 2))

        self.call(convert, self.pick(a))

    def do_join(self, a: int, b: int, c: int) -> None:
        functions: list[Two] = [
            lambda x, y: torch.cat([x, y, x]),
            lambda x, y: torch.stack([x, y]),
            torch.broadcast_tensors,
        ]
        self.call(functions[c % len(functions)], self.pick(a), self.pick(b))

    # Views

    def do_view(self, a: int, b: int, c: int) -> None:
        functions: list[One] = [
            lambda x: x[c % 2 :],
            lambda x: x[..., :: 1 + c % 2],
            lambda x: x.transpose(0, -1),
            lambda x: x.reshape(-1),
            lambda x: x.view(2, -1),
            lambda x: x.expand(2, *x.shape),
            lambda x: x.diagonal(),
            lambda x: x.as_strided((2, 2), (1, c % 3), c % 2),
            lambda x: x.select(c % 2, 0),
            lambda x: x.unsqueeze(c % 2),
            lambda x: x.squeeze(),
            lambda x: x.detach(),
            lambda x: x.unfold(0, 2, 1),
            lambda x: x.conj(),
            lambda x: x.imag,
            lambda x: x.permute(*range(x.dim() - 1, -1, -1)),
        ]
        self.call(functions[b % len(functions)], self.pick(a))

    def do_split(self, a: int, b: int, c: int) -> None:
        functions: list[One] = [
            lambda x: x.split(1 + c % 2),
            lambda x: x.chunk(2, -1),
            lambda x: x.unbind(),
            lambda x: x.tensor_split(2),
            lambda x: x.aminmax(),
        ]
        self.call(functions[b % len(functions)], self.pick(a))

    # Operators in place

    def do_write(self, a: int, b: int, c: int) -> None:
        functions: list[One] = [
            lambda x: x.add_(c % 4),
            lambda x: x.mul_(2),
            lambda x: x.fill_(c % 5),
            lambda x: x.zero_(),
            lambda x: x.neg_(),
            lambda x: x.cumsum_(0),
            lambda x: x.__setitem__(0, c % 3),
            lambda x: x[..., -1:].add_(1),
            lambda x: torch._foreach_add_([x], 1),
            lambda x: x.masked_fill_(x == 1, 3),
        ]
        self.call(functions[b % len(functions)], self.pick(a, write=True))

    def do_write_other(self, a: int, b: int, c: int) -> None:
        functions: list[Two] = [
            lambda x, y: x.copy_(y),
            lambda x, y: x.add_(y),
            lambda x, y: torch.sub(x, y, out=x),
            lambda x, y: x.__setitem__(0, y),
            lambda x, y: x.index_add_(0, torch.tensor([0]), y[:1]),
        ]
        self.call(functions[c % len(functions)], self.pick(a, write=True), self.pick(b))

    def do_relay(self, a: int, b: int, c: int) -> None:
        functions: list[One] = [
            lambda x: x.t_(),
            lambda x: x.transpose_(0, -1),
            lambda x: x.squeeze_(),
            lambda x: x.unsqueeze_(c % 2),
            lambda x: x.swapaxes_(0, 1),
            # A part of the memory is new.
            lambda x: x.resize_(c % 8).fill_(c % 3),
            lambda x: x.resize_(2, c % 3).zero_(),
            lambda x: x.as_strided_((2,), (1,), c % 2),
            lambda x: x.set_().dim(),
        ]
        index = b % len(functions)
        slot = self.pick(a, write=True)
        if self.call(functions[index], slot) and index == 8:
            assert slot is not None
            slot.memory = Memory()

    def do_rebase(self, a: int, b: int, c: int) -> None:
        def set_data(x: Any, y: Any) -> None:
            x.data = y

        def set_memory(x: Any, y: Any) -> None:
            x.set_(y)

        one, other = self.pick(a, write=True), self.pick(b)
        if self.call(set_data if c % 2 else set_memory, one, other):
            assert one is not None
            assert other is not None
            one.memory = other.memory
            check_layout(one)

    # Lifetimes

    def do_drop(self, a: int, b: int, c: int) -> None:
        slot = self.slots[a % len(self.slots)] if self.slots else None
        if slot is None:
            return
        problem = self.problem(slot, True, slot.stream)
        if problem in ("BORROWED", "MUTATING_BORROW"):
            with pytest.raises(TypeError, match=problem):
                slot.mesh.drop()
            return
        slot.mesh.drop()
        slot.memory.state = "DROPPED"

    def do_forget(self, a: int, b: int, c: int) -> None:
        if self.slots:
            del self.slots[a % len(self.slots)]

    # Between ranks

    def do_reduce(self, a: int, b: int, c: int) -> None:
        slot = self.pick(a)
        if slot is None:
            return
        names = ["sum", "stack", "min", "max", "product"]
        dtype = slot.mesh.dtype
        if dtype.is_floating_point:
            names.append("avg")
        elif dtype.is_complex:
            names = ["sum", "avg", "stack"]
        else:
            names += ["band", "bor", "bxor"]
        reduction: Any = names[b % len(names)]
        scatter = c % 2 == 0 and slot.mesh.dim() > 0 and slot.mesh.shape[0] == RANKS
        with mt.no_mesh.activate():
            values = [t.clone(memory_format=torch.contiguous_format) for t in slot.ranks]
            expected = [reduced(values, reduction, scatter, r) for r in range(RANKS)]
        in_place = c % 3 == 0 and expected[0].shape == slot.mesh.shape and self.problem(slot, True, self.current) is None
        if not in_place:
            self.keep(slot.mesh.reduce("gpus", reduction, scatter), expected, ())
            return
        with mt.no_mesh.activate():
            try:
                for target, value in zip(slot.ranks, expected, strict=True):
                    target.copy_(value)
            except _REFUSED:
                return
        slot.mesh.reduce_("gpus", reduction, scatter)

    def do_broadcast(self, a: int, b: int, c: int) -> None:
        slot = self.pick(a, here=bool(c % 2))
        if slot is None:
            return
        source, stream = b % RANKS, c // 2 % 2
        with mt.no_mesh.activate():
            expected = [slot.ranks[source].clone(memory_format=torch.contiguous_format) for _ in range(RANKS)]
        self.keep(slot.mesh.slice_mesh(gpus=source).to_mesh(self.mesh, self.streams[stream]), expected, (), stream)

    def do_move(self, a: int, b: int, c: int) -> None:
        """To one rank, where it is changed, and from there to all."""
        slot = self.pick(a)
        if slot is None:
            return
        source, part = b % RANKS, self.mesh.slice(gpus=c % RANKS)
        with mt.no_mesh.activate():
            value = slot.ranks[source].clone(memory_format=torch.contiguous_format)
            try:
                value.add_(1)
            except _REFUSED:
                return
            expected = [value.clone() for _ in range(RANKS)]
        moved = slot.mesh.slice_mesh(gpus=source).to_mesh(part)
        with part.activate():
            moved.add_(1)
        self.keep(moved.to_mesh(self.mesh), expected, ())

    def do_copy(self, a: int, b: int, c: int) -> None:
        slot = self.pick(a)
        if slot is not None:
            with mt.no_mesh.activate():
                expected = [t.clone(memory_format=torch.contiguous_format) for t in slot.ranks]
            self.keep(slot.mesh.to_mesh(self.mesh), expected, ())

    # Streams

    def do_switch(self, a: int, b: int, c: int) -> None:
        self.current = 1 - self.current

    def do_borrow(self, a: int, b: int, c: int) -> None:
        slot = self.slots[a % len(self.slots)] if self.slots else None
        if slot is None:
            return
        stream, mutable = b % 2, c % 2 == 0
        target = self.streams[stream]
        problem = self.problem(slot, mutable, slot.stream)
        if problem is not None:
            with pytest.raises(TypeError, match=problem):
                target.borrow(slot.mesh, mutable)
            return
        lent, borrow = target.borrow(slot.mesh, mutable)
        memory = Memory(None if mutable else "SHARED", read_only=not mutable)
        slot.memory.state = "BORROWED" if mutable else "SHARED"
        slot.memory.borrows += 1
        with mt.no_mesh.activate():
            self.slots.append(Slot(lent, [t.detach() for t in slot.ranks], memory, stream))
        check_layout(self.slots[-1])
        self.lendings.append(Lending(borrow, slot.memory, memory))

    def do_return(self, a: int, b: int, c: int) -> None:
        if not self.lendings:
            return
        lending = self.lendings[a % len(self.lendings)]
        if lending.lent.borrows:
            with pytest.raises(TypeError, match="BORROWED"):
                lending.borrow.drop()
            return
        self.lendings.remove(lending)
        if b % 2:
            lending.borrow.drop()
        else:
            # The borrow ends with its last reference.
            lending.borrow = None
            self.mesh.check()
        lending.lent.state = "DROPPED"
        lending.owner.borrows -= 1
        if not lending.owner.borrows and lending.owner.state != "DROPPED":
            lending.owner.state = "SHARED" if lending.owner.read_only else None

    # The whole

    def run(self, instructions: Sequence[tuple[str, int, int, int]]) -> None:
        for name, a, b, c in instructions:
            with self.streams[self.current].activate():
                getattr(self, f"do_{name}")(a, b, c)
            for slot in self.slots:
                check_layout(slot)

    def check(self) -> None:
        while self.lendings:  # polls: no, each pass ends one
            # The last borrow ends first: a borrow ends after those that were made from it.
            self.do_return(len(self.lendings) - 1, 1, 0)
        self.mesh.check()
        live = [s for s in self.slots if s.memory.state != "DROPPED"]
        for rank in range(RANKS):
            for slot in live:
                torch.testing.assert_close(mt.inspect(slot.mesh, gpus=rank), slot.ranks[rank], rtol=0, atol=0, check_stride=False)
        sizes = table_sizes(self.mesh)
        # Autograd keeps tensors of which others are views.
        existing = {t.__core__ for t in gc.get_objects() if type(t) is mt.Tensor and not t.dropped and t.mesh == self.mesh}
        assert {s.mesh.__core__ for s in live} <= existing
        assert sizes == {len(existing)}


def torch_of(number: int) -> Any:
    with mt.no_mesh.activate():
        return torch.tensor(number)


def shares(one: Any, other: Any) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def check_layout(slot: Slot) -> None:
    found, expected = slot.mesh, slot.ranks[0]
    assert found.__core__.memory.state == slot.memory.state
    assert (found.shape, found.dtype, found.is_conj(), found.is_neg()) == (
        expected.shape,
        expected.dtype,
        expected.is_conj(),
        expected.is_neg(),
    )
    if expected.numel():
        assert (operators.strides_of(found), found.storage_offset()) == (operators.strides_of(expected), expected.storage_offset())


def reduced(values: list[Any], reduction: str, scatter: bool, rank: int) -> Any:
    if reduction == "stack":
        return torch.stack([v[rank] for v in values] if scatter else values)
    one, other = values
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "sum": torch.add,
        "avg": lambda x, y: (x + y) / 2,
        "product": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
    result = functions[reduction](one, other)
    return result[rank].clone() if scatter else result


def table_sizes(mesh: Any) -> set[int]:
    """The entries that the tables of the workers have."""
    gc.collect()
    mesh.check()
    return set(mesh.controller.workers.size_of_table.call().get().values())


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    made = this_host().spawn_procs({"gpus": RANKS})
    # The collection visits objects of the programs, and none of torch.
    gc.collect()
    gc.freeze()
    yield made
    gc.unfreeze()
    made.stop().get()


# Some steps are frequent.
OFTEN = ["make", "binary", "view", "view", "write", "write", "relay", "reduce", "borrow"]
NAMES = [*(n.removeprefix("do_") for n in dir(Program) if n.startswith("do_")), *OFTEN]
numbers = st.integers(0, 999)
instructions = st.tuples(st.sampled_from(NAMES), numbers, numbers, numbers)
# A program begins with some tensors.
beginnings = st.lists(st.tuples(st.sampled_from(["make", "make", "rank"]), numbers, numbers, numbers), min_size=3, max_size=5)


# Shrinking would take minutes.
@settings(max_examples=60, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(beginning=beginnings, rest=st.lists(instructions, min_size=10, max_size=60))
def test_programs(procs: ProcMesh, beginning: Any, rest: Any) -> None:
    with procs.activate() as mesh:
        program = Program(mesh, (mt.get_active_stream(), mt.Stream("other")))
        try:
            program.run([*beginning, *rest])
            program.check()
        finally:
            program.slots.clear()
            while program.lendings:  # polls: no, each pass ends one
                program.lendings.pop()
        del program
        assert table_sizes(mesh) == {0}
