"""From "submitted" to "all hosts have joined": what is known, which progress to report, when it has taken too long. No input or output.

No clock runs while the scheduler has the job pending; the time for joining begins with "running". Times are seconds of any monotonic
clock, given by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

from monarch.job._job.launcher import Host, JobStatus, Phase
from monarch.job.errors import JoinTimeoutError

# Seconds: if stderr is no terminal, at most one line is printed in this time.
LINE_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.01, 1.0, 1.3
_NAMED = 8


class Join:
    """`sizes` has the hosts per mesh, `timeout` the seconds from running to joined, None for any."""

    def __init__(self, title: str, sizes: Mapping[str, int], timeout: float | None, now: float, is_terminal: bool) -> None:
        self._title = title
        self._timeout = timeout
        self._is_terminal = is_terminal
        self._missing = {Host(mesh, rank): "" for mesh, size in sizes.items() for rank in range(size)}
        self._total = len(self._missing)
        self._phase: Phase = "unknown"
        self._detail = ""
        self._running_since: float | None = None
        self._reported = ""
        self._reported_at = now
        self._pause = _FIRST_PAUSE

    @property
    def missing(self) -> list[Host]:
        return list(self._missing)

    @property
    def joined(self) -> int:
        return self._total - len(self._missing)

    def seen(self, status: JobStatus, now: float) -> None:
        """The status that the scheduler gives. Back to pending, as after a preemption, stops the clock."""
        if status.phase == "running":
            self._running_since = now if self._running_since is None else self._running_since
        elif status.phase == "pending":
            self._running_since = None
        self._phase, self._detail = status.phase, status.detail
        for host in status.hosts:
            place = Host(host.mesh, host.rank)
            if place in self._missing and host.detail:
                self._missing[place] = host.detail

    def joined_host(self, mesh: str, rank: int) -> None:
        """A host has joined."""
        if self._missing.pop(Host(mesh, rank), None) is not None:
            self._pause = _FIRST_PAUSE

    def overdue(self, now: float) -> bool:
        return bool(self._missing) and self._timeout is not None and self._running_since is not None and now > self._ends()

    def _ends(self) -> float:
        assert self._timeout is not None and self._running_since is not None
        return self._running_since + self._timeout

    def pause(self, now: float) -> float:
        """How long to wait before looking again: short while hosts join, a second at most."""
        pause, self._pause = self._pause, min(self._pause * _GROWTH, _LONGEST_PAUSE)
        if self._timeout is not None and self._running_since is not None:
            pause = min(pause, max(self._ends() - now, 0.0) + 0.001)
        return pause

    def line(self, now: float) -> str | None:
        """The progress to report now: on a terminal each change, elsewhere a line every 30 s while a host is missing."""
        text = self._text()
        due = text != self._reported if self._is_terminal else bool(self._missing) and now >= self._reported_at + LINE_SECONDS
        if not due:
            return None
        self._reported, self._reported_at = text, now
        return text

    def _text(self) -> str:
        reason = f" ({self._detail})" if self._detail else ""
        return f"{self._title}: {self._phase}{reason}, {self.joined} of {self._total} hosts joined"

    def error(self, last_words: Mapping[Host, str]) -> JoinTimeoutError:
        """The missing hosts, each with its last output."""
        reasons = {host: last_words.get(host) or self._missing[host] or "no output" for host in self._missing}
        lines = [f"{host}:{_indented(reason)}" for host, reason in list(reasons.items())[:_NAMED]]
        if len(reasons) > _NAMED:
            lines.append(f"... and {len(reasons) - _NAMED} more")
        return JoinTimeoutError(
            f"{self.joined} of {self._total} hosts joined within {self._timeout:g} s" if self._timeout is not None else self._text(),
            title=self._title,
            cause="\n".join(lines),
            hint="`monarch logs` has all that the workers printed; `monarch heal` starts those again that ended",
            joined=self.joined,
            total=self._total,
            hosts={str(host): reason for host, reason in reasons.items()},
        )


def _indented(text: str) -> str:
    lines = text.strip().splitlines()
    return f" {lines[0]}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
