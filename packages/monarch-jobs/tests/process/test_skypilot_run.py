"""The scripts of a SkyPilot task's nodes: the run command, and what the client does there. An ssh that stays here reaches the node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually

from monarch.job.skypilot.arguments import checked
from monarch.job.skypilot.nodes import Nodes, Worker
from monarch.job.skypilot.task import SECRET_WAIT_S, task

BASE = Path(f"/tmp/monarch-skypilot-{os.getuid()}")
SECRET = os.urandom(32)
# A worker that prints its arguments, and ends with the code in the file `end` once there is one.
WORKER = """
import json, os, pathlib, sys, time
words = sys.argv[sys.argv.index("worker") + 1 :]
options = dict(zip(words[::2], words[1::2]))
secret = pathlib.Path(options["--secret-file"]).read_bytes()
here = pathlib.Path({folder!r})
published = pathlib.Path(options["--publish"])
part = published.with_suffix(".part")
part.write_text(json.dumps({{"address": options["--listen"], "uid": secret.hex()}}))
part.rename(published)
end = here / "end"
while not end.exists():
    time.sleep(0.02)  # sleeps: until the test writes the file
code = int(end.read_text())
end.unlink()
sys.exit(code)
"""


class Node:
    """A run command as rank 1 of 2, which the test is the client of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        python = folder / "python"
        (folder / "worker.py").write_text(WORKER.format(folder=str(folder)))
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/worker.py "$@"\n')
        python.chmod(0o755)
        self.cluster = f"c-{uuid.uuid4().hex}"
        arguments = checked({"meshes": {"a": 2}, "python_exe": str(python), "monarch_port": 4711, "idle_minutes_to_autostop": 2})
        self.script = task(arguments)["run"]
        self.nodes = Nodes("the job", ["node"], str(folder / "config"), "", "test", f"_{self.cluster}_7")
        self.directory = BASE / f"sky-2026_{self.cluster}_7" / "1"
        self._env = {"SKYPILOT_TASK_ID": self.directory.parent.name, "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\nfd00::2\n"}

    def start(self, script: str = "") -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", script or self.script],
            env={**os.environ, **self._env},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, state: str) -> Worker:
        return eventually(f"rank 1 is {state}", self.nodes.look, lambda found: 1 in found and found[1].state == state)[1]

    def end_worker(self, code: int) -> None:
        part = self.folder / "end.part"
        part.write_text(str(code))
        part.rename(self.folder / "end")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    programs = tmp_path / "programs"
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text('#!/bin/sh\nfor word; do [ "$word" = -O ] && exit 0; done\nexec sh -c "$word"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    found = Node(tmp_path)
    yield found
    assert not found.directory.exists(), "the run command leaves nothing behind"


def test_worker_starts_ends_and_starts_again(node: Node) -> None:
    with node.start() as run:
        wanting = node.until("wanting")
        assert wanting.node == "node" and oct(BASE.stat().st_mode)[-3:] == "700"
        assert node.nodes.give({1: wanting}, SECRET) == [1]
        joined = node.until("joined")
        assert joined.address == f"worker<{SECRET.hex()}>@tcp://[fd00::2]:4711"
        assert not (node.directory / "secret").exists(), "it is removed once the worker listens"
        node.end_worker(9)
        ended = node.until("exit")
        assert ended.detail == "with exit code 9"
        assert node.nodes.give({1: ended}, SECRET) == [1]
        node.until("joined")
        node.end_worker(0)  # as a client shuts it down
        assert run.wait(20) == 0


def test_task_without_its_client_ends(node: Node) -> None:
    with node.start(node.script.replace(f"{SECRET_WAIT_S} * 5", "1")) as run:
        assert run.wait(20) == 75
        assert run.stderr is not None and "its client is gone" in run.stderr.read()


def test_cancelled_task_ends(node: Node) -> None:
    with node.start() as run:
        assert node.nodes.give({1: node.until("wanting")}, SECRET) == [1]
        node.until("joined")
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == 143


def test_killed_task_leaves_no_valid_state(node: Node) -> None:
    """Its folder is still there: its content is not believed."""
    with node.start() as run:
        assert node.nodes.give({1: node.until("wanting")}, SECRET) == [1]
        node.until("joined")
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(20)
    assert node.until("exit").detail == "with its task"
    with node.start() as again:
        node.until("wanting")
        again.send_signal(signal.SIGTERM)
        again.wait(20)


def test_nodes_of_other_tasks_are_ignored(node: Node) -> None:
    with node.start() as run:
        node.until("wanting")
        other = Nodes("the job", ["node"], str(node.folder / "config"), "", "test", f"_{node.cluster}_8")
        assert other.look() == {}
        run.send_signal(signal.SIGTERM)
        run.wait(20)


def test_unreachable_node_is_reported(node: Node, tmp_path: Path) -> None:
    (tmp_path / "programs" / "ssh").write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    assert node.nodes.look() == {} and node.nodes.unreachable == {"node": "no route"}
    assert node.nodes.give({1: Worker("wanting", "node")}, SECRET) == []
