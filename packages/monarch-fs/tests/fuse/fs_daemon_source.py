"""A source of trees for tests of the daemon: tables of given files, a store, clients that serve the chunks, and readers in processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fs_table_builder import build_table

from monarch.actor import Future
from monarch.extension import promise
from monarch.extension.directory_tree import blake3
from monarch.fs._daemon.daemon_client import DaemonClient, MountRequest
from monarch.fs._store.store import Store
from monarch.fs._tree.node import Kind, Node
from monarch.fs._tree.operations import MountOptions
from monarch.fs._tree.table import Table

LIMIT = 20.0


class Failed(NamedTuple):
    errno: int
    reason: str
    stale: bool = False


class Answer(NamedTuple):
    failed: dict[bytes, Any]
    passed: dict[bytes, bytes]


class Source:
    """Files by path, their chunks, and clients; `stop` ends the daemon and all that serves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, str(folder / "made" / "mount")
        self.store = Store(folder / "store", 1 << 30)
        self.contents: dict[bytes, bytes] = {}
        self.clients: list[DaemonClient] = []
        self.asked = threading.Semaphore(0)
        self.stored = True
        # Chunks that wait for `answer`.
        self.held: list[Callable[[], None]] | None = None

    def table(self, files: dict[bytes, bytes]) -> Table:
        nodes = {b"": Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 1)}
        for path, content in files.items():
            id = blake3(content)
            self.contents[id] = content
            nodes[path] = Node(Kind.FILE, 0o644, 0, 0, len(content), 1, chunks=id)
        return build_table(nodes)

    def fetch(self, target: str, tree: str, id: bytes) -> Future[Answer]:
        answer = promise(f"the chunk {id.hex()} of {tree} at {target}")

        def send() -> None:
            if id not in self.contents:
                answer.set_result(Answer({id: Failed(5, "the test has no such chunk")}, {}))
            elif self.stored:
                self.store.put(id, self.contents[id])
                answer.set_result(Answer({}, {}))
            else:
                answer.set_result(Answer({}, {id: self.contents[id]}))

        if self.held is None:
            send()
        else:
            self.held.append(send)
        self.asked.release()
        return answer.future

    def client(self, **settings: Any) -> DaemonClient:
        client = DaemonClient(self.fetch, store=self.store, **settings)
        self.clients.append(client)
        return client

    def request(self, table: Table, source: str = "source", target: str = "", **options: Any) -> MountRequest:
        return MountRequest(target or self.target, "tree", source, table.encode(), MountOptions(**options), None)

    def mounted(self) -> bool:
        return any(line.split()[1] == self.target for line in Path("/proc/mounts").read_text().splitlines())

    def log(self) -> str:
        return next((self.folder / "home" / "fs").glob("daemon-*/log")).read_text()

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        for pid in {client.daemon_pid for client in self.clients} - {0}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def output(code: str, *arguments: str) -> str:
    """What a Python program of another process prints; it fails after a while."""
    command = [sys.executable, "-I", "-S", "-c", "import os, sys\nt = sys.argv[1]\n" + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    return done.stdout.strip() or done.stderr.strip().rsplit("\n", 1)[-1]


def content(target: str, name: str) -> str:
    """The content of a file, or the error, of another process."""
    return output("print(open(t + '/' + sys.argv[2]).read())", target, name)
