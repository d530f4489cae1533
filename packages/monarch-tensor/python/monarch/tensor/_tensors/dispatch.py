"""Torch calls of an active mesh: checked, propagated, and sent as commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from monarch.extension.pickling import modes_off
from monarch.tensor._controller import checks
from monarch.tensor._controller.handle import Handle
from monarch.tensor._controller.memory import BORROWED, DROPPED, SHARED, Memory
from monarch.tensor._controller.place import Place, in_active_stream
from monarch.tensor._controller.propagate import Known, propagate, varying_arguments
from monarch.tensor._controller.propagate import Place as ResultPlace
from monarch.tensor._controller.recomputation import refuse_other_numbers
from monarch.tensor._protocol.commands import Constant
from monarch.tensor._protocol.frames import frames_of
from monarch.tensor._protocol.layout import Layout, layout_of
from monarch.tensor._protocol.torch_internals import LOCAL_SCALAR, current_graph_task_id, schema_of
from monarch.tensor._tensors.tensor_base import TENSOR_TYPES, emit_new, needs_data, new_tensor, set_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_aten = torch.ops.aten

# Operators that bring a tensor of the controller to the mesh: `torch.tensor(...)` ends in one of these.
_LIFTS = {_aten.lift_fresh.default, _aten.lift_fresh_copy.default, _aten.lift.default}

# Operators that give their first operand the memory of the second one, or new memory.
_SETS = {_aten.set_.default, _aten.set_.source_Tensor, _aten.set_.source_Tensor_storage_offset}

# The operator with which a `DataLoader` and `torch.load` begin to make a tensor of memory of the controller.
_EMPTY = _aten.empty.memory_format

# Operators that draw random numbers, by identity: an operator's own hash runs Python code.
_random: dict[int, Any] = {}

# Operators that make a tensor of one number.
_NUMBERS = {_aten.ones.default, _aten.zeros.default, _aten.full.default, _aten.scalar_tensor.default}

# Namespaces of marks for the profiler of this process.
_LOCAL_NAMESPACES = {"profiler"}

_NUMBER = frozenset({int, float, bool, complex})
_default_dtype = torch.get_default_dtype


class _Unusual(Exception):
    """An operand that needs a look: of another place, dropped, borrowed, local."""


class MeshMode(TorchDispatchMode):
    """Takes the operators of a thread while it is active."""

    # Torch would import its compiler with the first operator, to exclude it from this mode, which takes 2 s. The compiler never reaches
    # this mode.
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, place: Place | None) -> None:
        super().__init__()
        self.place = place

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        place = self.place
        if place is None:
            # This also applies to the modes outside of this one. Subclasses of tensors, such as those of a mesh, handle their operators
            # themselves.
            with modes_off() if types else no_dispatch():
                return func(*args, **(kwargs or {}))
        operands: list[Any] = []
        numbers: list[int] = []
        constants: list[Any] = []
        try:
            key = _signature(func, args, kwargs, place, operands, numbers, constants)
        except _Unusual:
            if func in _LIFTS:
                return _lifted(place, args[0])
            if _is_local(args) and _is_local((kwargs or {}).values()):
                # Tensors that were fetched, or made outside, are used as usual: only a mixture is refused.
                with modes_off() if types else no_dispatch():
                    return func(*args, **(kwargs or {}))
            if current_graph_task_id() >= 0 and (other := _common_place(args, kwargs or {})) is not None and other is not place:
                # A graph may include several meshes: each node computes on the mesh of its gradients.
                with MeshMode(other):
                    return func(*args, **(kwargs or {}))
            place.controller.end_forgotten()
            _refuse_unusable(func, args, kwargs or {}, place)
            operands, numbers, constants = [], [], []
            key = _signature(func, args, kwargs, None, operands, numbers, constants)
        controller = place.controller
        found = controller.cache.get(key)
        if found is None:
            return _first(place, func, args, kwargs or {}, key, operands, constants)
        known, definition = found
        if controller.recorders:
            controller.uses(operands, known.mutates)
        layout = known.single
        if layout is not None:
            number = next(controller.numbers)
            controller.emit(place, definition, numbers, constants, (number,))
            source = known.view_of
            return new_tensor(Handle(number, layout, Memory() if source is None else operands[source].__core__.memory, place))
        if known.only_writes:
            for index in known.mutates:
                if operands[index].__core__.memory.value is not None:
                    break
            else:
                controller.emit(place, definition, numbers, constants, ())
                return operands[index] if (index := known.returned) is not None else known.shape
        return _several(place, func, args, kwargs or {}, known, definition, operands, constants)


def _signature(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    place: Place | None,
    operands: list[Any],
    numbers: list[int],
    constants: list[Any],
) -> tuple[Any, ...]:
    """The key of the cache for a call; fills the operands, their numbers and the constants.

    `_Unusual` for what `place` has not at hand, unless it is None.
    """
    # An operator's own hash runs Python code. The identity is safe: `varying_arguments` keeps the operator.
    key: list[Any] = [id(func), _default_dtype()]
    varying = varying_arguments(func)
    position = 0
    # The three loops over operands, here and in `_list`, are alike and stay separate: a call for each operand would cost more than its
    # body.
    for value in args:
        kind = value.__class__
        if kind in TENSOR_TYPES:
            handle = value.__core__
            if place is not None and (handle.place is not place or handle.memory.state is not None):
                raise _Unusual
            operands.append(value)
            numbers.append(handle.id)
            key.append(handle.layout)
        elif kind in _NUMBER:
            key.append(kind)
            if position in varying and kind is not bool:
                constants.append(value)
            else:
                key.append(value)
        elif kind is list or kind is tuple:
            _list(value, place, key, operands, numbers)
        elif isinstance(value, torch.Tensor):
            raise _Unusual
        else:
            key.append(value)
        position += 1
    if kwargs:
        for name, value in kwargs.items():
            key.append(name)
            kind = value.__class__
            if kind in _NUMBER:
                key.append(kind)
                if name in varying and kind is not bool:
                    constants.append(value)
                else:
                    key.append(value)
            elif kind in TENSOR_TYPES or kind is list or kind is tuple:
                _list((value,), place, key, operands, numbers)
            elif isinstance(value, torch.Tensor):
                raise _Unusual
            else:
                key.append(value)
    return tuple(key)


def _list(values: Any, place: Place | None, key: list[Any], operands: list[Any], numbers: list[int]) -> None:
    key.append(len(values))
    for value in values:
        kind = value.__class__
        if kind in TENSOR_TYPES:
            handle = value.__core__
            if place is not None and (handle.place is not place or handle.memory.state is not None):
                raise _Unusual
            operands.append(value)
            numbers.append(handle.id)
            key.append(handle.layout)
        elif kind is list or kind is tuple:
            _list(value, place, key, operands, numbers)
        elif isinstance(value, torch.Tensor):
            raise _Unusual
        else:
            key.append(kind)
            key.append(value)


def _is_local(values: Any) -> bool:
    """Whether there is no mesh tensor among them."""
    return all(_is_local(v) if isinstance(v, list | tuple) else type(v) not in TENSOR_TYPES for v in values)


def _common_place(args: Sequence[Any], kwargs: dict[str, Any]) -> Place | None:
    """Where all mesh tensors among the operands are."""
    places = {id(p): p for v in _pytree.tree_leaves((args, kwargs)) if type(v) in TENSOR_TYPES and (p := v.__core__.place).mesh is not None}
    return next(iter(places.values())) if len(places) == 1 else None


def _handle_or_none(value: Any) -> Handle | None:
    return value.__core__ if type(value) in TENSOR_TYPES else None


def _lifted(place: Place, value: Any) -> Any:
    """A tensor of the controller on all ranks: a copy of it as it is now."""
    if type(value) in TENSOR_TYPES:
        return value
    layout = layout_of(value)
    layout = layout.with_shape(layout.shape)
    with no_dispatch():
        data = value.detach().clone(memory_format=torch.contiguous_format)
    made = emit_new(place, Constant(), (), layout, (data,))
    if not layout.shape:
        made.__core__.memory.value = data
    return made


def _first(
    place: Place, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: tuple[Any, ...], operands: list[Any], constants: list[Any]
) -> Any:
    """A call whose signature is new."""
    if func is LOCAL_SCALAR or func is _aten.item.default:
        value = _number(operands[0])
        if value is None:
            raise needs_data("a number or truth value of it (`item()`, `float()`, `bool()`, `if`, ...)")
        if (recorder := place.controller.recorder) is not None:
            recorder.read(operands[0].__core__.memory)
        return value.item()
    if func in _LIFTS:
        return args[0]
    if getattr(func, "namespace", "") in _LOCAL_NAMESPACES:
        with no_dispatch():
            return func(*args, **kwargs)
    controller = place.controller
    if func is _EMPTY and list(args[0]) == [0]:
        if _is_rebuilding():
            with no_dispatch():
                return func(*args, **kwargs)
        # Such calls are not cached: each one is propagated.
        known = propagate(func, args, kwargs, _handle_or_none)
        number = controller.define_known(known)
        try:
            return _several(place, func, args, kwargs, known, number, operands, constants)
        finally:
            controller.forget_definition(number)
    known = propagate(func, args, kwargs, _handle_or_none)
    if (
        known.single is not None
        and known.view_of is None
        and not known.single.shape
        and (all(not t.__core__.layout.shape for t in operands) if operands else func in _NUMBERS)
    ):
        # Known numbers stay known: this takes the slow path.
        known = known._replace(single=None)
    if func in _SETS:
        known = known._replace(only_writes=False)
    if torch.Tag.nondeterministic_seeded in func.tags:
        _random[id(func)] = func
        known = known._replace(single=None, only_writes=False)
    controller.uses(operands, known.mutates)
    definition = controller.remember(key, known)
    return _several(place, func, args, kwargs, known, definition, operands, constants)


def _is_rebuilding() -> bool:
    """Whether torch makes a tensor out of what was sent or saved: that is one of the controller, as if no mesh were active."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    for _ in range(8):
        if frame.f_code.co_name == "_rebuild_tensor" and frame.f_code.co_filename.endswith("_utils.py"):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _several(
    place: Place,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: Known,
    definition: int,
    operands: list[Any],
    constants: list[Any],
) -> Any:
    """The general case: views, operands that are written, several results, operands with another layout."""
    controller = place.controller
    if id(func) in _random:
        refuse_other_numbers(func)
    values = _known_values(known, func, args, kwargs, operands)
    made: list[Any] = []
    numbers: list[int] = []
    for result in known.results:
        if result.operand is not None:
            made.append(operands[result.operand])
            continue
        number = next(controller.numbers)
        numbers.append(number)
        memory = Memory() if result.source is None else operands[result.source].__core__.memory
        made.append(new_tensor(Handle(number, result.layout, memory, place)))
    controller.emit(place, definition, [t.__core__.id for t in operands], constants, numbers)
    if controller.recorder is not None:
        controller.recorder.known += [m for i in known.mutates if (m := operands[i].__core__.memory).value is not None]
    if func not in _SETS:
        for index in known.mutates:
            operands[index].__core__.memory.value = None if values is None else values[0][index]
    # A view has the number of its memory.
    if values is not None and not known.mutates and len(made) == 1 and known.results[0].source is None:
        made[0].__core__.memory.value = values[1]
    for index, layout in known.relaid:
        _relay(operands[index], layout)
    if func in _SETS:
        _rebase(operands[0].__core__, operands[1].__core__.memory if len(operands) > 1 else Memory())
    return _shaped(known.shape, made)


def _number(tensor: Any) -> Any:
    """The number that a tensor without dimensions is known to have, as a local tensor; else None."""
    handle = tensor.__core__
    value = handle.memory.value
    # A view with another type has other numbers, as `x.real` has.
    return value if value is not None and value.dtype == handle.layout.dtype and not handle.layout.bits else None


def _known_values(
    known: Known, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Any]
) -> tuple[list[Any], Any] | None:
    """The operands and the result of an operation on numbers that are all known, as `step += 1` of an optimiser, after it; else None."""
    for operand in operands:
        if operand.__core__.layout.shape or _number(operand) is None:
            return None
    if not operands and (func not in _NUMBERS or known.results[0].layout.shape):
        return None
    if torch.Tag.nondeterministic_seeded in func.tags:
        return None
    recorder = operands[0].__core__.place.controller.recorder if operands else None
    # Operands of one memory are one number, even if several of them are written.
    clones: dict[int, Any] = {}
    values: list[Any] = []
    for operand in operands:
        memory = operand.__core__.memory
        if recorder is not None:
            recorder.compute_with(memory)
        if id(memory) not in clones:
            clones[id(memory)] = memory.value.clone()
        values.append(clones[id(memory)])
    left = iter(values)
    try:
        with no_dispatch():
            out = func(*(_local(a, left) for a in args), **{k: _local(v, left) for k, v in kwargs.items()})
    except Exception:
        # The workers report the problem; they also report a warning that the program has turned into an error.
        return None
    return values, out if isinstance(out, torch.Tensor) and not out.dim() and out.device.type == "cpu" else None


def _local(value: Any, left: Iterator[Any]) -> Any:
    """An argument with numbers in the place of mesh tensors, in the order of operands."""
    if type(value) in TENSOR_TYPES:
        return next(left)
    return [_local(v, left) for v in value] if isinstance(value, list | tuple) else value  # pyright: ignore[reportUnknownVariableType]


def _relay(tensor: Any, layout: Layout) -> None:
    """Gives a tensor another layout, as `resize_` and `transpose_` do."""
    tensor.__core__.layout = layout
    with no_dispatch():
        set_data(tensor, new_tensor(tensor.__core__))


def _rebase(handle: Handle, memory: Memory) -> None:
    """Gives a tensor other memory, as `set_` does."""
    handle.memory.discard(handle.id)
    handle.memory = memory
    memory.add(handle.id)


def _shaped(shape: Any, made: list[Any]) -> Any:
    if isinstance(shape, ResultPlace):
        return made[shape.index]
    if isinstance(shape, tuple):
        return tuple(_shaped(s, made) for s in shape)  # pyright: ignore[reportUnknownVariableType]
    return shape


# Operands that cannot be used


def _problem(place: Place, value: Any, written: bool) -> tuple[str, dict[str, str]] | None:
    if not isinstance(value, torch.Tensor):
        return None
    if type(value) not in TENSOR_TYPES:
        return checks.LOCAL_TENSOR, {}
    handle = value.__core__
    if handle.memory.state == DROPPED:
        frames = frames_of(handle.memory.dropped_at or ())
        return checks.DROPPED, {"of": str(frames[0]) if frames else "the end of its borrow"}
    if handle.place.mesh != place.mesh:
        of, here = repr(handle.place.mesh), repr(place.mesh)
        return checks.WRONG_MESH, {"of": of, "here": here if here != of else f"{here}, another one of this shape"}
    if handle.place.stream is not place.stream:
        of, here = handle.place.stream.name, place.stream.name
        return checks.WRONG_STREAM, {"of": of, "here": here if here != of else f"{here}, another one of this name"}
    if handle.memory.state == BORROWED:
        return checks.BORROWED, {}
    if handle.memory.state == SHARED and written:
        return checks.MUTATING_BORROW, {}
    return None


def check_operands(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], place: Place, writes: Sequence[Any] = (), autograd: bool = False
) -> None:
    """For what is no operator of torch: `TypeError` with the operands that cannot be used. `autograd`: it reaches through."""
    place.controller.end_forgotten()
    found: list[str] = []

    def problem(value: Any) -> tuple[str, dict[str, str]] | None:
        written = any(value is w for w in writes)
        wrong = _problem(place, value, written)
        if wrong is None and type(value) in TENSOR_TYPES:
            place.controller.uses((value,), (0,) if written else ())
        if wrong is None and not autograd and isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
            found.append(checks.REQUIRES_GRAD)
            return checks.REQUIRES_GRAD, {}
        if wrong is not None:
            found.append(wrong[0])
        return wrong

    _raise_if(found, checks.refusal(name, args, kwargs, problem))


def map_tensors(name: str, tree: Any, apply: Callable[[Any], Any], *kinds: type) -> Any:
    """A pytree with `apply` of each mesh tensor in it, and of what is of `kinds`. `TypeError` for a local tensor."""

    def applied(value: Any) -> Any:
        if type(value) in TENSOR_TYPES or isinstance(value, kinds):
            return apply(value)
        if isinstance(value, torch.Tensor):
            raise checks.refusal(name, (value,), {}, lambda _: (checks.LOCAL_TENSOR, {}))
        return value

    return _pytree.tree_map(applied, tree)


def _refuse_unusable(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> None:
    """`TypeError` if an operand cannot be used here; else nothing: what is shared may be read."""
    written = _written(func, args, kwargs)
    found: list[str] = []

    def problem(value: Any) -> tuple[str, dict[str, str]] | None:
        wrong = _problem(place, value, any(value is w for w in written))
        if wrong is not None:
            found.append(wrong[0])
        return wrong

    _raise_if(found, checks.refusal(str(func), args, kwargs, problem))


def _raise_if(found: list[str], refusal: TypeError) -> None:
    try:
        if found:
            raise refusal
    finally:
        # The traceback has this frame: both would hold the tensors of the program until the garbage collector runs.
        del refusal


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for position, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
            found += given if isinstance(given, list | tuple) else [given]  # pyright: ignore[reportUnknownArgumentType]
    return found


def _own_place(values: Any) -> Place | None:
    """Where an operation on these operands runs while no mesh is active: where the first mesh tensor among them is."""
    for value in values:
        if type(value) in TENSOR_TYPES:
            return in_active_stream(value.__core__.place)
        if isinstance(value, list | tuple) and (found := _own_place(value)) is not None:
            return found
    return None


def outside(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with mesh tensors where no mesh is active."""
    place = _own_place(args) or _own_place(kwargs.values())
    assert place is not None
    # The mode is not entered: it would handle other calls, which have no mesh.
    return MeshMode(place).__torch_dispatch__(func, types, args, kwargs)
