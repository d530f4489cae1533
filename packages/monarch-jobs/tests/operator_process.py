"""The operator as a process, and what it has logged."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from eventually import eventually


class OperatorProcess:
    """Runs while the `with` block does; `options` are those of the command, `kubeconfig` its credentials."""

    def __init__(self, log: Path, kubeconfig: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self._log = log
        command = [sys.executable, "-m", "monarch.job.kubernetes.operator", "--health-probe-bind-address", "127.0.0.1:0", *options]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, "KUBECONFIG": str(kubeconfig), **(env or {})}
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            error.add_note(f"log of the operator:\n{self.log()}")
        self.kill()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def await_log(self, text: str) -> None:
        eventually(f"'{text}' in the log of the operator", lambda: text in self.log() or self._process.poll() is not None)
        assert text in self.log()

    def get(self, path: str, what: str = "health") -> tuple[int, str]:
        """Code and text of an endpoint, `health` or `metrics`."""
        port = eventually("the port of the operator", lambda: re.search(rf" {what} at port (\d+)\n", self.log()))[1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def await_ready(self) -> Self:
        self.await_log(" serving the meshes of ")
        eventually("the operator is ready", lambda: self.get("/readyz")[0] == 200)
        return self

    def end(self, number: int = signal.SIGTERM, send: Callable[[int, int], None] = os.kill) -> int:
        """Its exit code after the signal."""
        send(self._process.pid, number)
        return self._process.wait(30)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
