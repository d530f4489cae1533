"""A mount of the tree in memory for a test: the connection is of this process, the server and the readers are others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

from monarch.fs._kernel import connection
from monarch.fs._tree.operations import MountOptions
from monarch.fs.errors import FsError

SERVER = Path(__file__).with_name("fs_memory_tree.py")
# Seconds after which a process that did not end fails its test.
LIMIT = 15.0


class Server:
    """A process that serves a descriptor; `lines` has what it prints."""

    def __init__(self, fd: int, target: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, str(SERVER), str(fd), str(target), *flags]
        self.process = subprocess.Popen(
            command, pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        )
        self.lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.line() == "serves"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put("")

    def line(self) -> str:
        return self.lines.get(timeout=LIMIT)

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> Any:
        self.send(command)
        return json.loads(self.line())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue


class Mounted:
    def __init__(self, target: Path, live: bool) -> None:
        self.target = target
        self.connection = connection.open_connection(str(target), MountOptions(name="a tree", immutable=not live))
        self.servers: list[Server] = []

    def serve(self, *flags: str, environment: dict[str, str] | None = None) -> Server:
        self.servers.append(Server(self.connection.fd, self.target, *flags, environment=environment))
        return self.servers[-1]

    def close(self) -> None:
        # Without the control file system only root can abort; the closed descriptors do it then.
        with suppress(FsError):
            connection.abort(self.connection.device)
        os.close(self.connection.fd)
        for server in self.servers:
            server.close()
        connection.detach(str(self.target), lazy=True)


@contextmanager
def mounted(target: Path, *flags: str, environment: dict[str, str] | None = None) -> Iterator[tuple[Mounted, Server]]:
    target.mkdir(exist_ok=True)
    mount = Mounted(target, "live" in flags)
    try:
        yield mount, mount.serve(*flags, environment=environment)
    finally:
        mount.close()


def reader(code: str, target: Path, *words: str) -> subprocess.Popen[str]:
    """A Python process; `t` is the mount point, `os` and `sys` are imported. Its standard input stays open."""
    command = [sys.executable, "-S", "-c", f"import os, sys\nt = sys.argv[1]\n{code}", str(target), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output(code: str, target: Path, *words: str) -> str:
    process = reader(code, target, *words)
    try:
        text = process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, text
    return text.strip()
