"""Commands that are sent together, and calls that are recorded once and replayed."""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree

from monarch.tensor._controller.active import active
from monarch.tensor._controller.checks import REQUIRES_GRAD, refusal
from monarch.tensor._controller.controllers import controllers
from monarch.tensor._controller.handle import Handle
from monarch.tensor._controller.memory import SHARED, Memory
from monarch.tensor._controller.place import Place, in_active_stream, place_of
from monarch.tensor._controller.place_base import PlaceBase
from monarch.tensor._controller.recorder import Freed, Operation, Order, Recorder, Used, comparable, compare
from monarch.tensor._protocol.commands import RELEASE, Replay
from monarch.tensor._tensors.mesh import Tensor, get_active_mesh, get_active_stream
from monarch.tensor._tensors.tensor_base import count_writes, new_tensor
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from monarch.tensor._controller.controller import Controller


@contextmanager
def coalescing() -> Generator[None]:
    """Inside, commands are kept, and sent as one message at the end or with a fetch."""
    block = _Block()
    held = [active.mesh.controller] if active.mesh is not None else controllers()
    try:
        for controller in held:
            controller.held.add(block)
        yield
    finally:
        for controller in held:
            controller.held.discard(block)
        for controller in held:
            if not controller.held and controller.failed is None:
                controller.flush()


class _Block:
    """One `coalescing`."""


class _Recording:
    """One signature of a compiled function."""

    def __init__(self, place: Place, recorder: Recorder, leaves: list[Any], out: Any, fn_name: str, before: list[Any]) -> None:
        self.recorder = recorder
        self.verified = False
        self.name = fn_name
        self.place = place
        controller = place.controller
        out_leaves, self.spec = _pytree.tree_flatten(out)
        self._arguments = [v for v in leaves if type(v) is Tensor]
        argument_of = {t.__core__.id: i for i, t in enumerate(self._arguments)}
        # The arguments whose number the call has written: a replay makes these unknown first.
        self._writes = [i for i, (t, value) in enumerate(zip(self._arguments, before, strict=True)) if t.__core__.memory.value is not value]
        # For each returned tensor: the argument that it is, itself if it existed before, or a new one with this layout.
        self.outs: list[Any] = []
        results: list[int] = []
        self.layouts: list[Any] = []
        # The places of the results: a reduction may have its result on a part of the mesh.
        self._places: list[Place] = []
        # For each tensor that a replay makes: the tensor whose memory it shares as a view.
        memories = [t.__core__.memory for t in self._arguments]
        made: list[Memory] = []
        self._shared: list[_Owner | None] = []
        for leaf in out_leaves:
            if type(leaf) is not Tensor:
                self.outs.append(("value", leaf))
                continue
            if leaf.requires_grad:
                raise refusal(f"compile({fn_name}) -> ", (out,), {}, _requires_grad)
            number = leaf.__core__.id
            if number in argument_of:
                self.outs.append(("argument", argument_of[number]))
            elif number in recorder.made:
                self.outs.append(("new", len(results)))
                results.append(number)
                self.layouts.append(leaf.__core__.layout)
                self._places.append(leaf.__core__.place)
                self._shared.append(_owner_of(leaf.__core__.memory, memories, recorder.used, made))
                made.append(leaf.__core__.memory)
            else:
                self.outs.append(("value", leaf))
        # A tensor that lives on although it is not returned, such as a gradient in `.grad`, is made again under its number.
        where_made = {n: operation.place for operation in recorder.operations() for n in operation.results}
        alive = {n for n in where_made if n not in results} - {n for e in recorder.log if isinstance(e, Freed) for n in e.numbers}
        for living in controller.living_places():
            alive -= set(living.released)
        self.survivors = sorted(alive)
        # Tensors that are the gradient of an argument, by its position, or of another tensor; and the references to the gradient.
        leaves_used = [(i, None, t) for i, t in enumerate(self._arguments)]
        seen = {t.__core__.id for t in self._arguments}
        for used in recorder.used.values():
            leaves_used += [(-1, ref, t) for n, ref in used.tensors.items() if n not in seen and (t := ref()) is not None]
        self._gradients: list[tuple[int, Any, int, int]] = []
        for i, ref, t in leaves_used:
            grad = t.grad if t.is_leaf else None
            if type(grad) is Tensor and grad.__core__.id in alive:
                self._gradients.append((i, ref, grad.__core__.id, sys.getrefcount(grad)))
        del leaves_used
        # Used memory and whether it is written: that of arguments, by their positions, and other memory.
        self._given = [(i, recorder.used[m].written) for i, m in enumerate(memories) if m in recorder.used]
        self._used = [(used.memory, used.written) for used in recorder.used.values() if used.memory not in memories]
        # Written memory, for the versions that autograd compares.
        self._written_given = [i for i, written in self._given if written]
        self._written = [ref for used in recorder.used.values() if used.written for ref in used.tensors.values()]
        # Numbers of arguments, by their positions, and other numbers.
        self._numbers_given = [(i, v) for m, v in recorder.numbers_read for i, of in enumerate(memories) if of is m]
        self._numbers_used = [(m, v) for m, v in recorder.numbers_read if not any(of is m for of in memories)]
        del self._arguments
        names = {n: -(i + 1) for i, n in enumerate([*recorder.formals, *sorted(recorder.made)])}
        self._returned = [names[n] for n in results]
        for operation in recorder.operations():
            controller.pinned.add(operation.definition)
        self.definition: int | None = None
        self._commands: Commands | None = None
        if recorder.is_elsewhere:
            self._commands = Commands(recorder, results, self.survivors)
        else:
            self.definition = controller.define(_replay(controller, recorder, names, results, self.survivors, fn_name))
        self._pinned = {**recorder.captured, **{n: where_made[n] for n in self.survivors}}
        for number in self._pinned:
            controller.pin(number)
        weakref.finalize(self, _forget, weakref.ref(controller), self.definition, self._pinned)

    def returns_the_same(self, other: _Recording) -> bool:
        """Whether both calls have returned the same: new tensors of the same commands, arguments, and equal values."""
        if self.spec != other.spec or self._returned != other._returned or len(self.outs) != len(other.outs):
            return False
        for (kind, one), (other_kind, another) in zip(self.outs, other.outs, strict=True):
            if kind != other_kind or type(one) is not type(another):
                return False
            if isinstance(one, torch.Tensor):
                if one is not another:
                    return False
            elif comparable(one) != comparable(another):
                return False
        return True

    def is_valid(self, leaves: list[Any]) -> bool:
        """Whether a replay does what the call would: what it uses and what it left behind are still there, and the numbers it has read."""
        if self.place.controller.are_lost(self._pinned, set(self._pinned.values())):
            return False
        arguments = [v for v in leaves if type(v) is Tensor]
        # If a command may no longer use a memory as the call has, the call itself raises the reason.
        for memory, written in self._used:
            if memory.state is not None and (written or memory.state != SHARED):
                return False
        for index, written in self._given:
            state = arguments[index].__core__.memory.state
            if state is not None and (written or state != SHARED):
                return False
        for index, ref, number, references in self._gradients:
            tensor = arguments[index] if ref is None else ref()
            if tensor is None:
                return False
            # If the program has kept the gradient, which adds one reference, a replay must not write to it.
            grad = tensor.grad
            if type(grad) is not Tensor or grad.__core__.id != number or sys.getrefcount(grad) != references:
                return False
        numbers = [*self._numbers_used, *((arguments[i].__core__.memory, value) for i, value in self._numbers_given)]
        return all(_is_same(memory.value, value) for memory, value in numbers)

    def run(self, leaves: list[Any]) -> Any:
        place = self.place
        controller = place.controller
        arguments = [v for v in leaves if type(v) is Tensor]
        given = [t.__core__.id for t in arguments]
        if self.definition is None:
            assert self._commands is not None
            numbers = self._commands.send(controller, given)
        else:
            numbers = [next(controller.numbers) for _ in self.layouts]
            controller.emit(place, self.definition, given, (), (*numbers, *self.survivors))
        for memory in (*self.recorder.known, *(arguments[i].__core__.memory for i in self._writes)):
            memory.value = None
        written = [arguments[i] for i in self._written_given]
        written += [t for ref in self._written if (t := ref()) is not None]
        count_writes(written)
        made: list[Tensor] = []
        for number, layout, where, shared in zip(numbers, self.layouts, self._places, self._shared, strict=True):
            memory = Memory() if shared is None else shared.memory([t.__core__.memory for t in (arguments if shared.of_argument else made)])
            made.append(new_tensor(Handle(number, layout, memory, where)))
        out: list[Any] = [made[v] if kind == "new" else arguments[v] if kind == "argument" else v for kind, v in self.outs]
        return _pytree.tree_unflatten(out, self.spec)


class _Owner(NamedTuple):
    """Of a result that is a view: the argument, or the result, by its place, or the other memory that it is a view of."""

    of_argument: bool
    place: int
    other: Memory | None

    def memory(self, memories: list[Memory]) -> Memory:
        return memories[self.place] if self.other is None else self.other


def _owner_of(memory: Memory, arguments: list[Memory], used: dict[Memory, Used], made: list[Memory]) -> _Owner | None:
    """Of a result: what it is a view of, if it is one."""
    for of_argument, memories in ((True, arguments), (False, made)):
        for place, other in enumerate(memories):
            if other is memory:
                return _Owner(of_argument, place, None)
    return _Owner(False, 0, memory) if memory in used else None


def _replay(
    controller: Controller, recorder: Recorder, names: dict[int, int], results: list[int], survivors: list[int], fn_name: str
) -> Replay:
    """The definition of a recording whose commands are all at one place."""
    code: list[int] = []
    constants: list[Any] = []
    kept = {*results, *survivors}
    for entry in recorder.log:
        if isinstance(entry, Operation):
            code += (entry.definition, *(names.get(n, n) for n in entry.inputs), *(names[n] for n in entry.results))
            constants += entry.constants
        elif isinstance(entry, Freed):
            freed = [names[n] for n in entry.numbers if n not in kept]
            if freed:
                code += (RELEASE, len(freed), *freed)
    base = next(controller.numbers) << 24

    def shift(values: Sequence[int]) -> list[int]:
        return [v - base if v < 0 else v for v in values]

    return Replay(
        ((0, tuple(_shifted(code, controller, shift)), tuple(constants)),),
        tuple(shift([names[n] for n in recorder.formals])),
        tuple(shift([names[n] for n in (*results, *survivors)])),
        len(recorder.formals),
        tuple(range(len(results) + len(survivors))),
        tuple(recorder.captured),
        name=f"compile({fn_name})",
    )


class Commands:
    """A recording with commands at several places: the controller sends them again, with other numbers for what they make."""

    def __init__(self, recorder: Recorder, results: Sequence[int], survivors: Sequence[int]) -> None:
        self._formals = recorder.formals
        self._results = results
        self._new = sorted(recorder.made.difference(survivors))
        self._log: list[Operation | Order | tuple[PlaceBase, list[int]]] = []
        kept = {*results, *survivors}
        freed: set[int] = set()
        where: dict[int, PlaceBase] = {}
        for entry in recorder.log:
            if isinstance(entry, Freed):
                numbers = [n for n in entry.numbers if n not in kept]
                freed.update(numbers)
                if numbers:
                    self._log.append((recorder.places.get(entry.head, where[numbers[0]]), numbers))
                continue
            if isinstance(entry, Operation):
                where.update(dict.fromkeys(entry.results, entry.place))
            self._log.append(entry)
        # Tensors that have died since.
        self._log += [(where[n], [n]) for n in self._new if n not in kept and n not in freed]

    def send(self, controller: Controller, given: Sequence[int]) -> list[int]:
        """Sends them for arguments with these numbers; gives those of the results."""
        new = {n: next(controller.numbers) for n in self._new}
        names = {**new, **dict(zip(self._formals, given, strict=True))}
        get = names.get
        commands: list[tuple[Any, ...]] = []
        for entry in self._log:
            if isinstance(entry, Operation):
                inputs, results = [get(n, n) for n in entry.inputs], [get(n, n) for n in entry.results]
                commands.append((entry.place, entry.definition, inputs, entry.constants, results))
            elif isinstance(entry, Order):
                commands.append(entry)
            else:
                commands.append((entry[0], tuple(new[n] for n in entry[1])))
        controller.emit_all(commands)
        return [new[n] for n in self._results]


def _shifted(code: list[int], controller: Controller, shift: Callable[[Sequence[int]], list[int]]) -> list[int]:
    """The code with the numbers of the recording moved out of the way of other recordings; opcodes stay."""
    found: list[int] = []
    at = 0
    while at < len(code):
        head = code[at]
        if head > 0:
            definition = controller.definition(head)
            after = at + 1 + definition.inputs + len(definition.keep)
            found.append(head)
            found += shift(code[at + 1 : after])
        else:
            after = at + 2 + code[at + 1]
            found += (head, code[at + 1])
            found += shift(code[at + 2 : after])
        at = after
    return found


def _forget(controller: Any, definition: int | None, pinned: dict[int, PlaceBase]) -> None:
    alive = controller()
    if alive is not None and alive.failed is None:
        alive.unpin(pinned)
        if definition is not None:
            alive.forget_definition(definition)
        alive.stir()


def _requires_grad(value: Any) -> tuple[str, dict[str, str]] | None:
    return (REQUIRES_GRAD, {}) if type(value) is Tensor and value.requires_grad else None


def compile(fn: Callable[..., Any] | None = None, verify: bool = True) -> Any:
    """A function of mesh tensors whose commands are recorded with its first call per signature, and sent as one message afterwards.

    The signature are the layouts and places of tensors, which of them are the same one, and the values of other arguments. The second call
    runs the function again and compares with the recording, unless `verify=False`: `TensorMeshError` names the first difference. Later
    calls do not run its Python code. They record it anew where a tensor is gone that it uses without being given it, or leaves behind, as
    in `.grad`, and where a number has changed that it has read by `item()`. Where commands are in several streams, or on parts of the
    mesh, a later call sends each of them again, as one message. A recorded call fetches nothing, and ends the borrows that it begins.
    `TypeError` for local tensors among the arguments and, where grad is enabled, before the call for those that require grad; and for
    returned tensors that require grad.
    """
    if fn is None:
        return functools.partial(compile, verify=verify)
    if not callable(fn):  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError(f"compile: expected a function of mesh tensors, not {fn!r}")
    function = fn
    recordings: dict[Any, _Recording] = {}
    name = getattr(fn, "__qualname__", repr(fn))

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        place = _place_of_call(leaves)
        if torch.is_grad_enabled() and any(_requires_grad(v) for v in leaves):
            raise refusal(f"compile({name})", args, kwargs, _requires_grad)
        seen: dict[int, int] = {}
        try:
            key = (spec, place, *_modes(), *(_signature(v, seen) for v in leaves))
        except _Refused as e:
            raise TypeError(f"compile({name}): {_path_of(args, kwargs, e.value)} {e.why}") from None
        found = recordings.get(key)
        if found is not None and (place.controller.failed is not None or not found.is_valid(leaves)):
            del recordings[key]
            found = None
        if found is not None and (found.verified or not verify):
            return found.run(leaves)
        recorder = Recorder(place, [v.__core__.id for v in leaves if type(v) is Tensor])
        controller = place.controller
        with controller.lock:
            if controller.recorder is not None:
                raise TensorMeshError(f"compile({name}): another recording is under way")
            # Tensors that died before are no part of the recording.
            controller.flush()
            controller.recorder = recorder
        before = [v.__core__.memory.value for v in leaves if type(v) is Tensor]
        try:
            out = function(*args, **kwargs)
            # The flush includes tensors that have died in it.
            controller.flush()
            recorder.end(name, controller.knows)
        finally:
            with controller.lock:
                controller.recorder = None
        if len(recordings) >= 64:
            recordings.clear()
        # This includes the second call: its remaining tensors are the program's present ones.
        recordings[key] = _Recording(place, recorder, leaves, out, name, before)
        if found is not None:
            # After a difference the next call is compared with this one.
            compare(name, controller.definition, found.recorder, recorder)
            if not recordings[key].returns_the_same(found):
                raise TensorMeshError(
                    f"compile({name}): its second call returned something else than the recorded one, by the same operations"
                )
            recordings[key].verified = True
        return out

    return call


def _place_of_call(leaves: list[Any]) -> Place:
    """Where a call begins: on the active mesh, else where its first mesh tensor is."""
    if active.mesh is None:
        for leaf in leaves:
            if type(leaf) is Tensor:
                return in_active_stream(leaf.__core__.place)
    return place_of(get_active_mesh(), get_active_stream())


def _is_same(now: Any, then: Any) -> bool:
    """Of numbers as local tensors; None is one that is not known any more."""
    return now is not None and now.dtype == then.dtype and torch.equal(now.view(1).view(torch.uint8), then.view(1).view(torch.uint8))


def _signature(value: Any, seen: dict[int, int]) -> Any:
    """`seen`: by the number of a tensor, its place among the arguments."""
    if type(value) is Tensor:
        handle = value.__core__
        return (handle.layout, handle.place, value.requires_grad, seen.setdefault(handle.id, len(seen)))
    if isinstance(value, torch.Tensor):
        raise _Refused(value, "(LOCAL_TENSOR) is on the controller only, and a replay would have the numbers of the recording")
    if type(value) is slice:
        return (slice, *(_signature(v, seen) for v in (value.start, value.stop, value.step)))
    try:
        hash(value)
    except TypeError:
        kind = type(value).__name__
        raise _Refused(value, f"is of type {kind}, which has no hash: it cannot be compared with that of the recording") from None
    return (type(value), comparable(value))


class _Refused(Exception):
    """An argument that has no signature."""

    def __init__(self, value: Any, why: str) -> None:
        self.value = value
        self.why = why


def _path_of(args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> str:
    """Where it is among the arguments."""
    for path, leaf in _pytree.tree_flatten_with_path((args, kwargs))[0]:
        if leaf is value or (type(leaf) is slice and any(v is value for v in (leaf.start, leaf.stop, leaf.step))):
            return f"argument {_pytree.keystr(path[1:2])}{_pytree.keystr(path[2:])}"
    return "an argument"


def _modes() -> tuple[Any, ...]:
    """What torch's operators depend on beside their arguments."""
    autocast = [torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in ("cpu", "cuda")]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), *autocast
