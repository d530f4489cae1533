"""`kubectl port-forward`, for servers that take no websocket: kubectl has the older protocol (SPDY) as well.

A shell holds kubectl and reads a pipe of this process: when this process ends, however that happens, kubectl ends too.

Ours: the official client has no SPDY.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from monarch.job.errors import BackendMissingError, JobError
from monarch.job.kubernetes.access.child_process import end_group
from monarch.job.kubernetes.access.exec_plugin import masked

_SHELL = 'kubectl "$@" </dev/null & child=$!; exec >/dev/null 2>&1; read line; kill $child; wait $child'
_READY = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")
_START_SECONDS = 30.0
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class KubectlForward:
    """As `Forward`; `options` are those of kubectl that name file, context and namespace."""

    def __init__(
        self, options: Sequence[str], pod: str, port: int, *, local: int = 0, report: Callable[[str], object] | None = None
    ) -> None:
        self._options, self.pod, self.port, self._local = tuple(options), pod, port, local
        self._report: Callable[[str], object] = report or (lambda line: None)
        self._process: subprocess.Popen[str] | None = None
        self._ended = threading.Event()
        self._ready = threading.Event()
        # The number of the local port is given, but kubectl may not listen there yet.
        self._has_listened = False
        self._words: list[str] = []
        self._restarts = -1

    def start(self) -> int:
        """The local port. `BackendMissingError` without kubectl, `JobError` with its words where it fails."""
        if shutil.which("kubectl") is None:
            hint = "install kubectl, or reach the API server by a route that takes websockets"
            raise BackendMissingError("there is no command 'kubectl', and the API server takes no websocket", hint=hint)
        threading.Thread(target=self._run, name=f"monarch-kubectl {self.pod}", daemon=True).start()
        if not self._ready.wait(_START_SECONDS) or not self._has_listened:
            self.close()
            raise JobError(f"kubectl port-forward to {self.pod} failed", cause=masked("\n".join(self._words)))
        return self._local

    def close(self) -> None:
        """Ends kubectl."""
        self._ended.set()
        process = self._process
        if process is not None:
            end_group(process)

    def status(self) -> dict[str, Any]:
        """For people."""
        return {"pod": self.pod, "port": self.port, "local": self._local, "by": "kubectl", "restarts": max(self._restarts, 0)}

    @property
    def is_busy(self) -> bool:
        """Connections of kubectl are not seen: it counts as in use."""
        return not self._ended.is_set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._restarts += 1
            ports = f"{self._local or ''}:{self.port}"
            argv = [*self._options, "port-forward", f"pod/{self.pod}", ports, "--address", "127.0.0.1"]
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL, "sh", *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._words = []
            if self._ended.is_set():
                end_group(self._process)
            assert self._process.stdout is not None
            for line in self._process.stdout:
                found = _READY.search(line)
                if found:
                    self._local, self._has_listened = int(found[1]), True
                    self._ready.set()
                elif not line.startswith("Handling connection"):
                    self._words.append(line.rstrip())
                    self._report(f"kubectl: {masked(line)}")
            end_group(self._process)
            if not self._has_listened:
                self._ready.set()  # failed at once: `start` shows its output
                return
            self._ended.wait(_PAUSES_S[min(self._restarts, len(_PAUSES_S) - 1)])
