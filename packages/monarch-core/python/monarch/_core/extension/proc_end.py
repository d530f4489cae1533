"""The end of a process, as members of its job get it."""

from __future__ import annotations

from monarch._core.errors.failure import ExitReason, cause
from monarch._core.extension.frozen import Frozen
from monarch._core.extension.ids import ProcId


class ProcEnd(Frozen):
    """The end of a process: `reason`, the host (`hostname`) and `pid` as far as they are known, the last lines of its output; immutable."""

    __slots__ = ("hostname", "output", "pid", "proc", "reason")

    proc: ProcId
    reason: ExitReason
    hostname: str
    pid: int | None
    output: tuple[str, ...]

    def __init__(self, proc: ProcId, reason: ExitReason, hostname: str, pid: int | None, output: tuple[str, ...]) -> None:
        self._set(proc=proc, reason=reason, hostname=hostname, pid=pid, output=output)

    def describe(self) -> str:
        """The cause, in the text of core's errors."""
        return cause(self.reason, host=self.hostname)

    def __repr__(self) -> str:
        return f"ProcEnd({self.proc}: {self.describe()})"
