"""The exceptions of launches. The first line of a text names the option, the rank or the program at fault; then come cause and hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from monarch.actor import ExitReason, MonarchError

FailureKind = Literal["exception", "exit", "signal", "oom", "host_lost", "hang"]


class SPMDError(MonarchError, RuntimeError):
    """The base of what `monarch.spmd` raises at run time: a mesh without ranks, a program that hosts lack."""

    __module__ = "monarch.spmd"
    _default_code = "spmd_failed"

    def __init__(self, what: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(what if hint is None else f"{what}\nhint: {hint}", code=code, hint=hint)


class LaunchArgumentError(MonarchError, ValueError):
    """An option of a launch is unknown, or has a value that it does not allow. `option` is as it was written."""

    __module__ = "monarch.spmd"
    _default_code = "launch_argument"

    def __init__(self, option: str, what: str, *, hint: str | None = None, code: str | None = None) -> None:
        self.option = option
        text = f"{option}: {what}" if option else what
        super().__init__(text if hint is None else f"{text}\nhint: {hint}", code=code, hint=hint)


class RankFailure(NamedTuple):
    """The end of one rank that failed by itself. `kind` is one of those of `RestartPolicy.on`.

    `place` has its coordinates, like `hosts=0, gpus=3`; `at` is the time of its end, or of its exception where that was the first
    one; seconds of the epoch by the clock of this process.
    """

    rank: int
    place: str
    host: str
    pid: int
    kind: FailureKind
    reason: ExitReason
    exitcode: int | None
    at: float
    message: str = ""
    traceback: str = ""
    output: tuple[str, ...] = ()

    def headline(self) -> str:
        """The rank and what it did: `rank 3 (hosts=0, gpus=3, host-7, pid 4121) raised ValueError: ...`."""
        where = ", ".join(part for part in (self.place, self.host, f"pid {self.pid}" if self.pid else "") if part)
        return f"rank {self.rank} ({where}) {self.what()}"

    def what(self) -> str:
        if self.message and self.kind == "exception":
            return f"raised {self.message}"
        if self.reason.kind == "signal" or self.reason.kind == "oom":
            name = _signal_name(self.reason.signal or 0)
            return f"was killed by {name}" + (", its memory cgroup was full" if self.kind == "oom" else "")
        code = self.reason.code if self.exitcode is None else self.exitcode
        if self.reason.kind == "exit_code" and code is not None:
            return f"exited with code {code}"
        if self.reason.kind == "host_lost" and self.reason.detail:
            return f"lost its host: {self.reason.detail}"
        return self.message or self.reason.detail or self.reason.kind


class SPMDFailure(SPMDError):
    """A run has failed: what the first rank did that failed, and what followed.

    `rank` and `reason` are those of the first failure, `exitcode` is that of its program (negative for a signal, None where it has none),
    `failures` has all ranks that failed by themselves, earliest first, and `record` is the path of `failure.json`.
    """

    __module__ = "monarch.spmd"
    _default_code = "spmd_run_failed"

    def __init__(
        self,
        failures: Sequence[RankFailure],
        *,
        attempt: int = 0,
        attempts: int = 1,
        consequences: int = 0,
        why: str = "",
        logs: str | None = None,
        record: str | None = None,
        stacks: str = "",
    ) -> None:
        self.failures = list(failures)
        self.attempt, self.attempts, self.consequences = attempt, attempts, consequences
        self.why, self.logs, self.record, self.stacks = why, logs, record, stacks
        first = self.failures[0]
        self.rank, self.reason, self.exitcode = first.rank, first.reason, first.exitcode
        super().__init__("\n".join(self._lines()))

    def _lines(self) -> list[str]:
        first = self.failures[0]
        lines = [first.headline()]
        lines.append(f"  attempt {self.attempt + 1} of {self.attempts}" + (f"; {self.why}" if self.why else ""))
        others = len(self.failures) - 1
        if others:
            lines.append(f"  {others} more {'rank' if others == 1 else 'ranks'} failed: {_ranks([one.rank for one in self.failures[1:]])}")
        if self.consequences:
            lines.append(f"  {self.consequences} {'rank was' if self.consequences == 1 else 'ranks were'} ended in consequence")
        if first.traceback:
            lines += ["  " + line for line in first.traceback.rstrip("\n").split("\n")]
        elif self.stacks:
            lines += ["  stacks:", *("    " + line for line in self.stacks.rstrip("\n").split("\n"))]
        if first.output:
            lines.append("  last output:")
            lines += ["    " + line for line in first.output]
        if self.logs:
            lines.append(f"  logs: {self.logs}")
        if self.record:
            lines.append(f"  record: {self.record}")
        return lines

    def __reduce__(self) -> tuple[object, ...]:
        return _failure, (
            self.failures,
            {name: getattr(self, name) for name in ("attempt", "attempts", "consequences", "why", "logs", "record", "stacks")},
        )


def _failure(failures: list[RankFailure], rest: dict[str, object]) -> SPMDFailure:
    return SPMDFailure(failures, **rest)  # pyright: ignore[reportArgumentType]


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_SHOWN_RANKS = 8


def _ranks(ranks: list[int]) -> str:
    text = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    return text + (", ..." if len(ranks) > _SHOWN_RANKS else "")
