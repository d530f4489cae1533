"""`monarch worker` processes on this machine, as hosts for tests."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from eventually import eventually

COMMAND = "from monarch._core.cli import main; main()"


class Workers:
    """Worker processes of a `kind`: `unix`, `abstract` (a unix address without a file), `tls` (with a secret), or `insecure`; ended when
    the block is left.
    """

    def __init__(self, count: int, kind: str = "unix", **options: Any) -> None:
        self.kind = kind
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="monarch-workers-"))
        self.secret = self.folder / "secret"
        with open(os.open(self.secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
            f.write(secrets.token_hex(32))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.published: list[dict[str, Any]] = []
        for _ in range(count):
            self.start()

    def start(self, *more: str) -> int:
        """Starts another worker and waits until it listens; returns its number."""
        number = len(self.processes)
        unix = {"unix": f"ipc://{self.folder}/{number}", "abstract": f"ipc://@{self.folder.name}-{number}"}
        listen = unix.get(self.kind, "tcp://127.0.0.1:0")
        how = {"tls": ["--secret-file", str(self.secret)], "insecure": ["--insecure"]}.get(self.kind, [])
        publish = self.folder / f"{number}.json"
        command = [sys.executable, "-W", "ignore", "-c", COMMAND, "worker", "--listen", listen, "--publish", str(publish), *how, *more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, **self.options)
        self.processes.append(process)
        assert process.stdout is not None
        # The worker prints its address, and then publishes it.
        assert process.stdout.readline().startswith(b"listening at"), process.wait()
        eventually("its address is published", lambda: publish.exists() or process.poll() is not None)
        assert publish.exists(), process.returncode
        self.published.append(json.loads(publish.read_text()))
        return number

    @property
    def addresses(self) -> list[str]:
        return [said["address"] for said in self.published]

    def trust(self) -> dict[str, Any]:
        """The credentials with which `attach_to_workers` joins them."""
        return {"tls": {"secret": str(self.secret)}, "insecure": {"insecure": True}}.get(self.kind, {})

    def attach(self) -> Any:
        from monarch.actor import attach_to_workers

        return attach_to_workers(workers=self.addresses, **self.trust())

    def procs_of(self, number: int) -> list[int]:
        """Pids of the procs of a worker, by its zygote."""
        found: list[int] = []
        for zygote in children(self.processes[number].pid):
            found += children(zygote)
        return found

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        import shutil

        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + _of_threads(pid)
    except OSError:
        return []


def _of_threads(pid: int) -> list[int]:
    """The children of the other threads: the thread that reads the sockets starts the zygote."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        if task.name != str(pid):
            try:
                found += [int(word) for word in (task / "children").read_text().split()]
            except OSError:
                continue
    return found
