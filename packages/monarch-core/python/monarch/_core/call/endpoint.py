"""Endpoints of handles, and the adverbs that call them. `call_target.py` has their common part."""

from __future__ import annotations

from monarch._core._native.protocol import NO_ANSWER, ONLY_ANSWER, STREAM
from monarch._core.call.foreign_names import ADVERBS, no_async_for
from monarch._core.call.future import new_future
from monarch._core.shape.generic import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, ParamSpec, TypeVar

    from monarch._core.call.call_target import CallTarget
    from monarch._core.call.future import Future
    from monarch._core.call.value_mesh import ValueMesh

    P = ParamSpec("P")
    R = TypeVar("R")
else:
    P = R = None


class Endpoint(Generic[P, R]):
    """One method of all actors of a mesh."""

    __slots__ = ("__core__", "_rref")

    def __init__(self, target: CallTarget, rref: Callable[[Endpoint[Any, Any], tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self.__core__ = target
        self._rref = rref

    def __repr__(self) -> str:
        return f"<Endpoint {self.__core__.title}>"

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Calls all actors of the mesh. The message is sent before this method returns.

        Args:
            *args: positional arguments of the endpoint; pickled once for all actors. `per_rank` gives each actor another value.
            **kwargs: its keyword arguments.

        Returns:
            A Future of a `ValueMesh` with one value for each rank, in the shape of the called mesh.

        Raises:
            TypeError: the arguments do not fit the signature of the endpoint.
            ActorError: from the Future: the endpoint raised on one rank at least; the first such answer is raised.
            DeadlineExceeded: from the Future: the deadline of the calling code has passed; it has the answers that have come.
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
        target = self.__core__
        return target.call(args, kwargs, target.mesh_result)

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
        target = self.__core__
        if target.size != 1:
            raise ValueError(f"call_one requires exactly 1 actor, but mesh has {target.size}")
        return target.call(args, kwargs, target.one_result, mode=ONLY_ANSWER)

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
        from functools import partial
        from random import randrange

        target = self.__core__
        if target.size == 0:
            target.check(args, kwargs)
            raise ValueError("choose requires at least 1 actor, but mesh has 0")
        rank = randrange(target.size)
        return target.call(args, kwargs, partial(target.one_result, rank=rank), rank)

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
        target = self.__core__
        cell = target.begin(args, kwargs, STREAM)
        if isinstance(cell, BaseException):
            return Answers([target.failed(cell) for _ in range(target.size)])
        return Answers([new_future(cell, target.arrival_result(i), i) for i in range(target.size)])

    def broadcast(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Sends to all actors of the mesh and waits for none. An exception in the endpoint fails its actor.

        Args:
            *args: positional arguments of the endpoint.
            **kwargs: its keyword arguments.

        Raises:
            TypeError: the arguments do not fit the signature of the endpoint.
            SupervisionError: one of the actors is known to have failed or to be stopped.
            DeliveryError: the message could not be sent; the actors are unharmed.
            DeadlineExceeded: the deadline of the calling code has passed, and nothing was sent.

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
        target = self.__core__
        error = target.begin(args, kwargs, NO_ANSWER)
        if error is None:
            return
        if not isinstance(error, BaseException):
            raise target.expired(error)
        target.seen(error)
        raise error

    def rref(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Calls the actors; the results are tensors that stay on the workers. Needs monarch-tensor."""
        return self._rref(self, args, kwargs)

    if not TYPE_CHECKING:

        def __call__(self, /, *_: Any, **__: Any) -> None:
            raise TypeError(f"{self.__core__.title} is an endpoint and runs in its actors: {ADVERBS}")

        def __getattr__(self, name: str) -> None:
            # A private name may be a slot of an instance without fields.
            raise AttributeError(name if name[:1] == "_" else f"endpoint {self.__core__.title} has no attribute {name!r}: {ADVERBS}")


class Answers:
    """The iterator of `Endpoint.stream`."""

    __slots__ = ("_futures",)

    def __init__(self, futures: list[Any]) -> None:
        self._futures = iter(futures)

    def __iter__(self) -> Iterator[Any]:
        return self._futures

    def __next__(self) -> Any:
        return next(self._futures)

    if not TYPE_CHECKING:
        __aiter__ = no_async_for("a stream", "`for future in stream:` gives the futures as they arrive, and `await future` each result")
