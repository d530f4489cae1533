"""Endpoints of handles, and the adverbs that call them."""

from __future__ import annotations

from monarch._core._native.protocol import CLOSED, ERROR, FIRST_ERROR, NO_ANSWER, OK, PROC_ENDED, STREAM, UNDELIVERED
from monarch._core.call.actor import EndpointProperty, NotAnEndpoint, check_arguments
from monarch._core.call.future import Future, failed_future, new_future, unseen_failure
from monarch._core.process import root_fault
from monarch._core.process.current import current_process
from monarch._core.process.mesh_info import view_of
from monarch._core.shape.generic import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

    from monarch._core._native import Caller, PendingCall, Result
    from monarch._core.call.actor_mesh import ActorMesh
    from monarch._core.call.port import Port
    from monarch._core.call.send_target import SendTarget
    from monarch._core.call.value_mesh import ValueMesh
    from monarch._core.errors.errors import MeshFailure

    P = ParamSpec("P")
    R = TypeVar("R")
    A = TypeVar("A")
else:
    P = R = A = None


class Endpoint(Generic[P, R]):
    """One method of all actors of a mesh."""

    __slots__ = ("_caller", "_explicit", "_mesh", "_method", "_name", "_propagator", "_size")

    def __init__(self, mesh: ActorMesh, name: str, method: Any, explicit: bool = False, propagator: Any = None) -> None:
        from monarch._core._native import Caller

        self._mesh = mesh
        self._name = name
        self._method = method
        self._explicit = explicit
        self._propagator = propagator
        targets = mesh._targets()
        self._size = len(targets)
        extent = mesh._addressed_extent()
        self._caller = Caller(targets, name, extent, explicit, view_of(mesh._shape) if extent else None)

    @property
    def _endpoint_name(self) -> str:
        return f"{self._mesh._info.name}.{self._name}()"

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_arguments(self._method, 2 if self._explicit else 1, args, kwargs, f"{self._mesh._info.name}.{self._name}")

    def _refused(self) -> BaseException | None:
        """The error of a call that is refused at once: the mesh has failed or stopped, or the client has ended."""
        info = self._mesh._info
        if info.failed or info.stopped is not None:
            failure = self._mesh._failure()
            if failure is not None:
                return self._supervision_error(failure)
        if root_fault.fatal_failure is not None:
            return self._supervision_error(root_fault.fatal_failure)
        return None

    def _refused_future(self, refused: BaseException) -> Future[Any]:
        return unseen_failure(refused, lambda: self._refusal_seen(refused))

    def _refusal_seen(self, refused: BaseException) -> None:
        """Marks the failure as seen: a refused call shows it to the script."""
        failure: MeshFailure | None = getattr(refused, "failure", None)
        if failure is not None and failure.reason.kind != "stopped":
            root_fault.failure_seen(self._mesh._info.uid, failure)

    def _supervision_error(self, failure: MeshFailure) -> BaseException:
        from monarch._core.errors.errors import SpawnError, SupervisionError

        if failure.reason.kind == "stopped":
            from monarch._core._native import block_if_exiting

            block_if_exiting()
        info = self._mesh._info
        if failure.reason.kind in ("host_lost", "signal"):
            from monarch._core.call.lost_host import why_lost

            if (error := why_lost(info, failure)) is not None:
                error.__cause__ = SupervisionError(failure.report(), self._endpoint_name, failure=failure)
                return error
        if info.unspawned and failure.crashed_ranks and failure.crashed_ranks[0] in info.unspawned:
            from monarch._core.call.answer import spawn_error

            return spawn_error(info, failure.crashed_ranks[0], self._endpoint_name)
        kind = SpawnError if failure.reason.kind == "not_started" else SupervisionError
        return kind(failure.report(), self._endpoint_name, failure=failure)

    def _undelivered(self, exc: RuntimeError, rank: int | None = None) -> BaseException:
        """The error of a message that none of its receivers got; the receivers are unharmed. Other exceptions are raised again."""
        from monarch._core.call.current_actor import current_local_actor, display_of
        from monarch._core.errors.errors import DeliveryError, undeliverable

        if type(exc) is not DeliveryError:
            raise exc
        info = self._mesh._info
        ranks = self._mesh._base_ranks()
        only = ranks[rank] if rank is not None else ranks[0] if len(ranks) == 1 else None
        dest = f"{info.name} ({len(ranks)} ranks)" if only is None else info.display(only)
        return DeliveryError(
            undeliverable(self._endpoint_name, display_of(current_process(), current_local_actor()), dest, exc.message), hint=exc.hint
        )

    def _sent_again(
        self, exc: RuntimeError | TypeError, args: tuple[Any, ...], kwargs: dict[str, Any], mode: int, rank: int | None = None
    ) -> PendingCall | BaseException | None:
        """Sends again if an argument asks for the receivers; else gives the reason why there is no answer. `exc` is the first error."""
        from monarch._core.pickle.state import NeedsReceivers

        if isinstance(exc, RuntimeError):
            return self._undelivered(exc, rank)
        if not isinstance(exc, NeedsReceivers):
            raise exc
        try:
            cell, is_sent = send_to_receivers(self._mesh, self._caller, args, kwargs, mode, rank)
        except RuntimeError as e:
            return self._undelivered(e, rank)
        is_sent()
        return cell

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Calls all actors of the mesh. The message is sent before this method returns.

        Args:
            *args: positional arguments of the endpoint; pickled once for all actors.
            **kwargs: its keyword arguments.

        Returns:
            A Future of a `ValueMesh` with one value for each rank, in the shape of the called mesh.

        Raises:
            TypeError: the arguments do not fit the signature of the endpoint.
            ActorError: from the Future: the endpoint raised on one rank at least; the first such answer is raised.
            SupervisionError: from the Future: one of the actors has failed or was stopped.
            DeliveryError: from the Future: the message could not be delivered; the actors are unharmed.

        ```python
        from monarch.actor import Actor, endpoint, this_host

        class Worker(Actor):
            @endpoint
            def add(self, a: int, b: int) -> int:
                return a + b

        with this_host().spawn_procs({"gpus": 2}) as procs:
            results = procs.spawn("workers", Worker).add.call(1, b=2).get()
            assert results.sizes == {"gpus": 2} and results.values() == [3, 3]
        ```
        """
        self._check(args, kwargs)
        refused = self._refused()
        if refused is not None:
            return self._refused_future(refused)
        try:
            cell = self._caller.send(args, kwargs, FIRST_ERROR)
        except (RuntimeError, TypeError) as e:
            cell = self._sent_again(e, args, kwargs, FIRST_ERROR)
            if isinstance(cell, BaseException):
                return failed_future(cell)
        return new_future(cell, self._mesh_result)

    def call_one(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Calls the only actor of the mesh.

        Args:
            *args: positional arguments of the endpoint.
            **kwargs: its keyword arguments.

        Returns:
            A Future of the value that the endpoint returns.

        Raises:
            ValueError: the mesh has no actor, or several.
            TypeError: the arguments do not fit the signature of the endpoint.
            ActorError: from the Future: the endpoint raised.
            SupervisionError: from the Future: the actor has failed or was stopped.

        ```python
        from monarch.actor import Actor, ActorError, endpoint, this_host

        class Worker(Actor):
            @endpoint
            def divide(self, a: int, b: int) -> float:
                return a / b

        with this_host().spawn_procs({"gpus": 2}) as procs:
            worker = procs.spawn("workers", Worker).slice(gpus=1)
            assert worker.divide.call_one(1, 2).get() == 0.5
            assert isinstance(worker.divide.call_one(1, 0).exception(), ActorError)
        ```
        """
        if self._size != 1:
            raise ValueError(f"call_one requires exactly 1 actor, but mesh has {self._size}")
        self._check(args, kwargs)
        refused = self._refused()
        if refused is not None:
            return self._refused_future(refused)
        try:
            cell = self._caller.send(args, kwargs, FIRST_ERROR)
        except (RuntimeError, TypeError) as e:
            cell = self._sent_again(e, args, kwargs, FIRST_ERROR)
            if isinstance(cell, BaseException):
                return failed_future(cell)
        return new_future(cell, self._one_result)

    def choose(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Calls one actor of the mesh, picked at random.

        Args:
            *args: positional arguments of the endpoint.
            **kwargs: its keyword arguments.

        Returns:
            A Future of the value that the endpoint returns.

        Raises:
            ValueError: the mesh has no actor.
            TypeError, ActorError, SupervisionError: as for `call_one`.

        ```python
        from monarch.actor import Actor, endpoint, this_host

        class Worker(Actor):
            @endpoint
            def work(self) -> str:
                return "done"

        with this_host().spawn_procs({"gpus": 3}) as procs:
            assert procs.spawn("worker", Worker).work.choose().get() == "done"
        ```
        """
        self._check(args, kwargs)
        if self._size == 0:
            raise ValueError("choose requires at least 1 actor, but mesh has 0")
        refused = self._refused()
        if refused is not None:
            return self._refused_future(refused)
        rank = _random_below(self._size)
        try:
            cell = self._caller.send(args, kwargs, FIRST_ERROR, rank)
        except (RuntimeError, TypeError) as e:
            cell = self._sent_again(e, args, kwargs, FIRST_ERROR, rank)
            if isinstance(cell, BaseException):
                return failed_future(cell)
        return new_future(cell, lambda cell: self._one_result(cell, rank))

    def stream(self, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Calls all actors of the mesh. The message is sent before this method returns.

        Args:
            *args: positional arguments of the endpoint.
            **kwargs: its keyword arguments.

        Returns:
            An iterator of one Future for each answer, in the order in which the answers arrive.

        Raises:
            TypeError, ActorError, SupervisionError, DeliveryError: as for `call`; each Future raises the error of its own rank.

        ```python
        from monarch.actor import Actor, current_rank, endpoint, this_host

        class Worker(Actor):
            @endpoint
            def rank(self) -> int:
                return current_rank().rank

        with this_host().spawn_procs({"gpus": 3}) as procs:
            answers = procs.spawn("workers", Worker).rank.stream()
            assert sorted(answer.get() for answer in answers) == [0, 1, 2]
        ```
        """
        self._check(args, kwargs)
        refused = self._refused()
        if refused is not None:
            return iter([self._refused_future(refused) for _ in range(self._size)])
        try:
            cell = self._caller.send(args, kwargs, STREAM)
        except (RuntimeError, TypeError) as e:
            cell = self._sent_again(e, args, kwargs, STREAM)
            if isinstance(cell, BaseException):
                return iter([failed_future(cell) for _ in range(self._size)])
        return iter([new_future(cell, self._arrival_result(i), i) for i in range(self._size)])

    def broadcast(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Sends to all actors of the mesh and waits for none. An exception in the endpoint fails its actor.

        Args:
            *args: positional arguments of the endpoint.
            **kwargs: its keyword arguments.

        Raises:
            TypeError: the arguments do not fit the signature of the endpoint.
            SupervisionError: one of the actors is known to have failed or to be stopped.
            DeliveryError: the message could not be sent; the actors are unharmed.

        ```python
        from monarch.actor import Actor, endpoint, this_host

        class Counter(Actor):
            count = 0

            @endpoint
            def add(self, n: int) -> int:
                self.count += n
                return self.count

        with this_host().spawn_procs({"procs": 1}) as procs:
            counter = procs.spawn("counter", Counter)
            counter.add.broadcast(1)
            assert counter.add.call_one(1).get() == 2  # messages of one sender stay in order
        ```
        """
        self._check(args, kwargs)
        refused = self._refused()
        if refused is not None:
            self._refusal_seen(refused)
            raise refused
        try:
            self._caller.send(args, kwargs, NO_ANSWER)
        except (RuntimeError, TypeError) as e:
            error = self._sent_again(e, args, kwargs, NO_ANSWER)
            if isinstance(error, BaseException):
                raise error from None

    def rref(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Calls the actors; the results are tensors that stay on the workers. Needs monarch-tensor."""
        from monarch._core.call.mesh_methods import EndpointCall, implementation

        rref = implementation("rref", "rref")
        self._check(args, kwargs)
        return rref(EndpointCall(self, self._mesh, self._name, self._propagator, args, kwargs))

    if not TYPE_CHECKING:

        def __call__(self, /, *_: Any, **__: Any) -> None:
            raise TypeError(
                f"{self._endpoint_name} is an endpoint and runs in its actors: "
                "use .call(), .call_one(), .choose(), .stream() or .broadcast()"
            )

    # ---- answers

    def _one_result(self, cell: PendingCall, rank: int = 0) -> R:
        found = cell.value()
        if found is not None:
            return found[0]
        result = cell.result(0)
        assert result is not None
        raise self._error(cell, result, rank)

    def _mesh_result(self, cell: PendingCall) -> ValueMesh[R]:
        from monarch._core.call.value_mesh import ValueMesh

        error = cell.error()
        if error is not None:
            raise self._error(cell, error, error.rank)
        return ValueMesh._from_parts(self._mesh._dense_shape(), cell.results(), _load)

    def _arrival_result(self, index: int) -> Callable[[PendingCall], R]:
        def decode(cell: PendingCall) -> R:
            result = cell.arrival(index)
            assert result is not None
            if result.status == OK:
                return result.load()
            raise self._error(cell, result, result.rank)

        return decode

    def _error(self, cell: PendingCall, result: Result, rank: int) -> BaseException:
        """The exception for an answer. `rank` is the position of the answer in the called mesh."""
        from monarch._core.call.answer import endpoint_error, proc_ended_failure, received_failure

        if result.status == ERROR:
            return endpoint_error(result, self._mesh._info.name, self._name)
        if result.status == CLOSED:
            return EOFError(f"Port closed: {self._endpoint_name} ended without an answer")
        if result.status == UNDELIVERED:
            from monarch._core.errors.errors import DeliveryError

            return self._undelivered(DeliveryError(result.raw().decode()), rank)
        # The failure must be with its owner before a call of the owner shows it.
        current_process().native.settle()
        base_rank = self._mesh._base_ranks()[rank]
        if result.status == PROC_ENDED:
            failure = proc_ended_failure(self._mesh._info, base_rank, result.raw())
        else:
            failure = received_failure(result.raw(), self._mesh._info, base_rank)
        self._mesh._info.failed.setdefault(base_rank, failure)
        base, results = self._mesh._base_ranks(), cell.results()
        whole = len(results) == len(base)
        unanswered = [base[i] for i, r in enumerate(results) if r is None or r.status != OK] if whole else []
        mark_retrieved(self._mesh._info.uid, cell, failure, unanswered)
        return self._supervision_error(failure)


def _load(result: Any) -> Any:
    try:
        return result.load()
    finally:
        # The traceback of an error has this frame, and is kept.
        del result


def mark_retrieved(mesh: int, cell: PendingCall, failure: MeshFailure, unanswered: list[int]) -> None:
    # This comes first: once the cell counts as retrieved, unseen failures are acted upon. It also covers the ranks without an answer:
    # several ranks may die for one cause, and the call raises once.
    root_fault.failure_seen(mesh, failure, unanswered)
    cell.set_retrieved()


def _random_below(n: int) -> int:
    from random import randrange

    return randrange(n)


def send_to_receivers(
    mesh: ActorMesh, caller: Caller, args: tuple[Any, ...], kwargs: dict[str, Any], mode: int, rank: int | None = None
) -> tuple[PendingCall | None, Callable[[], None]]:
    """Sends to the actors of a mesh, or to one rank, a message for known receivers only, such as the shards of a mesh tensor.

    The pickler first refuses such a message. This function pickles it again with the list of receivers. The caller runs the second
    result when the message is sent: it runs the functions that wait for the send.
    """
    from functools import partial

    from monarch._core.pickle.state import Receivers, state

    ranks = mesh._base_ranks()
    procs = mesh._info.procs
    found = Receivers(tuple(procs[r] for r in (ranks if rank is None else [ranks[rank]])))
    before, state.receivers = state.receivers, found
    sent = False
    try:
        cell = caller.send(args, kwargs, mode, rank)
        sent = True
    finally:
        state.receivers = before
        if not sent:
            for undo in found.not_sent:
                undo()

    def is_sent() -> None:
        for run in found.sent:
            run(partial(_then, mesh, rank))

    return cell, is_sent


def _then(mesh: ActorMesh, rank: int | None, function: Callable[..., Any], *given: Any) -> Future[Any]:
    """Makes the actors run a function after the messages that were sent so far."""
    from monarch._core.call.actor import Actor

    after: Endpoint[Any, Any] = Endpoint(mesh, "_call_function", Actor._call_function)
    if rank is None:
        return after.call(function, given)
    cell = after._caller.send((function, given), {}, FIRST_ERROR, rank)
    return new_future(cell, lambda cell: after._one_result(cell, rank))


def endpoint_of(mesh: ActorMesh, name: str, prop: EndpointProperty) -> Endpoint[Any, Any]:
    return Endpoint(mesh, name, prop._method, prop._explicit_response_port, prop._propagator)


if TYPE_CHECKING:

    @overload
    def as_endpoint(method: Endpoint[P, R], *, propagate: Any = None, explicit_response_port: bool = False) -> Endpoint[P, R]: ...
    @overload
    def as_endpoint(
        method: Callable[P, Awaitable[R]], *, propagate: Any = None, explicit_response_port: Literal[False] = False
    ) -> Endpoint[P, R]: ...
    @overload
    def as_endpoint(method: Callable[P, R], *, propagate: Any = None, explicit_response_port: Literal[False] = False) -> Endpoint[P, R]: ...
    @overload
    def as_endpoint(
        method: Callable[Concatenate[Port[R], P], Awaitable[None] | None], *, propagate: Any = None, explicit_response_port: Literal[True]
    ) -> Endpoint[P, R]: ...


def as_endpoint(method: Any, *, propagate: Any = None, explicit_response_port: bool = False) -> Endpoint[Any, Any]:
    """An endpoint for a plain method of a spawned actor.

    Args:
        method: a method that is not an endpoint, taken from a handle: `handle.method`.
        propagate, explicit_response_port: as for `endpoint`.

    Returns:
        The endpoint, with the adverbs `call`, `call_one`, `choose`, `stream` and `broadcast`.

    Raises:
        ValueError: `method` is not a plain method of a handle.

    ```python
    from monarch.actor import Actor, as_endpoint, this_host

    class Worker(Actor):
        def version(self) -> int:
            return 3

    with this_host().spawn_procs({"procs": 1}) as procs:
        assert as_endpoint(procs.spawn("worker", Worker).version).call_one().get() == 3
    ```
    """
    if not isinstance(method, NotAnEndpoint):
        raise ValueError("expected an method of a spawned actor")
    return Endpoint(method._handle, method._name, method._method, explicit_response_port, propagate)


def send(
    endpoint: Endpoint[Any, Any] | SendTarget,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None = None,
    selection: Literal["all", "choose"] = "all",
) -> None:
    """Sends to all actors of the endpoint, or to one picked at random. Their results go to `port` if there is one.

    A remote function of monarch-tensor is sent to the ranks of the active mesh.
    """
    if selection not in ("all", "choose"):
        raise ValueError(f"selection must be 'all' or 'choose', not {selection!r}")
    if not isinstance(endpoint, Endpoint):
        if not hasattr(type(endpoint), "send_call"):
            raise TypeError(f"send({endpoint!r}): expected an endpoint, as in `send(actors.method, ...)`, not {type(endpoint).__name__}")
        endpoint.send_call(tuple(args), kwargs, port, selection)
        return
    endpoint._check(tuple(args), kwargs)
    refused = endpoint._refused()
    if refused is not None:
        endpoint._refusal_seen(refused)
        raise refused
    only = _random_below(endpoint._size) if selection == "choose" else None
    mode = NO_ANSWER if port is None else STREAM
    try:
        cell = endpoint._caller.send(tuple(args), kwargs, mode, only)
    except (RuntimeError, TypeError) as e:
        cell = endpoint._sent_again(e, tuple(args), kwargs, mode, only)
        if isinstance(cell, BaseException):
            raise cell from None
    if port is None:
        return
    assert cell is not None
    port._forward(cell, 1 if only is not None else endpoint._size, endpoint, only)


class Accumulator(Generic[P, R, A]):
    """Combines the answers of all actors as they arrive.

    Args:
        endpoint: the endpoint that is called.
        identity: the first value of the fold.
        combine: makes the next value of the current one and an answer; runs in the caller.

    ```python
    import operator

    from monarch.actor import Accumulator, Actor, current_rank, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def rank(self) -> int:
            return current_rank().rank

    with this_host().spawn_procs({"gpus": 4}) as procs:
        workers = procs.spawn("workers", Worker)
        assert Accumulator(workers.rank, 0, operator.add).accumulate().get() == 6
    ```
    """

    __slots__ = ("_combine", "_endpoint", "_identity")

    def __init__(self, endpoint: Endpoint[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Sends now; the first observer of the Future runs the fold."""
        from monarch._core.call.lazy_future import returns_future

        answers = self._endpoint.stream(*args, **kwargs)

        async def fold() -> A:
            total = self._identity
            for answer in answers:
                total = self._combine(total, await answer)
            return total

        return returns_future(fold)()
