"""What an operator gives for operands without data: the layouts of its results, which operands it writes, which it is a view of.

The results come from torch's fake tensors. They are remembered per operator and input signature by the controller.
"""

from __future__ import annotations

import itertools
import logging
import threading
from typing import Any, NamedTuple, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from monarch.extension.pickling import modes_off
from monarch.tensor._controller.uninterrupted import uninterrupted
from monarch.tensor._protocol.commands import Call, Input, Varying
from monarch.tensor._protocol.layout import Layout, layout_of, mark
from monarch.tensor._protocol.torch_internals import QUANTIZING, OpOverload, packet_name, schema_of, storage_id
from monarch.tensor.errors import TensorMeshError


class Result(NamedTuple):
    """One tensor among the results: a new one with a layout, or an operand. `source` is the operand whose memory a new one is a view of."""

    layout: Layout
    operand: int | None
    source: int | None


class Known(NamedTuple):
    """What is known of an operator for one input signature.

    `single` is the layout of the only result, where that is a new tensor and no operand is written, and `view_of` the operand whose memory
    it is a view of, if any. `only_writes`: operands are written and keep their layouts, and nothing new is returned, but the operand
    `returned` or nothing. These are the usual cases. `shape` is how the results lie in lists and tuples: a number is an entry of `results`,
    and anything else stands for itself. `relaid` are operands that get another layout.
    """

    call: Call
    single: Layout | None
    view_of: int | None
    only_writes: bool
    returned: int | None
    results: tuple[Result, ...]
    shape: Any
    mutates: tuple[int, ...]
    relaid: tuple[tuple[int, Layout], ...]


class Place(NamedTuple):
    """Of `Known.shape`: the place of a result."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]


# Types of an operator's arguments beside tensors, numbers and lists of them.
_SENT = {type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format}


class _Quiet(logging.Filter):
    """Keeps fake tensors from logging the tracebacks of errors that the program gets as exceptions; in this thread, while it propagates."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = threading.local()
        logging.getLogger("torch._subclasses.fake_tensor").addFilter(self)

    def __enter__(self) -> None:
        self._depth.value = getattr(self._depth, "value", 0) + 1

    def __exit__(self, *_: object) -> None:
        self._depth.value -= 1

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self._depth, "value", 0)


_quiet = _Quiet()


# Operators whose numbers decide shapes.
_NUMBERS_COUNT = {"arange", "range", "linspace", "logspace", "histc", "scalar_tensor"}

# Types of arguments; a number in the place of a tensor is one without dimensions.
_NUMBER_TYPES = {"number", "Scalar", "Optional[number]", "Optional[Scalar]", "Tensor", "Optional[Tensor]"}

# The cache is by the identity of the operator, which is kept here.
_scalars: dict[int, tuple[Any, frozenset[int | str]]] = {}


def varying_arguments(func: Any) -> frozenset[int | str]:
    """The places and names of arguments that are numbers and decide on no shape: the value of one is a constant of the command."""
    found = _scalars.get(id(func))
    if found is None:
        places: set[int | str] = set()
        schema = getattr(func, "_schema", None)
        if schema is not None and packet_name(func) not in _NUMBERS_COUNT:
            for place, argument in enumerate(schema.arguments):
                if str(argument.type) in _NUMBER_TYPES:
                    places.add(argument.name)
                    if not argument.kwarg_only:
                        places.add(place)
        found = _scalars[id(func)] = (func, frozenset(places))
    return found[1]


_local = threading.local()

# More elements than any tensor has.
_ROOM = 1 << 48


def fake_mode() -> Any:
    """The mode of this thread in which tensors have no data."""
    found = getattr(_local, "mode", None)
    if found is None:
        found = _local.mode = FakeTensorMode()
    return found


def fake_of(layout: Layout, room: int = 0) -> Any:
    """A tensor with this layout and no data, in memory with `room` for so many more elements. To be called in the fake mode."""
    if not layout.offset and 0 not in layout.shape and not room:
        return mark(torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=layout.device), layout.bits)
    last = sum((size - 1) * stride for size, stride in zip(layout.shape, layout.stride, strict=True)) if 0 not in layout.shape else 0
    base = torch.empty(layout.offset + last + 1 + room, dtype=layout.dtype, device=layout.device)
    return mark(base.as_strided(layout.shape, layout.stride, layout.offset), layout.bits)


def propagate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], handle_of: Any) -> Known:
    """`handle_of` gives the handle of a mesh tensor, and None for anything else.

    `TensorMeshError` where the results depend on data, or where the operator has no fake implementation; what the operator itself raises
    for such operands passes through.
    """
    grad = torch.is_grad_enabled()

    def run() -> Known:
        with torch.set_grad_enabled(grad):
            return _propagate(func, args, kwargs, handle_of)

    # Interrupted fake tensors leave torch in a state in which it ends the process.
    return uninterrupted(run)


def _propagate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], handle_of: Any) -> Known:
    if not isinstance(func, OpOverload):
        raise TensorMeshError(
            f"{func} is not an operator of torch's registry, and cannot be sent to a mesh. "
            "Work on local data goes inside of `no_mesh.activate()`."
        )
    if not _QUANTIZED.isdisjoint(v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)) or func in QUANTIZING:
        raise TensorMeshError(f"{func}: what is known of a quantized tensor without its data is wrong. {_BY_REMOTE}")
    varying = varying_arguments(func)
    # Only the workers know the size of the memory behind a view.
    room = _ROOM if func is torch.ops.aten.as_strided_.default else 0
    fakes: list[Any] = []
    # The function has no handles: a recursive function is a cycle of references, and would keep them until it is collected.
    inputs: list[Layout] = []
    constants = 0

    def template(value: Any, vary: bool) -> tuple[Any, Any]:
        """The argument for the definition, and the one for the fake execution."""
        nonlocal constants
        handle = handle_of(value)
        if handle is not None:
            inputs.append(handle.layout)
            fakes.append(fake_of(handle.layout, room))
            return Input(len(inputs) - 1), fakes[-1]
        if isinstance(value, list | tuple):
            several = cast("Any", value)
            pairs = [template(v, False) for v in several]
            kind = cast("Any", type(several))
            return kind(p[0] for p in pairs), kind(p[1] for p in pairs)
        if vary and type(value) in (int, float, complex):
            constants += 1
            return Varying(constants - 1), value
        if isinstance(value, torch.Generator):
            raise TensorMeshError(f"{func}: a generator of the controller cannot be used on a mesh. Use `monarch.tensor.manual_seed`.")
        if isinstance(value, torch.UntypedStorage | torch.TypedStorage):
            raise TensorMeshError(
                f"{func}: the storage of a mesh tensor is on the workers. `share_memory_` and the like go into a remote function, and "
                "`set_` takes a tensor of the mesh."
            )
        if type(value) not in _SENT:
            raise TensorMeshError(f"{func}: an argument of type {type(value).__name__} cannot be sent to a mesh. {_BY_REMOTE}")
        return value, value

    mode = fake_mode()
    # The caches of the mode are by layout as well, and this module's have precedence.
    with modes_off(), mode, _quiet:
        pairs = [template(a, i in varying) for i, a in enumerate(args)]
        named = {k: template(v, k in varying) for k, v in kwargs.items()}
        try:
            out = func(*(p[1] for p in pairs), **{k: p[1] for k, p in named.items()})
        except AssertionError as e:
            # Fake tensors do not support this, such as the memory of a device that this machine lacks.
            raise TensorMeshError(f"{func}: the shape of its result is not known on the controller. {_BY_REMOTE}") from e
        except Exception as e:
            explain(str(func), e)
            raise
    mutated, sources = _aliases(func, tuple(p[0] for p in pairs), {k: p[0] for k, p in named.items()})
    results: list[Result] = []
    # The position of each result among all leaves: a worker may return None for an unused tensor.
    leaves: list[int] = []
    counted = itertools.count()

    def place(value: Any, number: int) -> Any:
        if isinstance(value, list | tuple):
            return tuple(place(v, number) for v in value)  # pyright: ignore[reportUnknownVariableType]
        leaf = next(counted)
        if isinstance(value, torch.Tensor):
            operand = next((i for i, f in enumerate(fakes) if f is value), None)
            if operand is None and number in mutated:
                operand = mutated[number]
            source = sources.get(number)
            if source is None and operand is None:
                # Schemas have no aliases for views in lists, such as those of `split`.
                storage = _storage(value)
                source = next((i for i, f in enumerate(fakes) if _storage(f) == storage), None)
            results.append(Result(_layout(func, value), operand, source))
            leaves.append(leaf)
            return Place(len(results) - 1)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise TensorMeshError(_data_dependent(func))
        return value

    several = len(schema_of(func).returns) > 1
    shape = tuple(place(v, i) for i, v in enumerate(out)) if several else place(out, 0)
    written = tuple(sorted(set(_written(func, pairs, named))))
    relaid = tuple((i, after) for i in written if (after := _layout(func, fakes[i])) is not inputs[i])
    keep = tuple(leaf for leaf, r in zip(leaves, results, strict=True) if r.operand is None)
    default = torch.get_default_dtype()
    default = None if default is torch.float32 else default
    named_templates = {k: p[0] for k, p in named.items()}
    call = Call(str(func), tuple(p[0] for p in pairs), named_templates, len(inputs), constants, keep, written, default)
    alone = results[0] if len(results) == 1 and isinstance(shape, Place) else None
    single = alone.layout if alone is not None and alone.operand is None and not relaid and not written else None
    view_of = None if alone is None else alone.source
    returned = None if alone is None else alone.operand
    only_writes = bool(written) and not relaid and (returned is not None or not results)
    # The functions above refer to themselves: without this, they keep the operands until the next garbage collection.
    inputs.clear()
    fakes.clear()
    return Known(call, single, view_of, only_writes, returned, tuple(results), shape, written, relaid)


# Torch makes plain tensors of other types of these without data.
_QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})

_BY_REMOTE = 'Put it into a function with `remote(propagate="inspect")`, which runs it on the workers and asks one of them for the shapes.'


def _data_dependent(func: object) -> str:
    return (
        f"{func}: the shape or value of the result depends on data, which are on the workers. Fetch them with `inspect` or `fetch_shard`, "
        'or put the operation into a function with `remote(propagate="inspect")`.'
    )


def explain(func: str, error: Exception) -> None:
    """`TensorMeshError` for what tensors without data do not allow; nothing for other errors."""
    kind = type(error).__name__
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"):
        raise TensorMeshError(_data_dependent(func)) from None
    if kind in ("UnsupportedOperatorException", "MissingOpProfile") or (
        isinstance(error, NotImplementedError) and ("meta" in str(error).lower() or "fake" in str(error).lower())
    ):
        raise TensorMeshError(f"{func} has no fake implementation: what it returns is not known without data. {_BY_REMOTE}") from error
    if kind == "UnsupportedFakeTensorException":
        raise TensorMeshError(f"{func}: {error}. {_BY_REMOTE}") from error


def _layout(func: Any, value: Any) -> Layout:
    try:
        return layout_of(value)
    except TypeError as e:
        raise TensorMeshError(f"{func}: {e}. {_BY_REMOTE}") from None


def _storage(value: Any) -> Any:
    """What views of each other have in common. A result that is not strided is refused later."""
    return storage_id(value) if value.layout is torch.strided else None


def _first(template: Any) -> int | None:
    if isinstance(template, Input):
        return template.index
    return None


def _aliases(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[int, int], dict[int, int]]:
    """By the number of the return: the operand that it is, and the operand whose memory it has."""
    operand_of: dict[str, int] = {}
    schema = schema_of(func)
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None:
            continue
        given = args[place] if place < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
        index = _first(given)
        if index is not None:
            for name in argument.alias_info.before_set:
                operand_of[name] = index
    same: dict[int, int] = {}
    views: dict[int, int] = {}
    for number, returned in enumerate(schema.returns):
        if returned.alias_info is None:
            continue
        for name in returned.alias_info.before_set:
            if name in operand_of:
                (same if returned.alias_info.is_write else views)[number] = operand_of[name]
    return same, views


def _written(func: Any, pairs: list[tuple[Any, Any]], named: dict[str, tuple[Any, Any]]) -> list[int]:
    found: list[int] = []
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = pairs[place][0] if place < len(pairs) and not argument.kwarg_only else named.get(argument.name, (None, None))[0]
        several = isinstance(given, list | tuple) and not isinstance(given, Input | Varying)
        ones: list[Any] = [*given] if several else [given]
        for one in ones:
            if isinstance(one, Input):
                found.append(one.index)
    return found
