"""Functions of the program that run on the workers, with each rank's own tensors."""

from __future__ import annotations

import functools
import itertools
import random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch.utils import _pytree

from monarch.actor import Shape, SupervisionError, ValueMesh
from monarch.extension import promise, when_done
from monarch.extension.mesh import ranked_port
from monarch.extension.pickling import dumps, modes_off
from monarch.tensor._controller.active import active
from monarch.tensor._controller.handle import Handle
from monarch.tensor._controller.memory import Memory
from monarch.tensor._controller.place import Place, in_active_stream, place_of, place_of_ranks
from monarch.tensor._controller.propagate import explain, fake_mode, fake_of
from monarch.tensor._functions.resolvers import resolved
from monarch.tensor._protocol.commands import Apply, Held, Input, Nested, Packed, Slot, Unpack, Varying, again
from monarch.tensor._protocol.failures import Failure, error_of
from monarch.tensor._protocol.frames import current_site
from monarch.tensor._protocol.function_reference import FunctionReference
from monarch.tensor._protocol.opaque_ref import OpaqueRef, new_ref
from monarch.tensor._protocol.results import Results, describe_results, filled_results
from monarch.tensor._tensors.dispatch import check_operands
from monarch.tensor._tensors.fetch import rank_of
from monarch.tensor._tensors.mesh import RemoteProcessGroup, Tensor, get_active_stream
from monarch.tensor._tensors.tensor_base import new_tensor
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monarch.actor import Future, Port
    from monarch.tensor._protocol.frames import Site

KINDS = ("mocked", "cached", "inspect")

# Types of constants of commands; any other value of an argument is part of the definition.
_PLAIN = (int, float, complex)


# Types of leaves of arguments that each process can unpickle.
_SAFE = (Input, Varying, Held, type(None), bool, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Arguments(NamedTuple):
    """The arguments of a call: for the definition, for the command, and for the cache; `key` is None if they cannot be compared."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    numbers: list[int]
    constants: list[Any]
    key: Any


class Remote(FunctionReference):
    """A function on each rank of the active mesh, in the order of torch calls. Its adverbs are those of an endpoint.

    Calling it sends the call and returns tensors of the mesh, whose shapes `propagate` gives:

    | `propagate` | shapes of results |
    |---|---|
    | a function | it is called with fake tensors |
    | `"cached"` | the function itself is called with fake tensors, once per signature of its arguments |
    | `"mocked"` | the same; process groups are replaced by ones that move nothing |
    | `"inspect"` | the function runs, and rank 0 is asked |
    | None | the function returns no tensors, and the call None |
    """

    def __init__(self, function: Callable[..., Any] | str, propagate: Any = None) -> None:
        function = resolved(function)
        if not callable(function) and not isinstance(function, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"remote({function!r}): expected a function or an import path")
        if isinstance(function, str) and "." not in function:
            raise ValueError(f"remote({function!r}): an import path has a module and a name, as 'package.module.function'")
        if not (propagate is None or callable(propagate) or propagate in KINDS):
            raise ValueError(f"remote(propagate={propagate!r}): expected a function, None, or one of {', '.join(map(repr, KINDS))}")
        if isinstance(function, str) and propagate in ("mocked", "cached"):
            raise ValueError(
                f"remote({function!r}, propagate={propagate!r}): the function is not on the controller; give a function instead"
            )
        super().__init__(function)
        self.propagate = propagate
        self._known: dict[Any, Results] = {}
        if isinstance(function, str):
            self._name = function
        else:
            self._name = getattr(function, "__qualname__", type(function).__name__)
            functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<Remote {self._name}>"

    @functools.cached_property
    def _reference(self) -> Any:
        if isinstance(self.function, str):
            return self.function
        pickled, parts = dumps(self.function)
        return (bytes(pickled), *(bytes(p) for p in parts))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        place = self.place(args, kwargs)
        given = self.arguments(place, args, kwargs)
        if self.propagate == "inspect":
            return self.inspected(place, given)[1]
        return self.emitted(place, given, self._results(args, kwargs, given.key))

    def rref(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a call of it."""
        return self(*args, **kwargs)

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Runs it on all ranks and drops what it returns."""
        self.send_call(args, kwargs)

    def send_call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        port: Port[Any] | None = None,
        selection: Literal["all", "choose"] = "all",
    ) -> None:
        """For `monarch.actor.send`: runs it on all ranks, or on one by chance. The result of each rank goes to `port`, by value."""
        place = self.place(args, kwargs)
        ranks: tuple[int, ...] = place.mesh.ranks_in_order
        chosen = range(len(ranks)) if selection == "all" else [random.randrange(len(ranks))]
        targets = tuple(ranks[index] for index in chosen)
        if port is None:
            given = self.arguments(place, args, kwargs)
            there = place if selection == "all" else place_of_ranks(place.controller, targets, place.stream)
            self._emit(there, given, (None,), [next(place.controller.numbers)], release=True)
            return
        site = current_site()
        for index, answer in zip(chosen, self._invoke(place, targets, args, kwargs), strict=True):
            when_done(answer, functools.partial(_forward, ranked_port(port, index), place, site))

    def call(self, *args: Any, **kwargs: Any) -> Future[ValueMesh[Any]]:
        """What each rank's call returns, by value, in the shape of the active mesh."""
        place = self.place(args, kwargs)
        answers = self._invoke(place, place.mesh.ranks_in_order, args, kwargs)
        site = current_site()
        done = promise(f"the results of {self._name}")
        left = itertools.count(len(answers) - 1, -1)
        failed: list[Future[Any]] = []

        def take(future: Future[Any]) -> None:
            if not failed and _has_failed(future):
                failed.append(future)
                # The failure counts as raised when the future is read.
                done.set_from(lambda: _value(place, future, site))
            if next(left) == 0 and not failed:
                done.set_from(
                    lambda: ValueMesh(Shape(list(place.mesh.sizes), _row_major(place)), [_value(place, f, site) for f in answers])
                )

        for answer in answers:
            when_done(answer, take)
        return done.future

    def call_one(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """What the call returns on the only rank of the mesh; `ValueError` if there are several."""
        place = self.place(args, kwargs)
        if len(place.mesh.ranks_in_order) != 1:
            raise ValueError(f"call_one requires exactly 1 rank, but {place.mesh!r} has {len(place.mesh.ranks_in_order)}")
        return self._on_rank(place, place.mesh.ranks_in_order[0], args, kwargs)

    def choose(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """What the call returns on a rank by chance, on which alone it runs."""
        place = self.place(args, kwargs)
        return self._on_rank(place, random.choice(place.mesh.ranks_in_order), args, kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Future[Any]]:
        """A future per rank, in the order of ranks."""
        place = self.place(args, kwargs)
        answers = self._invoke(place, place.mesh.ranks_in_order, args, kwargs)
        site = current_site()
        return iter([_mapped(place, answer, self._name, site) for answer in answers])

    def on_shard(self, shard: dict[str, int] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """For `call_on_shard_and_fetch`."""
        place = self.place(args, kwargs)
        return self._on_rank(place, rank_of(place, shard, {}), args, kwargs)

    # For calls whose results are known in other ways

    def with_results(self, results: Results, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with these results, whatever `propagate` is."""
        place = self.place(args, kwargs)
        return self.emitted(place, self.arguments(place, args, kwargs), results)

    def emitted(self, place: Place, given: Arguments, results: Results) -> Any:
        made, numbers = new_results(place, results.layouts)
        self._emit(place, given, results.layouts, numbers)
        return filled_results(results, made)

    # How

    def place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place:
        """Where a call with these arguments runs: on the active mesh, else where the first of them is that belongs to a mesh.

        `TensorMeshError` if there is neither.
        """
        if active.mesh is not None:
            return place_of(active.mesh, get_active_stream())
        for value in _pytree.tree_leaves((args, kwargs)):
            if isinstance(value, RemoteProcessGroup):
                return place_of(value.mesh, get_active_stream())
            handle = value.__core__ if type(value) is Tensor or isinstance(value, OpaqueRef) else None
            if handle is not None:
                return in_active_stream(handle.place)
        raise TensorMeshError(
            f"{self._name}: a remote function requires an active proc_mesh: call it inside of `with procs.activate():`, or with a tensor "
            "that belongs to a mesh"
        )

    def arguments(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The arguments of a call, checked."""
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        check_operands(self._name, args, kwargs, place, autograd=not torch.is_grad_enabled())
        numbers: list[int] = []
        constants: list[Any] = []
        key: list[Any] = [spec]
        given: list[Any] = []
        for leaf in leaves:
            if type(leaf) is Tensor:
                numbers.append(leaf.__core__.id)
                given.append(Input(len(numbers) - 1))
                key.append(leaf.__core__.layout)
                # The function may write to it.
                leaf.__core__.memory.value = None
            elif isinstance(leaf, OpaqueRef):
                numbers.append(leaf.handle_at(place).id)
                given.append(Input(len(numbers) - 1))
                key.append(OpaqueRef)
            elif isinstance(leaf, RemoteProcessGroup):
                given.append(leaf.held(place.mesh))
                key.append(given[-1])
            elif type(leaf) in _PLAIN:
                constants.append(leaf)
                given.append(Varying(len(constants) - 1))
                key.append((type(leaf), leaf))
            else:
                given.append(leaf)
                key.append((type(leaf), leaf))
        made_args, made_kwargs = _nested(_pytree.tree_unflatten(given, spec), given, spec)
        signature: Any = tuple(key)
        try:
            hash(signature)
        except TypeError:
            signature = None
        return Arguments(tuple(made_args), made_kwargs, numbers, constants, signature)

    def _results(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Results:
        if self.propagate is None:
            return _NOTHING
        found = self._known.get(key) if key is not None else None
        if found is not None:
            return found
        results = propagated(self.function if self.propagate in KINDS else self.propagate, args, kwargs)
        if key is not None and self.propagate in KINDS:
            if len(self._known) >= 1024:
                self._known.clear()
            self._known[key] = results
        return results

    def _emit(self, place: Place, given: Arguments, layouts: tuple[Any, ...], numbers: list[int], release: bool = False) -> None:
        controller = place.controller
        definition = Apply(
            self._reference,
            tuple(map(_packed, given.args)),
            {k: _packed(v) for k, v in given.kwargs.items()},
            layouts,
            self._name,
            len(given.numbers),
            len(given.constants),
            tuple(range(len(numbers))),
        )
        key = None if given.key is None else (self, _without_values(given), layouts)
        number = controller.kept.get(key) if key is not None else None
        if number is None:
            number = controller.define(definition)
            if key is not None:
                controller.kept[key] = number
        controller.emit(place, number, given.numbers, given.constants, numbers)
        if release:
            controller.free(place, numbers)
        if key is None:
            controller.forget_definition(number)

    def inspected(self, place: Place, given: Arguments) -> tuple[Results, Any]:
        """The function runs, rank 0 is asked for what it returned, and the tensors get their numbers."""
        controller = place.controller
        number = next(controller.numbers)
        self._emit(place, given, (None,), [number])
        rank = place.mesh.ranks_in_order[0]
        controller.refuse_recording(f"{self._name}, whose result comes to the controller,")
        with controller.lock:
            controller.flush()
            answer = controller.worker(rank).describe.call_one(place.head[0], number)
        results = Results(*_value(place, answer))
        made, numbers = new_results(place, results.layouts)
        controller.emit(place, controller.defined(Unpack(results.layouts, self._name, tuple(range(len(numbers))))), (number,), (), numbers)
        controller.free(place, [number])
        return results, filled_results(results, made)

    def _on_rank(self, place: Place, rank: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        [answer] = self._invoke(place, (rank,), args, kwargs)
        return _mapped(place, answer, self._name, current_site())

    def _invoke(self, place: Place, ranks: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Future[Any]]:
        controller = place.controller
        given = self.arguments(place, args, kwargs)
        template = _with_values(given)
        controller.refuse_recording(f"{self._name}, whose result comes to the controller,")
        with controller.lock:
            controller.flush()
            moment = controller.moment()
            return [
                controller.worker(r).invoke.call_one(place.head[0], moment, self._reference, self._name, template, tuple(given.numbers))
                for r in ranks
            ]


def _nested(made: tuple[tuple[Any, ...], dict[str, Any]], given: list[Any], spec: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with a `Nested` for each that has containers which the workers may not know."""
    if _is_plain(spec):
        return made
    slotted, named = _pytree.tree_unflatten([Slot(v) if isinstance(v, Input | Varying | Held) else v for v in given], spec)
    args, kwargs = made
    of_args, of_kwargs = map(_children, _children(spec))
    return (
        tuple(v if _is_plain(s) else Nested(n) for v, n, s in zip(args, slotted, of_args, strict=True)),
        {k: v if _is_plain(s) else Nested(named[k]) for (k, v), s in zip(kwargs.items(), of_kwargs, strict=True)},
    )


def _is_plain(spec: Any) -> bool:
    """Whether a pytree has lists, tuples and dictionaries only."""
    return spec.type in (None, list, tuple, dict) and all(map(_is_plain, _children(spec)))


def _children(spec: Any) -> list[Any]:
    # The second way is that of older versions of torch, and deprecated in newer ones.
    found: list[Any] = spec.children() if hasattr(spec, "children") else spec.children_specs
    return found


def _packed(value: Any) -> Any:
    """An argument as a worker takes it apart when it executes the call: what cannot be unpickled there fails that call alone."""
    if all(type(leaf) in _SAFE for leaf in _pytree.tree_leaves(value)):
        return value
    pickled, parts = dumps(value)
    return Packed(bytes(pickled), tuple(bytes(p) for p in parts))


def _without_values(given: Arguments) -> Any:
    """What two calls with the same definition have in common."""
    key: tuple[Any, ...] = given.key
    plain: list[Any] = [part[0] if type(part) is tuple and part[0] in _PLAIN else part for part in key]
    return tuple(plain)


def _with_values(given: Arguments) -> Any:
    def filled(value: Any) -> Any:
        if isinstance(value, Varying):
            return given.constants[value.index]
        if isinstance(value, Nested):
            return Nested(value.filled(lambda slot: given.constants[slot.index] if isinstance(slot, Varying) else Slot(slot)))
        if isinstance(value, Input) or not isinstance(value, list | tuple | dict):
            return value
        if isinstance(value, dict):
            entries = cast("dict[Any, Any]", value)
            return {k: filled(v) for k, v in entries.items()}
        values = cast("Any", value)
        return again(values, map(filled, values))

    return filled(given.args), filled(given.kwargs)


def _value(place: Place, answer: Future[Any], site: Site = ()) -> Any:
    try:
        found = answer.get()
    except SupervisionError as e:
        raise place.controller.ended(e) from None
    if isinstance(found, Failure):
        raise error_of(found, place.controller.failures, site)
    return found


def _mapped(place: Place, answer: Future[Any], name: str, site: Site) -> Future[Any]:
    done = promise(f"the result of {name}")

    when_done(answer, lambda future: done.set_from(lambda: _value(place, future, site)))
    return done.future


def _forward(port: Port[Any], place: Place, site: Site, answer: Future[Any]) -> None:
    """Sends the result of a call to a port, or what the call has raised."""
    try:
        value = _value(place, answer, site)
    except Exception as e:
        port.exception(e)
    else:
        port.send(value)


def _has_failed(answer: Future[Any]) -> bool:
    """Of one that is there."""
    try:
        return isinstance(answer.get(), Failure)
    except Exception:
        return True


def _row_major(place: Place) -> Any:
    from monarch.actor import Slice

    return Slice.new_row_major(list(place.mesh.sizes.values()))


_NOTHING = Results((None,), None, ())


def propagated(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results:
    """The results of a function that is called with tensors without data."""
    from monarch.tensor._functions.mock_group import MockGroup

    def fake(leaf: Any) -> Any:
        if type(leaf) is Tensor:
            return fake_of(leaf.__core__.layout)
        return MockGroup(leaf.size()) if isinstance(leaf, RemoteProcessGroup) else leaf

    # The modes of active meshes would take the operators of fake tensors too.
    with modes_off(), fake_mode():
        fakes, named = _pytree.tree_map(fake, (args, kwargs))
        try:
            return describe_results(function(*fakes, **named))
        except Exception as e:
            explain(str(getattr(e, "func", getattr(function, "__name__", function))), e)
            raise


def new_results(place: Place, layouts: tuple[Any, ...]) -> tuple[list[Any], list[int]]:
    """The tensors and references for results with these layouts, and their numbers."""
    numbers = [next(place.controller.numbers) for _ in layouts]
    handles: list[Any] = [Handle(n, layout, Memory(), place) for n, layout in zip(numbers, layouts, strict=True)]
    return [new_ref(h) if h.layout is OpaqueRef else new_tensor(h) for h in handles], numbers


def remote(function: Callable[..., Any] | str | None = None, *, propagate: Any = None) -> Any:
    """A function that runs on every rank of the active mesh, in the order of torch calls. Also a decorator, with and without arguments.

    Args:
        function: a function, or its import path as text.
        propagate: how the controller knows the shapes of the results: a function for fake tensors, `"cached"`, `"mocked"`, `"inspect"`,
            or None for a function that returns no tensors; see `Remote`.

    Returns:
        A `Remote`, or a decorator.

    Raises:
        TypeError: `function` is neither callable nor text.

    ```python
    import torch

    from monarch.actor import this_host
    from monarch.tensor import inspect, remote

    @remote(propagate=lambda x: torch.empty_like(x))
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate():
        assert inspect(double(torch.ones(2))).tolist() == [2.0, 2.0]
    procs.stop().get()
    ```
    """
    if function is None:
        return functools.partial(Remote, propagate=propagate)
    return Remote(function, propagate)


def call_on_shard_and_fetch(remote: Any, *args: Any, shard: dict[str, int] | None = None, **kwargs: Any) -> Future[Any]:
    """Runs a remote function on one rank of the active mesh, the first one unless `shard` names another, and gives what it returns."""
    called = remote if isinstance(remote, Remote) else Remote(remote)
    return called.on_shard(shard, args, kwargs)
