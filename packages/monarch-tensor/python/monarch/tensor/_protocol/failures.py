"""Failed operations of workers: what a worker reports, and what the controller makes of it."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from monarch.actor import Actor, endpoint, this_proc
from monarch.tensor._protocol.frames import frames_of
from monarch.tensor.errors import RemoteException

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from monarch.tensor._protocol.frames import Site

# Seconds after which a failure is logged if no fetch has raised it: a fetch in progress raises it first.
LOG_SECONDS = 0.5
# The most failures that wait to be logged or raised. After the first ones of a program the others add no information.
_KEPT = 64
_REMEMBERED = 65_536


class Failure(NamedTuple):
    """A failed operation: the rank of the worker, and the number of the operation in the order of the controller `session`."""

    rank: int
    number: int
    host: str
    operation: str
    exception: BaseException
    worker_frames: tuple[str, ...]
    session: str

    @property
    def key(self) -> int:
        """The same operation on several ranks is one piece of news."""
        return self.number


class Failures:
    """Of a controller. Thread-safe."""

    def __init__(self, site_of: Callable[[int], Site]) -> None:
        self._site_of = site_of
        self._lock = threading.Lock()
        self._waiting: dict[int, Failure] = {}
        self._known: set[int] = set()
        self._timer: threading.Timer | None = None
        # The calls of `raise_first` to come: each waits for the reports before it.
        self._raising = 0
        # By the number of the operation: the time of its report.
        self._unlogged: dict[int, float] = {}
        # The lines of reported operations, kept because those of old operations are dropped.
        self._sites: dict[int, Site] = {}

    def report(self, failure: Failure) -> None:
        """Takes a worker's report; nothing if it was raised or reported before."""
        with self._lock:
            if failure.key in self._known:
                return
            self._remember(failure)
            if len(self._waiting) < _KEPT:
                self._waiting[failure.key] = failure
            self._unlogged[failure.key] = time.monotonic()
            self._log_after(LOG_SECONDS)

    def _remember(self, failure: Failure) -> Site:
        """Takes it as known from here on; gives the lines of its operation."""
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
            self._sites.clear()
        self._known.add(failure.key)
        site = self._sites.get(failure.key)
        if site is None:
            site = self._sites[failure.key] = self._site_of(failure.number)
        return site

    def _log_after(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = threading.Timer(seconds, self._log)
            self._timer.daemon = True
            self._timer.start()

    def error(self, failure: Failure, site: Site = ()) -> RemoteException:
        """The exception for it, which counts as raised: it is not logged any more. `site` has the lines of what is no operation."""
        if failure.number < 0:
            return _exception(failure, site)
        with self._lock:
            self._waiting.pop(failure.key, None)
            self._unlogged.pop(failure.key, None)
            site = self._remember(failure)
        return _exception(failure, site)

    @contextmanager
    def before_raise(self) -> Generator[None]:
        """No failure is logged in the block, which ends with `raise_first`: on a machine under load its wait is longer than the limit."""
        with self._lock:
            self._raising += 1
        try:
            yield
        finally:
            with self._lock:
                self._raising -= 1

    def raise_first(self) -> None:
        """Raises the first failure that nothing has raised, by the order of operations."""
        with self._lock:
            first = min(self._waiting.values(), key=lambda f: (f.number, f.rank), default=None)
        if first is not None:
            raise self.error(first)

    def _log(self) -> None:
        with self._lock:
            self._timer = None
            if self._raising:
                self._log_after(LOG_SECONDS)
                return
            now = time.monotonic()
            unlogged = [key for key, at in self._unlogged.items() if now - at >= LOG_SECONDS]
            for key in unlogged:
                del self._unlogged[key]
            if self._unlogged:
                self._log_after(min(self._unlogged.values()) + LOG_SECONDS - now)
            shown = [self._waiting[k] for k in unlogged if k in self._waiting]
            if not shown:
                return
            first = min(shown, key=lambda f: (f.number, f.rank))
            frames = frames_of(self._sites.get(first.key, ()))
        error = RemoteException(first.exception, first.rank, first.host, first.operation, frames, first.worker_frames)
        more = f"\n({len(unlogged) - 1} more failed operations)" if len(unlogged) > 1 else ""
        logging.getLogger("monarch.tensor").error("%s%s", error, more)


def _exception(failure: Failure, site: Site) -> RemoteException:
    frames = frames_of(site)
    error = RemoteException(failure.exception, failure.rank, failure.host, failure.operation, frames, failure.worker_frames)
    error.__cause__ = failure.exception
    return error


class Listener(Actor):
    """Takes the reports of workers, in the process of their controller."""

    @endpoint
    def report(self, failure: Failure) -> None:
        failures = _of_sessions.get(failure.session)
        if failures is not None:
            failures.report(failure)


_of_sessions: WeakValueDictionary[str, Failures] = WeakValueDictionary()
_listeners: dict[int, Any] = {}


def listen(failures: Failures, session: str) -> Any:
    """The actor of this process that the workers of a controller report to."""
    _of_sessions[session] = failures
    found = _listeners.get(os.getpid())
    if found is None:
        found = _listeners[os.getpid()] = this_proc().spawn("tensor_listener", Listener)
    return found


def error_of(failure: Failure, failures: Failures, site: Site = ()) -> RemoteException:
    """The exception for a failure that came with a fetch from the controller of `failures`: its line is that of the one that it is of.

    A tensor that was moved brings the failure of another controller. `site` has the lines of a call that failed, and is no operation.
    """
    return _of_sessions.get(failure.session, failures).error(failure, site)
