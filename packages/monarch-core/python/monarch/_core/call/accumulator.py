"""Folds of the answers of all actors of an endpoint."""

from __future__ import annotations

from monarch._core.shape.generic import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from monarch._core.call.endpoint import Endpoint
    from monarch._core.call.future import Future

    P = ParamSpec("P")
    R = TypeVar("R")
    A = TypeVar("A")
else:
    P = R = A = None


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
