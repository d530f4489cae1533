"""One question to many hosts: asked of each, or of a leader of each group of hosts, which merges the parts of its group.

A leader answers for hosts that it could not reach with the reason. A leader that fails costs its group nothing: each host of it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeGuard, cast

from monarch.actor import ActorError, MonarchError, SupervisionError
from monarch.telemetry._engine.host import Host, reason
from monarch.telemetry._engine.running_queries import RunningQuery
from monarch.telemetry._sql.limits import Limits
from monarch.telemetry._sql.wire import is_number
from monarch.telemetry.errors import QueryError, QueryTimeout

# The most seconds of a start of a collector after a question has found that it ended.
RESTART = 5.0
# Hosts whose parts are merged in one step, and the shares of the time for a leader and for its members.
GROUP, _LEADERS, _MEMBERS = 16, 0.6, 0.5
# Seconds for which a question waits for an answer of hosts that missed the deadline of the previous one: otherwise each question to a
# stopped host would take all of its time, and a capture, which asks for fifty tables, half an hour.
_WORD = 0.5


class Part(NamedTuple):
    """What came from a host, or from the leader of a group: `others` are the names of its members whose rows it has too."""

    data: bytes
    scanned: int
    others: tuple[str, ...] = ()


class Questions:
    """`plan` of `query` is asked until `deadline`, a time of the monotonic clock, or until the query is cancelled."""

    def __init__(self, query: RunningQuery, plan: str, limits: Limits, deadline: float) -> None:
        self._query, self._plan, self._limits, self._deadline = query, plan, limits, deadline
        self.found: dict[str, Part] = {}
        self.missing: dict[str, str] = {}
        # The collectors that work on the question.
        self._asked: list[Any] = []
        self._word_until: float | None = None
        query.on_cancel(self._cancel)

    def _cancel(self) -> None:
        for handle in self._asked:
            # A collector that does not get this ends its part at the deadline.
            with suppress(MonarchError):
                handle.cancel.broadcast(self._query.token)

    def _part(self, handle: Any) -> Any:
        self._asked.append(handle)
        return handle.part.call_one(self._plan, tuple(self._limits), self._left(), self._query.token)

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _started(self, host: Host) -> Any:
        """The handle of a host, None where its collector does not start, or has not answered since an earlier question."""
        if self._is_silent(host):
            self.missing[host.name] = "no answer in time to an earlier question, and none since"
            return None
        try:
            return host.start(max(0.1, min(RESTART, self._left())))
        except Exception as error:
            self.missing[host.name] = reason(error)
            return None

    def _is_silent(self, host: Host) -> bool:
        """The wait is one for all hosts."""
        if self._word_until is None:
            self._word_until = time.monotonic() + min(_WORD, self._left())
        return host.is_silent(max(0.0, self._word_until - time.monotonic()))

    def each(self, hosts: Sequence[Host]) -> None:
        """Asks these hosts, all at the same time."""
        asked = [(host, handle, self._part(handle)) for host in hosts if (handle := self._started(host)) is not None]
        again: list[Host] = []
        for host, handle, future in asked:
            try:
                self._take(host, handle, future)
            except SupervisionError as error:
                host.ended(handle, reason(error))
                again.append(host)
        for host in again:
            # The agent starts the collector again, with the events that are still in the rings.
            handle = self._started(host)
            if handle is not None:
                try:
                    self._take(host, handle, self._part(handle))
                except SupervisionError as error:
                    self.missing[host.name] = reason(error)

    def _take(self, host: Host, handle: Any, future: Any) -> None:
        """Waits for a part. `QueryError` where the question is wrong, `SupervisionError` where the collector has ended."""
        try:
            match self._query.wait(future, self._left()):
                case (bytes() as data, int() as scanned) if self._may_be(data, scanned):
                    self.found[host.name] = Part(data, scanned)
                case None:
                    self.missing[host.name] = "no answer in time"
                case _:
                    self.missing[host.name] = "its answer is malformed"
        except TimeoutError:
            self.missing[host.name] = "no answer in time"
            host.was_silent(handle)
        except SupervisionError:
            raise
        except QueryError:
            raise
        except ActorError as error:
            if isinstance(error.exception, QueryError) and not isinstance(error.exception, QueryTimeout):
                raise error.exception from None
            self.missing[host.name] = reason(error.exception or error)
        except (RuntimeError, OSError) as error:
            self.missing[host.name] = reason(error)

    def _may_be(self, data: bytes, scanned: int) -> bool:
        """Whether a host may have sent so much: one with more to send refuses the question itself."""
        return len(data) <= self._limits.memory and is_number(scanned)

    def leaders(self, groups: Sequence[Sequence[Host]]) -> list[Host]:
        """Asks the first host of each group for the parts of all; the hosts of groups that have to be asked one by one."""
        asked: list[tuple[Sequence[Host], Any]] = []
        left: list[Host] = []
        for hosts in groups:
            handles = [(host, handle) for host in hosts if (handle := self._started(host)) is not None]
            if len(handles) < 2:
                left += [host for host, _ in handles]
                continue
            members = [host for host, _ in handles]
            others = [handle for _, handle in handles[1:]]
            leader = handles[0][1]
            self._asked += [handle for _, handle in handles]
            given = tuple(self._limits), self._left() * _MEMBERS, others, self._query.token
            asked.append((members, leader.gather.call_one(self._plan, *given)))
        for hosts, future in asked:
            try:
                match self._query.wait(future, self._left() * _LEADERS):
                    case (bytes() as data, int() as scanned, unreached) if _are_places(unreached, len(hosts) - 1) and self._may_be(
                        data, scanned
                    ):
                        others = (host.name for place, host in enumerate(hosts[1:]) if place not in unreached)
                        part = Part(data, scanned, tuple(others))
                    case _:
                        left += hosts
                        continue
            except QueryError:
                raise
            except ActorError as error:
                if isinstance(error.exception, QueryError) and not isinstance(error.exception, QueryTimeout):
                    raise error.exception from None
                left += hosts
            except (TimeoutError, SupervisionError, RuntimeError, OSError):
                left += hosts
            else:
                self.found[hosts[0].name] = part
                left += [host for host in hosts[1:] if host.name not in part.others]
        return left


def _are_places(found: object, most: int) -> TypeGuard[list[int]]:
    if not isinstance(found, list) or len(cast("list[object]", found)) > most:
        return False
    return all(isinstance(place, int) and 0 <= place < most for place in cast("list[object]", found))
