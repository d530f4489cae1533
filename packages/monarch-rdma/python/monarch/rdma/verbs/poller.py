"""The thread of a rail, which takes completions and hands them to who waits for them.

It polls in batches; when there is nothing, it goes on for the busy window while requests are under way, because the next completion is
likely to be near, and an event costs an interrupt and a switch. Then it asks for an event, looks once more, since completions that came
before that make none, and waits in `select`, without the GIL.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from monarch.rdma.verbs.provider import Completion
from monarch.rdma.verbs.send_queue import POSITION_BITS

if TYPE_CHECKING:
    from monarch.rdma.verbs.provider import Rail

_BATCH = 64
BUSY_WINDOW = 50e-6
# Seconds between two calls of clients while completions arrive without a pause.
_LOOK = 0.02


class Client(Protocol):
    """An owner of queues on the rail."""

    def completed(self, serial: int, completions: list[Completion]) -> None: ...

    def next_look(self) -> float | None:
        """When `look` is to be called at the latest, on the clock of the poller; None: not before something happens."""
        ...

    def look(self) -> None: ...

    def lost(self, rail: Rail, error: OSError) -> None:
        """There will be no more completions."""
        ...


class Poller:
    """Runs from its making until `close`."""

    def __init__(
        self,
        rail: Rail,
        *,
        window: float = BUSY_WINDOW,
        idle: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rail = rail
        self._window = window
        self._idle = idle
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: dict[int, Client] = {}
        self._lookers: list[Client] = []
        self._armed = False
        self._closing = False
        self._busy = 0
        self._look_again = 0.0
        self._sleeping_until: float | None = float("-inf")  # None: without a bound
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"rdma {rail.port.name}", daemon=True)
        self._thread.start()

    def attach(self, serial: int, client: Client) -> None:
        """Completions of the queue with that serial number go to the client."""
        with self._lock:
            self._queues = {**self._queues, serial: client}

    def detach(self, serial: int) -> None:
        with self._lock:
            self._queues = {key: client for key, client in self._queues.items() if key != serial}

    def look_for(self, client: Client) -> None:
        """This poller asks the client for when to look."""
        with self._lock:
            self._lookers = [*self._lookers, client]

    def leave(self, client: Client) -> None:
        with self._lock:
            self._lookers = [other for other in self._lookers if other is not client]

    def begin(self) -> None:
        """A caller expects completions; as often as `end`."""
        with self._lock:
            self._busy += 1

    def end(self) -> None:
        with self._lock:
            self._busy -= 1

    def wake(self, at: float) -> None:
        """The thread is not to sleep beyond that."""
        until = self._sleeping_until
        if until is None or at < until:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except OSError as e:
            self._lose(e)
        except Exception as e:  # the library has exceptions of its own
            self._lose(OSError(f"{self.rail.port.name}: {type(e).__name__}: {e}"))

    def _lose(self, error: OSError) -> None:
        with self._lock:
            clients = {id(client): client for client in (*self._queues.values(), *self._lookers)}
        for client in clients.values():
            client.lost(self.rail, error)

    def _turn(self) -> None:
        now = self._clock()
        if now >= self._look_again:
            self._look(now)
        if self._take():
            return
        busy_until = now + self._window
        while self._busy and self._clock() < busy_until:
            if self._take():
                return
            os.sched_yield()
        self._idle()
        if not self._armed:
            self.rail.arm()
            self._armed = True
            if self._take():
                return
        self._sleeping_until = self._look(self._clock())
        # A client that changes its time from now on sees how long the thread will sleep, and wakes it; an earlier change is seen here.
        due = self._next_look()
        wait = None if due is None else max(0.0, due - self._clock())
        readable, _, _ = select.select([self.rail.fileno(), self._wake], [], [], wait)
        self._sleeping_until = float("-inf")
        if self._wake in readable:
            os.eventfd_read(self._wake)
        if self.rail.fileno() in readable:
            self.rail.acknowledge()
            self._armed = False

    def _look(self, now: float) -> float | None:
        """Has clients look that wanted to by now; when the next one wants to."""
        for client in self._lookers:
            at = client.next_look()
            if at is not None and at <= now:
                client.look()
        self._look_again = now + _LOOK
        return self._next_look()

    def _next_look(self) -> float | None:
        return min((at for client in self._lookers if (at := client.next_look()) is not None), default=None)

    def _take(self) -> bool:
        found = self.rail.poll(_BATCH)
        if not found:
            return False
        by_queue: defaultdict[int, list[Completion]] = defaultdict(list)
        for completion in found:
            by_queue[completion.number >> POSITION_BITS].append(completion)
        for serial, completions in by_queue.items():
            # Queues that were closed meanwhile have no client.
            if client := self._queues.get(serial):
                client.completed(serial, completions)
        return True
