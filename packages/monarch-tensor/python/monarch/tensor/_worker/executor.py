"""Executes the commands of a controller on one rank."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import re
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from monarch.extension.pickling import loads
from monarch.tensor._protocol.commands import (
    RELEASE,
    SIGNAL,
    WAIT,
    Alias,
    Apply,
    Call,
    Constant,
    Hand,
    Held,
    Move,
    Offer,
    Pull,
    RankOf,
    Reduce,
    Replay,
    Resume,
    Segment,
    Unpack,
)
from monarch.tensor._protocol.failures import Failure
from monarch.tensor._protocol.function_reference import FunctionReference
from monarch.tensor._protocol.torch_internals import BelowAutograd, OpOverload, bare_operator, storage_id
from monarch.tensor._worker import handoff
from monarch.tensor._worker.arguments import caller, filler, held_in, unpacked
from monarch.tensor._worker.collectives import Collectives, is_of_backend
from monarch.tensor._worker.methods import method_of
from monarch.tensor._worker.offers import offers
from monarch.tensor._worker.poison import Poison, PoisonedElsewhere, poison_among
from monarch.tensor._worker.replays import Replayed
from monarch.tensor._worker.results import checked_results
from monarch.tensor._worker.stream_thread import StreamThread

if TYPE_CHECKING:
    from monarch.tensor._protocol.commands import Definition
    from monarch.tensor._worker.groups import Groups

_NAME = re.compile(r"([A-Za-z_]\w*)(?:::|\.)([A-Za-z_]\w*)\.([A-Za-z_]\w*)")

# Operators that a module of torch itself defines when it is imported, with their first use on the controller.
_DEFINED_IN = {"torch_nn": "torch.nn.modules.linear_cross_entropy"}

# Operators that leave out a result for the backward if autograd is off, as it is on a worker.
_LOOK_AT_GRAD_MODE = {"aten.mkldnn_rnn_layer.default"}

# Seconds that the end of a worker waits for the tasks of its streams.
_END_SECONDS = 1.0

_OWN = os.path.dirname(__file__) + os.sep

# The most consecutive reports of failures without a fetch: later failures are poisoned all the same.
_REPORTS = 64


# Its tensors, and the constants of a segment with the place of its first one.
_Operator = Callable[[list[Any], list[Any], int], Any]


class BrokenBatch(Exception):
    """Commands of a batch cannot be executed, so that nothing that came of it can be trusted."""


def operator_of(name: str) -> Any:
    """The operator of torch's registry with this name. `LookupError` for anything else: a name is never imported or evaluated."""
    match = _NAME.fullmatch(name)
    found: Any = None
    if match is not None:
        space, operator, overload = match.groups()
        packet = getattr(getattr(torch.ops, space), operator, None)
        if packet is None and space in _DEFINED_IN:
            with contextlib.suppress(ImportError):  # an older torch
                importlib.import_module(_DEFINED_IN[space])
            packet = getattr(getattr(torch.ops, space), operator, None)
        found = getattr(packet, overload, None)
    if not isinstance(found, OpOverload):
        raise LookupError(f"{name!r} is no operator of torch's registry on this worker, which has torch {torch.__version__}")
    return found


def function_of(reference: tuple[bytes, ...] | str) -> Any:
    """A remote function: a pickle of it and the memory beside that, or its import path `module.name`."""
    if isinstance(reference, tuple):
        return _function(loads(reference[0], list(reference[1:])))
    module, _, name = reference.rpartition(".")
    if not module:
        raise ValueError(f"{reference!r} is no import path: it has no module")
    return _function(getattr(importlib.import_module(module), name))


def _function(found: Any) -> Any:
    # A decorated function is pickled by its name, under which the module has the decorator's result.
    if not isinstance(found, FunctionReference):
        return found
    return function_of(found.function) if isinstance(found.function, str) else found.function


class Step:
    """A definition as it is executed: how many numbers of the code it has, and what they are given to."""

    __slots__ = ("checks", "constants", "inputs", "keep", "may_miss", "mutates", "name", "operator", "results", "run", "takes_poison")

    def __init__(self, definition: Definition, run: Callable[[int, list[Any], list[Any]], Any], operator: _Operator | None = None) -> None:
        # The usual case: an operator of which no result, or the first tensor, is kept.
        self.operator = operator
        self.inputs = definition.inputs
        self.results = len(definition.keep)
        self.constants = definition.constants
        self.keep = definition.keep
        self.mutates = definition.mutates
        self.name = definition.name
        # A function that gives all tensors of the result, of which `keep` have numbers.
        self.run = run
        # An operator that only raises: `linalg.cholesky` ends in one.
        self.checks = isinstance(definition, Call) and not definition.keep and not definition.mutates
        # Collectives take part even without data.
        self.takes_poison = isinstance(definition, Reduce | Move | Offer | Replay | Alias | Hand)
        # A rank that only receives has no operand.
        self.may_miss = isinstance(definition, Move)


class Executor:
    """The table of a rank, and its streams."""

    def __init__(self, rank: int, host: str, groups: Groups, report: Callable[[Failure], object], session: str = "") -> None:
        self.rank = rank
        self.session = session
        self.host = host
        self.groups = groups
        self.table: dict[int, Any] = {}
        self.steps: dict[int, Step] = {}
        self._report = report
        # The reason why the tables of this rank differ from the controller's view.
        self.broken: Failure | None = None
        # The number of consecutive reports, without a mark or a fetch between them.
        self.reports = 0
        self._targets: dict[int, frozenset[int]] = {}
        self._streams: dict[int, StreamThread] = {}
        # By stream: the number of the operation that it executes, if that may include others.
        self.operations: dict[int, int] = {}
        self.collectives = Collectives(groups, rank, self.operations)
        self._events: dict[int, _Event] = {}
        self._events_lock = threading.Lock()
        # The results of operations with several results, by each of them.
        self._siblings: dict[int, list[int]] = {}
        self._functions: dict[tuple[bytes, ...] | str, Any] = {}
        # Failures since the last mark: their reports take another route, and may arrive after the mark.
        self.unmarked: list[Failure] = []

    # The controller's messages

    def take(self, segments: list[Segment], definitions: list[tuple[int, Definition]], targets: list[Any], forget: list[int]) -> None:
        """Hands the commands to the streams; returns at once."""
        for number, definition in definitions:
            self.steps[number] = self._step(definition)
        for number, ranks in targets:
            self._targets[number] = frozenset(ranks)
        for segment in segments:
            if segment.target and self.rank not in self._targets[segment.target]:
                continue
            self.stream(segment.stream).put(lambda s=segment: self._run_all(s))
        if forget:
            self._after_all(lambda: [self.steps.pop(number, None) for number in forget])

    def stream(self, number: int) -> StreamThread:
        found = self._streams.get(number)
        if found is None:
            found = self._streams[number] = StreamThread(number)
        return found

    def drop_stream(self, number: int) -> None:
        """Ends a stream that gets no more commands, after those that it has, and its process groups."""
        stream = self._streams.get(number)
        if stream is None:
            return

        def end() -> None:
            self.groups.drop(number)
            self._streams.pop(number, None)
            stream.end()

        stream.put(end)

    def drain(self, seconds: float) -> None:
        """Waits until the streams have executed what they were given, so long at most."""
        done = threading.Event()
        self._after_all(done.set)
        done.wait(seconds)

    def close(self) -> None:
        """Ends the streams."""
        streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        last = time.monotonic() + _END_SECONDS
        for stream in streams:
            stream.join(max(0.0, last - time.monotonic()))

    def after_all(self, task: Callable[[], object]) -> None:
        """Runs it when each stream has executed what it was given so far."""
        self._after_all(task)

    def _after_all(self, task: Callable[[], object]) -> None:
        streams = list(self._streams.values()) or [self.stream(0)]
        left = len(streams)
        lock = threading.Lock()

        def passed() -> None:
            nonlocal left
            with lock:
                left -= 1
                last = not left
            if last:
                task()

        for stream in streams:
            stream.put(passed)

    # The commands of one segment, on the thread of its stream

    def _run_all(self, segment: Segment) -> None:
        try:
            self.run(segment)
        except BaseException as e:
            # `run` reports exceptions of commands: this is a defect of the executor. From now on each fetch raises it.
            self.broken = failure = self.failure(e, segment.first, "a batch of commands")
            self.unmarked.append(failure)
            self._report(failure)

    def run(self, segment: Segment, more: int = 1) -> None:
        """`more` is 0 where all commands are parts of one operation."""
        code, constants, number, stream = segment.code, segment.constants, segment.first, segment.stream
        table, steps = self.table, self.steps
        get, tensor_type = table.__getitem__, torch.Tensor
        at, used, end = 0, 0, len(code)
        while at < end:
            head = code[at]
            if head > 0:
                try:
                    step = steps[head]
                except KeyError:
                    raise BrokenBatch(f"the definition {head} of a command is not known: the commands after it are lost") from None
                middle = at + 1 + step.inputs
                after = middle + step.results
                if (operator := step.operator) is None:
                    given = constants[used : used + step.constants]
                    self.execute(step, stream, number, code[at + 1 : middle], given, code[middle:after])
                else:
                    try:
                        values = list(map(get, code[at + 1 : middle]))
                        out = operator(values, constants, used)
                        if middle < after:
                            if out.__class__ is not tensor_type:
                                out = flat_leaves(out)[0]
                            if out is not None:
                                table[code[middle]] = out
                    except BaseException as e:
                        self._failed(e, step, number, code[at + 1 : middle], code[middle:after])
                    # Dead tensors are freed before the next command, which may wait for a long time.
                    values = out = None
                used += step.constants
                at = after
                number += more
            elif head == RELEASE:
                after = at + 2 + code[at + 1]
                siblings = self._siblings
                for entry in code[at + 2 : after]:
                    table.pop(entry, None)
                    if siblings:
                        siblings.pop(entry, None)
                at = after
            elif head == SIGNAL:
                self._event(code[at + 1]).signal()
                at += 2
            elif head == WAIT:
                self._event(code[at + 1]).wait()
                with self._events_lock:
                    self._events.pop(code[at + 1], None)
                at += 2
            else:
                raise ValueError(f"a command begins with {head}")

    def execute(self, step: Step, stream: int, number: int, inputs: list[int], constants: list[Any], results: list[int]) -> None:
        """One operation: its results, or the reason for which there are none, get their numbers in the table."""
        table = self.table
        missing: Any = None
        self.operations[stream] = number
        try:
            try:
                values = [table[i] for i in inputs]
            except KeyError as e:
                if not step.may_miss:
                    if not step.takes_poison:
                        raise
                    # A defect of the executor. The other ranks of a collective must not wait for this one for ever.
                    missing = Poison(self.failure(e, number, step.name))
                values = [table.get(i, missing) for i in inputs]
            out = step.run(stream, values, constants)
            if results:
                if len(results) > 1:
                    self._siblings.update((entry, results) for entry in results)
                for entry, place in zip(results, step.keep, strict=True):
                    value = out[place]
                    if value is not None:
                        table[entry] = value
        except BaseException as e:
            self._failed(e, step, number, inputs, results)

    def _failed(self, error: BaseException, step: Step, number: int, inputs: list[int], results: list[int]) -> None:
        """Poisons what an operation was to make, and reports why, if that is not the failure of an earlier one."""
        # The check comes last: a poisoned value is no tensor, so no operator accepts it.
        poison = None if step.takes_poison else poison_among([self.table.get(i) for i in inputs])
        if poison is not None and isinstance(error, Exception):
            self._poison(poison, step, inputs, results)
        elif isinstance(error, PoisonedElsewhere):
            self._poison(Poison(error.failure), step, inputs, results)
        else:
            failure = self.failure(error, number, step.name)
            self._poison(Poison(failure), step, inputs, results)
            if len(self.unmarked) < _REPORTS:
                self.unmarked.append(failure)
            self.reports += 1
            if self.reports <= _REPORTS:
                self._report(failure)

    def failure(self, error: BaseException, number: int, name: str) -> Failure:
        """The report of an exception to the controller."""
        frames = traceback.extract_tb(error.__traceback__)
        # The frames of this package come first; they only show that a worker has executed it.
        while len(frames) > 1 and frames[0].filename.startswith(_OWN):
            del frames[0]
        return Failure(self.rank, number, self.host, name, _portable(error), tuple(traceback.format_list(frames)), self.session)

    def _poison(self, poison: Poison | None, step: Step, inputs: list[int], results: list[int]) -> None:
        table = self.table
        for entry in results:
            table[entry] = poison
        if step.checks:
            # A check of the result of another operation, in which `linalg.cholesky` ends: its operands are wrong, and all views of their
            # memory.
            for checked in inputs:
                for entry in self._siblings.get(checked, [checked]):
                    if entry in table:
                        table[entry] = poison
        for place in step.mutates:
            value = table.get(inputs[place])
            if isinstance(value, torch.Tensor):
                # Each view of that memory has the same wrong numbers.
                storage = storage_id(value)
                for entry, other in list(table.items()):
                    if isinstance(other, torch.Tensor) and storage_id(other) == storage:
                        table[entry] = poison
            else:
                table[inputs[place]] = poison

    def _event(self, number: int) -> _Event:
        with self._events_lock:
            found = self._events.get(number)
            if found is None:
                found = self._events[number] = _Event()
            return found

    # Definitions

    def _step(self, definition: Definition) -> Step:
        if not isinstance(definition, Call):
            return Step(definition, self._runner(definition))
        try:
            operator = _operator(definition)
        except LookupError as e:
            return Step(definition, _raiser(e))

        def run(stream: int, inputs: list[Any], constants: list[Any]) -> Any:
            return flat_leaves(operator(inputs, constants, 0))

        if definition.default is not None:
            return Step(definition, _with_default(definition.default, run))
        return Step(definition, run, operator if definition.keep in ((), (0,)) else None)

    def _runner(self, definition: Definition) -> Callable[[int, list[Any], list[Any]], Any]:
        if isinstance(definition, Constant):
            return lambda stream, inputs, constants: [_constant(constants[0])]
        if isinstance(definition, RankOf):
            index = definition.grid.index_in(self.rank, definition.dims) if definition.grid.place_of(self.rank) is not None else 0
            return lambda stream, inputs, constants: [torch.tensor(index)]
        if isinstance(definition, Reduce):
            return lambda stream, inputs, constants: [self.collectives.reduce(stream, definition, inputs)]
        if isinstance(definition, Move):
            return lambda stream, inputs, constants: [self.collectives.move(stream, definition, inputs)]
        if isinstance(definition, Offer):
            return lambda stream, inputs, constants: offers().offer(constants[0], inputs[0], constants[1].get(self.rank, 0))
        if isinstance(definition, Pull):
            return lambda stream, inputs, constants: [offers().pull(constants[0], constants[1][self.rank], definition.layout)]
        if isinstance(definition, Alias):
            # The result is a separate tensor: changes of its layout do not affect the other one.
            return lambda stream, inputs, constants: [inputs[0] if type(inputs[0]) is Poison else inputs[0].detach()]
        if isinstance(definition, Hand):
            return lambda stream, inputs, constants: handoff.offered(self.session, constants[0], inputs[0])
        if isinstance(definition, Resume):
            return lambda stream, inputs, constants: handoff.resumed(self.session, constants[0])
        if isinstance(definition, Apply):
            # The arguments are unpacked with the first call, which fails if that is impossible.
            given = functools.lru_cache(1)(lambda: unpacked(definition.args, definition.kwargs))
            return lambda stream, inputs, constants: self._apply(stream, definition, given, inputs, constants)
        if isinstance(definition, Unpack):
            return lambda stream, inputs, constants: checked_results(definition.name, inputs[0], definition.results)
        assert isinstance(definition, Replay), definition
        return Replayed(self, definition).run

    def called(
        self, given: tuple[tuple[Any, ...], dict[str, Any]], inputs: list[Any], constants: list[Any], function: Any, moment: int
    ) -> Any:
        """What a function returns. All ranks that have its process groups call it at this moment: none waits for one that has failed."""
        groups = [self._group_of(slot) for slot in held_in(*given)]
        poison = poison_among(inputs)
        if poison is not None:
            for key in groups:
                self.groups.refuse(*key, moment, poison.failure.exception)
            raise PoisonedElsewhere(poison.failure)
        try:
            args, kwargs = filler(*given, lambda slot: self.groups.of(*self._group_of(slot), moment).pg)(inputs, constants)
            with torch.enable_grad():
                return self.function(function)(*args, **kwargs)
        except BaseException as e:
            reasons = [reason for key in groups if (reason := self.groups.reason(*key)) is not None]
            for key in groups:
                self.groups.refuse(*key, moment, e)
            if reasons and isinstance(e, Exception) and is_of_backend(e):
                raise RuntimeError(reasons[0]) from e
            raise

    def _group_of(self, slot: Held) -> tuple[tuple[int, ...], str, str]:
        if slot.kind != "group":
            raise ValueError(f"a worker keeps no {slot.kind!r}")
        grid, dims, name = slot.key
        return grid.line(self.rank, dims), name, "cuda" if torch.cuda.is_available() else "cpu"

    def function(self, reference: tuple[bytes, ...] | str) -> Any:
        found = self._functions.get(reference)
        if found is None:
            if len(self._functions) >= 1024:
                self._functions.clear()
            found = self._functions[reference] = function_of(reference)
        return found

    def _apply(
        self,
        stream: int,
        command: Apply,
        given: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
        inputs: list[Any],
        constants: list[Any],
    ) -> list[Any]:
        # The arguments of a function may contain any object: it is not called with poisoned ones.
        out = self.called(given(), inputs, constants, command.function, self.collectives.moment(stream))
        return checked_results(command.name, out, command.results)


def _operator(call: Call) -> _Operator:
    """An operator with its arguments. `LookupError` if there is none of this name."""
    op: Any = method_of(call.operator, call.args) or bare_operator(operator_of(call.operator))
    if call.operator in _LOOK_AT_GRAD_MODE:
        op = _in_grad_mode(op)
    if (called := caller(call.operator, op, call.args, call.kwargs)) is not None:
        return called
    fill = filler(call.args, call.kwargs)
    count = call.constants

    def with_arguments(inputs: list[Any], constants: list[Any], at: int) -> Any:
        args, kwargs = fill(inputs, constants[at : at + count])
        return op(*args, **kwargs)

    return with_arguments


def _in_grad_mode(op: Callable[..., Any]) -> Callable[..., Any]:
    """The operator where autograd is on, and does not see it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad(), BelowAutograd():
            return op(*args, **kwargs)

    return run


# The default type belongs to the process: streams take turns while one of them needs another.
_default_lock = threading.Lock()


def _with_default(default: Any, run: Callable[[int, list[Any], list[Any]], Any]) -> Callable[[int, list[Any], list[Any]], Any]:
    def in_default(stream: int, inputs: list[Any], constants: list[Any]) -> Any:
        with _default_lock:
            before = torch.get_default_dtype()
            torch.set_default_dtype(default)
            try:
                return run(stream, inputs, constants)
            finally:
                torch.set_default_dtype(before)

    return in_default


def _raiser(error: Exception) -> Callable[[int, list[Any], list[Any]], Any]:
    def run(stream: int, inputs: list[Any], constants: list[Any]) -> Any:
        raise error

    return run


def _constant(value: Any) -> Any:
    # A copy, because a received message may have read-only memory.
    return value.clone() if isinstance(value, torch.Tensor) else value


def _portable(error: BaseException) -> BaseException:
    """The exception itself, if it can be sent and read again without this worker's modules failing."""
    error.__traceback__ = None
    try:
        text = str(error)
    except BaseException:
        return RuntimeError(f"{type(error).__name__}, whose text cannot be shown")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {text}")
    return error


def flat_leaves(out: Any) -> list[Any]:
    """The leaves of an operator's result, in order."""
    if isinstance(out, list | tuple):
        return [t for value in out for t in flat_leaves(value)]  # pyright: ignore[reportUnknownVariableType]
    return [out]


class _Event:
    """That one stream has come to a point, for another one."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._device: Any = None

    def signal(self) -> None:
        if torch.cuda.is_available():
            self._device = torch.cuda.Event()
            self._device.record()
        self._set.set()

    def wait(self) -> None:
        self._set.wait()
        if self._device is not None:
            torch.cuda.current_stream().wait_event(self._device)
