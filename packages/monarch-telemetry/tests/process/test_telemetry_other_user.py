"""Another user of the machine of a real job: no socket, ring or token can be reached, and the API wants a token."""

from __future__ import annotations

import contextlib
import glob
import http.client
import json
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
NOBODY = 65534
PROGRAM = """
import json, os, sys
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host

class Worker(Actor):
    @endpoint
    def step(self) -> None:
        pass

worker = this_host().spawn_procs(name="workers").spawn("worker", Worker)
running = telemetry.start(serve=True, admin_addr="127.0.0.1:0")
worker.step.call_one().get()
answers = os.dup(1)
os.dup2(2, 1)
os.write(answers, json.dumps({"url": running.url, "collector": running.asking.hosts[0].pid}).encode() + b"\\n")
sys.stdin.read()
os._exit(0)
"""


def tree(pid: int) -> set[int]:
    """The process and its descendants."""
    found = {pid}
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        # A thread may end in the meantime.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(path).read_text().split():
                found |= tree(int(child))
    return found


def descriptors(pids: set[int]) -> list[tuple[str, str]]:
    """The files that these processes have open: the path of the descriptor, and what it is."""
    found: list[tuple[str, str]] = []
    for path in (path for pid in pids for path in glob.glob(f"/proc/{pid}/fd/*")):
        with contextlib.suppress(FileNotFoundError):  # it was closed in the meantime
            found.append((path, os.readlink(path)))
    return found


def sockets(pids: set[int]) -> list[str]:
    """The addresses of the Unix sockets that these processes listen at; abstract ones begin with @."""
    own = {name.removeprefix("socket:[").removesuffix("]") for _, name in descriptors(pids)}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [line[7] for line in lines if len(line) > 7 and line[3] == "00010000" and line[6] in own]


def by_another_user(action: Callable[[], Any]) -> Any:
    """What the action gives in a process of another user."""
    "localhost".encode("idna")  # loads a module that the other user may not read
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of this process do not exist in the fork, which uses none
        child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, json.dumps(action()).encode())
        except BaseException as error:
            os.write(writer, json.dumps(f"failed: {error!r}").encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        found = json.loads(file.read())
    os.waitpid(child, 0)
    return found


def opened(path: str) -> str:
    try:
        with open(path, "rb"):
            return "opened"
    except OSError as error:
        return type(error).__name__


def connected(name: str) -> str:
    """What a connection gives: the name of the error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(20)
        try:
            one.connect("\0" + name[1:] if name.startswith("@") else name)
            return "connected"
        except OSError as error:
            return type(error).__name__


def asked(url: str) -> list[int]:
    host, port = url.rpartition("/")[2].split(":")
    found: list[int] = []
    for path in ("/v1/root", "/api/logs", "/metrics"):
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request("GET", path)
        found.append(connection.getresponse().status)
        connection.close()
    return found


def test_another_user_reaches_nothing_of_a_job(tmp_path: Path) -> None:
    # The folder itself is open: only the files of telemetry restrict access.
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    errors = tmp_path / "errors"
    environment = {**os.environ, "MONARCH_HOME": str(home)}
    with (
        errors.open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as job,
    ):
        assert job.stdout is not None and job.stdin is not None
        try:
            line = job.stdout.readline()
            assert line, errors.read_text()
            found = json.loads(line)
            pids = tree(job.pid) | {found["collector"]}
            names = sockets(pids)
            rings = [path for path, name in descriptors(pids) if name.startswith("/memfd:monarch-events")]
            (tokens,) = glob.glob(str(home / "jobs" / "*" / "telemetry.json"))
            assert names and rings
            assert opened(tokens) == "opened" and opened(rings[0]) == "opened"
            looked = by_another_user(
                lambda: [
                    [connected(name) for name in names],
                    [opened(ring) for ring in rings],
                    opened(tokens),
                    opened(f"/proc/{found['collector']}/environ"),
                    asked(found["url"]),
                ]
            )
            refused = "PermissionError"
            assert looked == [[refused] * len(names), [refused] * len(rings), refused, refused, [401] * 3]
            # The same from this user, who has access.
            assert {connected(name) for name in names} == {"connected"}
        finally:
            job.stdin.close()
            job.wait()
