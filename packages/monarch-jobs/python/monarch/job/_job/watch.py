"""Watches an allocation: hosts that join, for `state` and `heal`, and the end of the job, for calls whose hosts are lost."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import NamedTuple, TypeVar

from monarch import actor
from monarch.job._job.allocation import Allocation
from monarch.job._job.hold import Hold
from monarch.job._job.join import Join
from monarch.job._job.launcher import Host
from monarch.job._machine.commands import time_left
from monarch.job._machine.notice import notice
from monarch.job.errors import JobEndedError, JobError

T = TypeVar("T")

# Seconds: a scheduler that is up answers in milliseconds, and ends a job seconds after its workers.
ANSWER_S = 4.0
# Seconds: a host may be lost while its job continues, and each call that fails for it would query again.
AGAIN_S = 5.0
_PAUSE_S = 0.1
# Seconds: a scheduler's report about a restarted worker may be about the previous one for a moment.
LOST_S = 1.0
# Seconds: workers that start again take less if there is no problem.
NOTICE_S = 2.0


def until_joined(
    allocation: Allocation, wanted: list[Host], timeout: float | None, *, drops_lost: bool = False, notice_text: str = ""
) -> Generator[tuple[Host, str]]:
    """Yields hosts with their addresses as they become known; `JoinTimeoutError`, `JobEndedError` or the launcher's own error.

    A surrounding `time_limit` ends the wait as well, whatever the scheduler reports. With `drops_lost`, a host is not waited for any more
    once the scheduler has had it as lost for `LOST_S`: what it is asked for later is another worker's start. A wait
    of more than `NOTICE_S` has the line `notice_text` on stderr.
    """
    join = Join(allocation.title, allocation.sizes, timeout, time.monotonic(), sys.stderr is not None and sys.stderr.isatty())
    missing = set(wanted)
    lost: dict[Host, float] = {}
    start = time.monotonic()
    for host in set(join.missing) - missing:
        join.joined_host(host.mesh, host.rank)
    while missing:
        status = allocation.poll()
        if allocation.stopped.is_set():
            raise JobEndedError("was killed", title=allocation.title, state="killed")
        now = time.monotonic()
        join.seen(status, now)
        for host in status.hosts:
            place = Host(host.mesh, host.rank)
            if host.phase == "joined" and host.address is not None and place in missing:
                missing.discard(place)
                join.joined_host(host.mesh, host.rank)
                yield place, host.address
            elif drops_lost and host.phase == "lost" and place in missing:
                if now >= lost.setdefault(place, now) + LOST_S:
                    missing.discard(place)
                    join.joined_host(host.mesh, host.rank)
            else:
                lost.pop(place, None)
        if missing and status.phase == "ended":
            raise allocation.ended(status)
        if missing and (join.overdue(now) or time_left(1.0) == 0):
            raise join.error(allocation.last_words())
        if missing and notice_text and now >= start + NOTICE_S:
            notice(notice_text)
            notice_text = ""
        line = join.line(now)
        if line is not None:
            notice(line)
        if missing:
            allocation.stopped.wait(time_left(min(join.pause(now), allocation.longest_pause)))


class Promise(NamedTuple):
    """An address to come. The receiver has to be kept: without it the future is never fulfilled."""

    port: actor.Port[str]
    receiver: actor.PortReceiver[str]


class AddressWatch(threading.Thread):
    """Looks at the scheduler until all addresses are known, or the allocation is killed; each address fulfils its promise.

    `prepare` comes before: what makes the way to the hosts, and may wait for the first of them.
    """

    def __init__(
        self,
        allocation: Allocation,
        promises: Mapping[Host, Promise],
        attached: dict[Host, str],
        timeout: float | None,
        hold: Hold | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name="monarch-job-join", daemon=True)
        self._prepare = prepare
        self._allocation = allocation
        self._timeout = timeout
        self._promises = dict(promises)
        self._attached = attached
        self._hold = hold

    def run(self) -> None:
        sent: set[Host] = set()
        try:
            if self._prepare is not None:
                self._prepare()
            for host, address in self._found():
                self._attached[host] = address
                self._promises[host].port.send(address)
                sent.add(host)
        except Exception as e:
            for host, promise in self._promises.items():
                if host not in sent:
                    with contextlib.suppress(Exception):  # the client is ending
                        promise.port.exception(e)

    def _found(self) -> Iterable[tuple[Host, str]]:
        """Hosts with their addresses, as handles may use them: each at once, or all of them when features have started there."""
        found = until_joined(self._allocation, list(self._promises), self._timeout)
        if self._hold is None:
            return found
        whole = list(found)
        self._hold.run(self._allocation.stopped, self._allocation.title)
        return whole


def answer_within(seconds: float, ask: Callable[[], T]) -> T | None:
    """What `ask` gives, on a thread of its own; None where it takes longer, or raises."""
    found: list[T] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            found.append(ask())

    thread = threading.Thread(target=run, name="monarch-job-ask", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


class EndWatch:
    """Finds out for lost hosts whether the scheduler has ended or requeued their job: calls fail with its words then, not "agent exited".

    `is_ending` is true if the last status is that of a job that is being ended, and whose final state is not known yet.
    """

    def __init__(self, allocation: Allocation, is_ending: Callable[[], bool] = lambda: False) -> None:
        self._allocation = allocation
        self._is_ending = is_ending
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._found: JobError | None = None

    def __call__(self) -> JobError | None:
        """The end of the job, or its way back into the queue; None where the job goes on, or the scheduler does not answer in time."""
        with self._lock:
            if not isinstance(self._found, JobEndedError) and (self._asked_at is None or time.monotonic() >= self._asked_at + AGAIN_S):
                # A scheduler that hangs must not block the failure of the call.
                answer_within(ANSWER_S, self._ask)
                self._asked_at = time.monotonic()
            return copy.copy(self._found)  # each raise needs a traceback of its own

    def _ask(self) -> None:
        end = time.monotonic() + ANSWER_S - _PAUSE_S
        status = self._allocation.launcher.poll(self._allocation.ids)
        while self._is_ending() and time.monotonic() < end:
            time.sleep(_PAUSE_S)
            status = self._allocation.launcher.poll(self._allocation.ids)
        if status.phase == "ended" or self._is_ending():
            self._found = self._allocation.ended(status)
        elif status.phase == "pending":
            what = f"was requeued, its hosts are given back: {status.detail.partition(chr(10))[0]}"
            self._found = JobError(what, title=self._allocation.title, hint="state() has its hosts when the scheduler has started it again")
        else:
            self._found = None
