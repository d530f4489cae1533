"""`profiler.profile`: a time window of a job as a Perfetto trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from monarch.telemetry._export import window
from monarch.telemetry._export.whole_tables import now_us
from monarch.telemetry._http.remote_engine import Found, RemoteEngine
from monarch.telemetry.errors import TelemetryError

if TYPE_CHECKING:
    from typing import Self

SUFFIX = ".pftrace"
# The most seconds in which the job has to answer at the end of a block.
_CLOCK_SECONDS = 2.0


class profile:
    """The block of a `with` statement is a time window of a job; `export_perfetto_trace` writes what the job did in it.

    `telemetry_url` is the URL of the HTTP API of the job, whose token is found as by `QueryEngineClient`. `on_trace_ready` is called with
    the profile when the block has ended. `notes` are sentences about what the last trace lacks, such as hosts that did not answer.

    Entering raises `TelemetryError` where the API cannot be reached, or the extra `perfetto` is missing. `ValueError` for a URL that is
    none.

    ```python no-run
    with profile(state.telemetry_url) as window:
        trainers.step.call().get()
    window.export_perfetto_trace("step.pftrace")
    ```
    """

    __module__ = "monarch.distributed_telemetry.profiler"

    def __init__(self, telemetry_url: str, *, on_trace_ready: Callable[[profile], object] | None = None) -> None:
        self._engine = RemoteEngine(Found(telemetry_url, None))
        self._on_trace_ready = on_trace_ready
        # The window in the clock of the job, which may differ from that of this process.
        self._since_us: int | None = None
        self._until_us: int | None = None
        self._entered = 0.0
        self.notes: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        window.check()
        # In the clock of this process the window is longer by the time of the question, so that it includes the complete block.
        self._entered = time.monotonic()
        self._since_us, self._until_us = now_us(self._engine), None
        return self

    def __exit__(self, *_: object) -> None:
        self._until_us = self._now_us()
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def _now_us(self) -> int:
        """The job's clock; by this process where the job does not answer: an error of the block is more than that one."""
        assert self._since_us is not None
        elapsed = round((time.monotonic() - self._entered) * 1e6)
        try:
            return max(now_us(self._engine, timeout=_CLOCK_SECONDS), self._since_us)
        except TelemetryError:
            return self._since_us + elapsed

    def export_perfetto_trace(self, output: os.PathLike[str] | str | None = None) -> Path:
        """Writes the trace of the window, which ends now if the block has not ended, and returns its path.

        `output` is by default a file of the current folder, named by the start of the window; a file that is there is replaced. The file is
        readable for its owner only. `QueryError` and its kinds where the job does not answer; `TelemetryError` where the file cannot be
        written, and before the block.
        """
        since = self._since_us
        if since is None:
            raise TelemetryError("the profile has not begun", hint="enter it by a `with` statement")
        until = self._now_us() if self._until_us is None else self._until_us
        path = default_path(since) if output is None else Path(output)
        self.notes = tuple(window.write_trace(self._engine, path, since, until))
        return path


def default_path(since_us: int) -> Path:
    """The name of a trace by the start of its window."""
    begun = datetime.fromtimestamp(since_us / 1e6, UTC)
    return Path(f"monarch-{begun:%Y%m%d-%H%M%S}-{since_us % 1_000_000 // 1000:03}{SUFFIX}")
