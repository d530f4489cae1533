"""The wait of a target for a version of all ranks of its source.

A source keeps the request of a wait until there is the version. A wait that has another outcome, or whose future no code has any more,
asks the source to forget the request.
"""

from __future__ import annotations

from itertools import count
from threading import Lock, Timer
from typing import TYPE_CHECKING
from weakref import finalize

from monarch import extension
from monarch.actor import deadline_left
from monarch.rdma.errors import RDMATimeoutError
from monarch.rdma.weights.attaching import rank_name, source_error
from monarch.rdma.weights.published import ask, version_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import Future
    from monarch.extension.mesh import MeshView

# The numbers of the waits of this process.
numbers = count(1)


class Outcome:
    """The outcome of a wait: a version, an error, or the deadline of the caller, of which the first one counts.

    `forget` is called where no answer to the requests is needed any more: after an error, and when the future was collected.
    """

    def __init__(self, name: str, version: int, forget: Callable[[], object]) -> None:
        self._what = f"version {version} of weights '{name}'"
        self._promise = extension.promise(self._what)
        self._forget = forget
        self._lock = Lock()
        self._is_there = self._is_asked = self._is_failed = False
        self._timer: Timer | None = None

    def future(self) -> Future[int]:
        """The future of the caller, when all requests were sent."""
        future = self._promise.future
        # The promise keeps its future, which would not be collected before the answer.
        del self._promise.future
        # A finalizer must not wait for a lock. This one drops a promise, whose future the extension thread gets.
        last = extension.promise(self._what)
        extension.when_done(last.future, lambda _: self._collected())
        finalize(future, _drop, last).atexit = False
        with self._lock:
            self._is_asked = True
            is_failed, is_there = self._is_failed, self._is_there
            limit = deadline_left()
            if limit is not None and not is_there:
                error = RDMATimeoutError(f"wait for {self._what}: the deadline has passed")
                self._timer = Timer(limit, self.set_exception, (error,))
                self._timer.daemon = True
                self._timer.start()
        if is_failed:
            self._forget()
        return future

    def set_result(self, version: int) -> None:
        if self._is_first():
            self._promise.set_result(version)

    def set_exception(self, error: BaseException) -> None:
        if self._is_first():
            self._promise.set_exception(error)
            with self._lock:
                self._is_failed = True
                is_asked = self._is_asked
            if is_asked:
                self._forget()

    def _collected(self) -> None:
        if self._is_first():
            self._forget()

    def _is_first(self) -> bool:
        with self._lock:
            is_first, self._is_there = not self._is_there, True
        if is_first and self._timer is not None:
            self._timer.cancel()
        return is_first


def version_of_all(name: str, mesh: MeshView, version: int) -> Future[int]:
    """Done when all processes of the mesh have this version or a later one; the value is the newest that all have."""
    number = next(numbers)

    def forget() -> None:
        for proc in mesh.procs:
            ask(proc, "forget", name, number=number)

    outcome = Outcome(name, version, forget)
    lock, found = Lock(), list[int]()

    def arrived(rank: int, future: Future[bytes]) -> None:
        try:
            body = future.get()
        except extension.RequestError as e:
            outcome.set_exception(source_error(e, f"wait for weights '{name}'", rank_name(rank, mesh), name))
            return
        with lock:
            found.append(version_in(body))
            if len(found) < len(mesh.procs):
                return
        outcome.set_result(min(found))

    for rank, proc in enumerate(mesh.procs):
        future = ask(proc, "wait", name, version=version, number=number)
        extension.when_done(future, lambda future, rank=rank: arrived(rank, future))
    return outcome.future()


def _drop(_: object) -> None:
    """Its argument is dropped."""
