"""Whether a host of a gather mount is there, from the times of its answers; no input or output, the caller has the clock.

A host that has been asked something and answers nothing is asked for a heartbeat, which a slow disk does not delay: a host that answers
heartbeats is slow, and is waited for. Without an answer to the heartbeat the host is lost `LOST_SECONDS` after the request. A host whose
service has ended is lost after the same time, so that a service that is started again is not noticed.

Time in which the observer itself did not run counts for no host: its answers may be there unread.
"""

from __future__ import annotations

from enum import Enum

LOST_SECONDS = 3.0
PROBE_SECONDS = 1.0
# Seconds between two looks while an answer is pending.
TICK_SECONDS = 0.25
# After a longer time between two looks, this process was stopped or the machine was suspended.
_LONGEST_TICK = 4 * TICK_SECONDS


class Action(Enum):
    """What is to be done for a host."""

    PING = "ask for a heartbeat"
    LOSE = "let its requests fail"
    SEARCH = "look for its service"


class HostHealth:
    """One host; `now` is any clock that never steps back, in seconds."""

    def __init__(self, now: float) -> None:
        # Why requests fail; empty while they are sent or wait.
        self.lost = ""
        self._last_answer = self._looked = now
        self._pinged: float | None = None
        # The time since which there is no service.
        self._ended: float | None = None
        self._searching = False
        self._searched = float("-inf")

    @property
    def is_served(self) -> bool:
        """Whether requests can be sent."""
        return self._ended is None

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to look at unless something is asked."""
        return not self.lost and self._ended is None

    def answered(self, now: float) -> None:
        """An answer, or a heartbeat."""
        self._last_answer, self._pinged = now, None

    def ended(self, now: float) -> None:
        """The service has ended."""
        if self._ended is None:
            # A host that does not answer may be reported as ended later: its requests do not wait any longer for that.
            self._ended = now if self._pinged is None else self._pinged - TICK_SECONDS
            self._pinged = None

    def found(self, now: float, *, found: bool) -> None:
        """The end of a search."""
        self._searching = False
        if found:
            self._ended, self.lost = None, ""
            self.answered(now)

    def forgotten(self) -> None:
        """What was asked is awaited no more."""
        self._pinged = None

    def look(self, now: float, oldest: float | None) -> list[Action]:
        """What is due. `oldest` is when the first request that has no answer was sent. The caller does it at once."""
        self._skip_pause(now, oldest)
        actions: list[Action] = []
        if self._ended is None and self._pinged is not None and now - self._pinged >= LOST_SECONDS - TICK_SECONDS:
            self._lose(f"no answer for {LOST_SECONDS:g} s", actions)
            self.ended(now)
        elif self._ended is None and self._pinged is None and oldest is not None and now - max(self._last_answer, oldest) >= TICK_SECONDS:
            self._pinged = now
            actions.append(Action.PING)
        if self._ended is not None:
            if now - self._ended >= LOST_SECONDS:
                self._lose("its service has ended", actions)
            if not self._searching and now - self._searched >= PROBE_SECONDS:
                self._searching, self._searched = True, now
                actions.append(Action.SEARCH)
        return actions

    def _lose(self, reason: str, actions: list[Action]) -> None:
        if not self.lost:
            self.lost = reason
            actions.append(Action.LOSE)

    def _skip_pause(self, now: float, oldest: float | None) -> None:
        pause, self._looked = now - self._looked, now
        if pause <= _LONGEST_TICK or (oldest is None and self.is_settled):
            return
        if self._pinged is not None:
            self._pinged += pause
        if self._ended is not None:
            self._ended += pause
        self._last_answer = max(self._last_answer, now)
