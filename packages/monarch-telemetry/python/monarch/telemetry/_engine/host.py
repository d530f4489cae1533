"""The collector of one host, as the asking process has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from monarch.actor import Future, HostMesh, MonarchError
from monarch.extension import ProcEnd, ProcId, is_ending, service, watch, when_done
from monarch.telemetry._collector.options import Options
from monarch.telemetry._sql.context import version
from monarch.telemetry.errors import TelemetryError

SERVICE = "telemetry"
# Seconds for which all questions together wait for an answer of a collector that was silent: later ones only check whether it has arrived.
_SILENCE_TIMEOUT = 5.0
# The most seconds of one attempt to find a collector again, since a concurrent question waits for it, and the pauses between two attempts.
_TRY, _FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 0.1, 30.0


class Host:
    """The collector of one host. `quiet` are the processes of all collectors, which this one gets with the options.

    `lost` is called with each collector that has ended, once, on any thread. The next one gets its options as soon as the agent has started
    it, whether a question comes or not: until then it collects nothing.
    """

    def __init__(
        self,
        hosts: HostMesh,
        name: str,
        arguments: dict[str, Any],
        options: Options,
        quiet: set[int],
        lost: Callable[[Host, str], None] | None = None,
    ) -> None:
        self.name = name
        self._lost = lost
        self._rests = threading.Event()
        self._hosts, self._arguments = hosts, arguments
        self.options, self._quiet = options, quiet
        # Older events are not requested, even if a collector is started again.
        self._began = time.monotonic()
        self._handle: Any = None
        self._lock = threading.Lock()
        # The pending answer to a short question that was sent after a timeout; None without a timeout.
        self._word: Any = None
        self._silence_left = 0.0
        # The collector as a process of the job and of its host, and that host; 0 until it has started.
        self.proc = self.pid = self.host = 0
        # The number of that host in the job: events of its end have this number.
        self.name_in_job = 0
        # Its own name, as rows have it; None until its collector has started.
        self.hostname: str | None = None
        # The options of the running collector, which may be more than the requested ones.
        self.running = options

    def start(self, timeout: float | None = None) -> Any:
        """The handle of the collector, started and given its options if need be. `ServiceError` where it does not start."""
        with self._lock:
            if self._handle is None:
                handle = service(self._hosts, SERVICE, self._arguments, timeout=timeout)
                theirs, self.proc, self.pid, self.host, self.name_in_job, hostname = handle.about.call_one().get(timeout=timeout)
                if theirs != version():
                    raise TelemetryError(
                        f"{self.name} has datafusion {theirs}, this process {version()}: plans are exchanged between equal versions only"
                    )
                self.hostname = hostname
                self._quiet.add(self.proc)
                age = time.monotonic() - self._began
                configured = handle.configure.call_one(tuple(self.options), list(self._quiet), age)
                self.running = Options(*configured.get(timeout=timeout))
                self._handle = handle
                when_done(watch(ProcId(self.proc)), lambda end: self._has_ended(handle, end))
            return self._handle

    def rest(self) -> None:
        """A collector that ends from now on is not looked for."""
        self._rests.set()

    def _has_ended(self, handle: Any, end: Future[ProcEnd]) -> None:
        """On the extension thread: the process of the collector has ended."""
        if self._rests.is_set() or is_ending():
            return
        try:
            why = end.get().reason
        except MonarchError:  # the end is unknown: a question finds it
            return
        self.ended(handle, f"its process has ended: {why.kind}{'' if why.signal is None else f' {why.signal}'}")
        threading.Thread(target=self._find_next, args=(handle,), name="monarch-telemetry-restart", daemon=True).start()

    def _find_next(self, ended: Any) -> None:
        pause = _FIRST_PAUSE
        while not self._rests.wait(pause) and not is_ending():
            if self._handle is not None and self._handle is not ended:  # a question has replaced it before
                return
            # The host may be lost, have no memory, or return anything: the next question gets the reason.
            with suppress(Exception):
                self.start(_TRY)
                return
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def was_silent(self, handle: Any) -> None:
        """A question was not answered in time. A short one is asked once, whose answer means that the collector is there again."""
        with self._lock:
            if self._word is None:
                self._silence_left = _SILENCE_TIMEOUT
                with suppress(Exception):
                    self._word = handle.about.call_one()

    def is_silent(self, timeout: float) -> bool:
        """No word since a question that was not answered in time; awaited for `timeout` seconds at most."""
        word = self._word
        if word is None:
            return False
        began = time.monotonic()
        try:
            word.get(timeout=max(0.0, min(timeout, self._silence_left)))
        except TimeoutError:
            self._silence_left -= time.monotonic() - began
            return True
        except Exception:
            # The collector has ended, which the next question finds too.
            pass
        self._word = None
        return False

    def ended(self, handle: Any, of: str) -> None:
        """The collector has ended; the next `start` gives the one that the agent has started since."""
        with self._lock:
            is_news = self._handle is handle
            if is_news:
                self._handle = None
        if is_news and self._lost is not None:
            self._lost(self, of)


def reason(error: BaseException) -> str:
    """Why something was not answered, in one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
