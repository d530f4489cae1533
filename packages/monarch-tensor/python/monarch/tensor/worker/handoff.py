"""Tensors between the worker of a rank and the other actors of its proc: arguments of their endpoints, and results that become mesh tensors."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor.errors import RemoteException
from monarch.tensor.worker.poison import Poison

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.tensor.worker.executor import Executor

# A worker is started before a tensor of it is sent, and may import torch meanwhile.
START_SECONDS = 60.0


class _Session:
    """The worker of one controller in this process."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.batches = 0


_changed = threading.Condition()
_sessions: dict[str, _Session] = {}
_ended: set[str] = set()
# What endpoints have returned for results that are mesh tensors, by session and key.
_outcomes: dict[tuple[str, int], Any] = {}


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def opened(session: str, executor: Executor) -> None:
    """This process has a worker of the session."""
    with _changed:
        _sessions[session] = _Session(executor)
        _changed.notify_all()


def arrived(session: str) -> None:
    """The streams have one batch more."""
    with _changed:
        _sessions[session].batches += 1
        _changed.notify_all()


def closed(session: str) -> None:
    """The worker has ended: what waits for it fails."""
    with _changed:
        _sessions.pop(session, None)
        _ended.add(session)
        _changed.notify_all()


def taken(session: str, stream: int, number: int, batch: int, shown: str) -> Any:
    """What unpickling gives in place of a mesh tensor: the tensor of this rank, when its stream has come to where the message was sent.

    `ValueError` in a process that has no worker of the session. `RemoteException` if the tensor could not be computed.
    """

    def there() -> bool:
        found = _sessions.get(session)
        return session in _ended or (found is not None and found.batches >= batch)

    with _changed:
        known = _changed.wait_for(lambda: session in _sessions or session in _ended, START_SECONDS)
        if known:
            _changed.wait_for(there)
        found = _sessions.get(session)
    if found is None:
        raise ValueError(f"{shown}: the proc of this actor has no shard of it" + (": its worker has ended" if known else ""))
    executor = found.executor
    box: SimpleQueue[tuple[Any, Any]] = SimpleQueue()

    def take() -> None:
        value = executor.table.pop(number, None)
        event = None
        if isinstance(value, torch.Tensor) and value.is_cuda:
            event = torch.cuda.Event()
            event.record()
        box.put((value, event))

    executor.stream(stream).put(take)
    value, event = box.get()
    if isinstance(value, Poison):
        failure = value.failure
        raise RemoteException(failure.exception, failure.rank, failure.host, failure.operation, (), failure.worker_frames)
    if value is None:
        raise ValueError(f"{shown}: it was taken by an actor of this proc before")
    if event is not None:
        torch.cuda.current_stream().wait_event(event)
    return value.detach()


# Results


def delivered(session: str, key: int, outcome: Any) -> None:
    with _changed:
        _outcomes.setdefault((session, key), outcome)
        _changed.notify_all()


def undelivered(session: str, key: int, error: BaseException) -> None:
    """The endpoint does not answer on some rank: where it is waited for, `received` raises this."""
    delivered(session, key, _Raised(error))


def received(session: str, key: int) -> Any:
    """On the stream: waits for the endpoint, and gives what it returned, or raises what it raised."""
    with _changed:
        _changed.wait_for(lambda: (session, key) in _outcomes or session in _ended)
        if session in _ended:
            raise RuntimeError("the worker has ended")
        outcome = _outcomes.pop((session, key))
    if isinstance(outcome, _Raised):
        raise outcome.error
    return outcome


def keep(session: str, key: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """In the actor: runs the method, and keeps its result for the stream."""
    try:
        out = method(*args, **kwargs)
    except Exception as e:
        out = _Raised(e)
    delivered(session, key, out)


async def keep_async(session: str, key: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    try:
        out = await method(*args, **kwargs)
    except Exception as e:
        out = _Raised(e)
    delivered(session, key, out)
