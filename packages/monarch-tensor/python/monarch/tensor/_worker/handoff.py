"""Tensors between the worker of a rank and other actors of its proc: arguments of endpoints, and results that become mesh tensors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor._worker.poison import Poison
from monarch.tensor.errors import RemoteException

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds: a worker is started before a tensor of it is sent, and may import torch meanwhile.
START_SECONDS = 60.0


_changed = threading.Condition()
# The controllers that have a worker in this process, and those that had one.
_sessions: set[str] = set()
_ended: set[str] = set()
# By session and number: tensors for actors, with the point of the device's stream at which they are computed.
_offers: dict[tuple[str, int], tuple[Any, Any]] = {}
# The last taken tensors: a message that cannot be unpickled is unpickled again to find the reason.
_taken: dict[tuple[str, int], bool] = {}
_REMEMBERED = 16_384
# The last tensors for which no stream waits any more; False if the actor may still take it.
_handled: dict[tuple[str, int], bool] = {}
# The results of endpoints that are mesh tensors, by session and key.
_outcomes: dict[tuple[str, int], Any] = {}


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def opened(session: str) -> None:
    """This process has a worker of the session."""
    with _changed:
        _sessions.add(session)
        _changed.notify_all()


def closed(session: str) -> None:
    """The worker has ended: what waits for it fails."""
    with _changed:
        _sessions.discard(session)
        _ended.add(session)
        for table in (_offers, _outcomes):
            for key in [key for key in table if key[0] == session]:
                del table[key]
        _changed.notify_all()


# Arguments


def offered(session: str, number: int, value: Any) -> list[Any]:
    """On the stream: keeps a tensor, or the reason for which there is none, until the actor takes it; nothing if it does not get it."""
    ready = None
    if isinstance(value, torch.Tensor) and value.is_cuda:
        ready = torch.cuda.Event()
        ready.record()
    with _changed:
        if not _handled.get((session, number)):
            _offers[session, number] = value, ready
            _changed.notify_all()
    return []


def withdrawn(session: str, number: int) -> None:
    """The actor does not get it."""
    handled([(session, number)])


def handled(keys: list[tuple[str, int]]) -> None:
    """The actor has handled the message of these tensors, or does not get it."""
    with _changed:
        for key in keys:
            _offers.pop(key, None)
            _remember(_handled, key, True)
        _changed.notify_all()


def uncertain(keys: list[tuple[str, int]]) -> None:
    """An actor on some rank does not come to the end of the message: no stream waits for that."""
    with _changed:
        for key in keys:
            _remember(_handled, key, _handled.get(key, False))
        _changed.notify_all()


def resumed(session: str, number: int) -> list[Any]:
    """On the stream: returns when the message of this tensor is handled."""
    with _changed:
        _changed.wait_for(lambda: (session, number) in _handled or session in _ended)
    return []


def _remember(table: dict[tuple[str, int], bool], key: tuple[str, int], value: bool = True) -> None:
    table[key] = value
    if len(table) > _REMEMBERED:
        del table[next(iter(table))]


def taken(session: str, number: int, shown: str) -> Any:
    """What unpickling gives in place of a mesh tensor: that of this rank, when its stream has come to where the message was sent.

    `ValueError` in a process that has no worker of the session. `RemoteException` if the tensor could not be computed.
    """
    key = session, number
    with _changed:
        known = _changed.wait_for(lambda: session in _sessions or session in _ended, START_SECONDS)
        if not known:
            raise ValueError(f"{shown}: the proc of this actor has no shard of it")
        if key in _taken:
            raise ValueError(f"{shown}: an actor has taken it before")
        _changed.wait_for(lambda: key in _offers or session in _ended)
        if session in _ended:
            raise ValueError(f"{shown}: the worker of this proc has ended")
        value, ready = _offers.pop(key)
        _remember(_taken, key)
    if isinstance(value, Poison):
        failure = value.failure
        raise RemoteException(failure.exception, failure.rank, failure.host, failure.operation, (), failure.worker_frames)
    if ready is not None:
        torch.cuda.current_stream().wait_event(ready)
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
