"""The collector of one host, as the asking process has it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from monarch.actor import HostMesh
from monarch.extension import service
from monarch.telemetry._collector.options import Options
from monarch.telemetry._sql.context import version
from monarch.telemetry.errors import TelemetryError

SERVICE = "telemetry"
# Seconds for which all questions together wait for word of a collector that was silent: later ones look only whether it has come.
_PATIENCE = 5.0


class Host:
    """The collector of one host. `quiet` are the processes of all collectors, which this one gets with the options."""

    def __init__(self, hosts: HostMesh, name: str, arguments: dict[str, Any], options: Options, quiet: set[int]) -> None:
        self.name = name
        self._hosts, self._arguments = hosts, arguments
        self._options, self._quiet = options, quiet
        # Events that are older are not asked for, also where a collector is started again.
        self._began = time.monotonic()
        self._handle: Any = None
        self._lock = threading.Lock()
        # The answer to a short question that was asked when one was not answered in time; None while all are.
        self._word: Any = None
        self._patience = 0.0
        # The collector as a process of the job and of its host, and that host; 0 until it has started.
        self.proc = self.pid = self.host = 0
        # What the job calls that host: news of its end have this name.
        self.name_in_job = 0
        # What it runs with, which may be more than what was asked for.
        self.running = options

    def start(self, timeout: float | None = None) -> Any:
        """The handle of the collector, started and given its options if need be. `ServiceError` where it does not start."""
        with self._lock:
            if self._handle is None:
                handle = service(self._hosts, SERVICE, self._arguments, timeout=timeout)
                theirs, self.proc, self.pid, self.host, self.name_in_job = handle.about.call_one().get(timeout=timeout)
                if theirs != version():
                    raise TelemetryError(
                        f"{self.name} has datafusion {theirs}, this process {version()}: plans are exchanged between equal versions only"
                    )
                self._quiet.add(self.proc)
                age = time.monotonic() - self._began
                configured = handle.configure.call_one(tuple(self._options), list(self._quiet), age)
                self.running = Options(*configured.get(timeout=timeout))
                self._handle = handle
            return self._handle

    def was_silent(self, handle: Any) -> None:
        """A question was not answered in time. A short one is asked once, whose answer means that the collector is there again."""
        with self._lock:
            if self._word is None:
                self._patience = _PATIENCE
                with suppress(Exception):
                    self._word = handle.about.call_one()

    def is_silent(self, timeout: float) -> bool:
        """No word since a question that was not answered in time; awaited for `timeout` seconds at most."""
        word = self._word
        if word is None:
            return False
        began = time.monotonic()
        try:
            word.get(timeout=max(0.0, min(timeout, self._patience)))
        except TimeoutError:
            self._patience -= time.monotonic() - began
            return True
        except Exception:
            # It has ended, which the next question finds too.
            pass
        self._word = None
        return False

    def ended(self, handle: Any) -> bool:
        """The collector has ended; the next `start` gives the one that the agent has started since. False if that is known already."""
        with self._lock:
            is_news = self._handle is handle
            if is_news:
                self._handle = None
            return is_news


def reason(error: BaseException) -> str:
    """Why something was not answered, in one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
