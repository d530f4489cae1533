"""The logs of agents of hosts: their procs' events, joined clients, and the ends of jobs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from fresh_script import Script
from worker_processes import Workers

from monarch.actor import Actor, attach_to_workers, endpoint
from monarch.config import configured
from tools.frozen import freeze


class Logged:
    """Workers with their logs."""

    def __init__(self, folder: Path, count: int, **variables: str) -> None:
        self.folder = folder
        self.err = open(folder / "stderr", "wb")
        self.workers = Workers(count, "tls", stderr=self.err, env={**os.environ, "MONARCH_LOG_DIR": str(folder), **variables})

    def events(self, number: int) -> list[dict[str, Any]]:
        path = self.folder / self.workers.published[number]["uid"] / "runtime.jsonl"
        # The last line may be half written.
        return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")] if path.exists() else []

    def names(self, number: int, target: str = "host.") -> list[str]:
        return [event["event"] for event in self.events(number) if event["event"].startswith(target)]

    def until(self, what: str, look: Callable[[], object], holds: Callable[[Any], object] = bool) -> None:
        def alive() -> object:
            assert all(process.poll() is None for process in self.workers.processes), self.said()
            return look()

        eventually(what, alive, holds)

    def said(self) -> str:
        return (self.folder / "stderr").read_text()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Logged]]:
    made: list[Logged] = []

    def one(count: int, **variables: str) -> Logged:
        made.append(Logged(tmp_path, count, **variables))
        return made[-1]

    yield one
    for logged in made:
        logged.workers.__exit__()
        logged.err.close()


class Probe(Actor):
    @endpoint
    def directory(self) -> str:
        print("on the host", flush=True)
        return os.getcwd()


def test_procs_log_where_their_agent_does(start: Callable[..., Logged], tmp_path: Path):
    hosts = start(1)
    # The level is the client's, which it gives to its procs; the place of the runtime's log is the host's.
    with configured(file_log_level="info", enable_file_capture=True, log_dir=str(tmp_path / "client")):
        mesh = attach_to_workers(workers=hosts.workers.addresses, **hosts.workers.trust())
        procs = mesh.spawn_procs(name="logged")
        there = procs.spawn("probe", Probe).directory.call_one().get()
        found = hosts.events(0)
        assert [event["event"] for event in found] == ["proc.start", "actor.start"]
        assert found[0]["mesh"].startswith("logged-") and found[0]["pid"] != hosts.workers.processes[0].pid
        assert not os.path.exists(os.path.join(there, "runtime.jsonl"))
        # Their output goes to the place that the client has set.
        folder = tmp_path / "client"
        hosts.until(
            "the line", lambda: [p.read_text() for p in folder.glob("*/logged-*/0.stdout")], lambda texts: texts == ["on the host\n"]
        )
        assert not list(hosts.folder.glob("*/logged-*"))
        mesh.shutdown().get()
    assert hosts.said() == ""


def test_captured_files_are_beside_the_hosts_log(start: Callable[..., Logged]):
    hosts = start(1)
    with configured(enable_file_capture=True):
        mesh = attach_to_workers(workers=hosts.workers.addresses, **hosts.workers.trust())
        mesh.spawn_procs(name="logged").spawn("probe", Probe).directory.call_one().get()
        folder = hosts.folder / hosts.workers.published[0]["uid"]
        hosts.until("the line", lambda: [p.read_text() for p in folder.glob("logged-*/0.stdout")], lambda texts: texts == ["on the host\n"])
        mesh.shutdown().get()


def test_end_of_a_job_is_no_host_loss(start: Callable[..., Logged]):
    """Agents are notified one after the other, and one has closed its connections to the next before that is notified."""
    hosts = start(3, MONARCH_FILE_LOG="info")
    code = """
from monarch.actor import attach_to_workers
from monarch.config import configure
configure(host_loss_timeout="1m")
hosts = attach_to_workers(workers=os.environ["TEST_HOSTS"].split(), secret=os.environ["TEST_SECRET"])
procs = hosts.spawn_procs()
echoes = procs.spawn("echo", Echo)
class Caller(Actor):
    @endpoint
    def call(self, others):
        return list(others.echo.call(1).get().values())
callers = procs.spawn("caller", Caller)
# Everybody has something to do with everybody.
assert list(callers.call.call(echoes).get().values()) == [[1] * 3] * 3
procs.stop().get()
say("ready")
signal.sigwait({signal.SIGUSR1})
"""
    variables = {"TEST_HOSTS": " ".join(hosts.workers.addresses), "TEST_SECRET": str(hosts.workers.secret)}
    script = Script("signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n" + code, env=variables)
    script.until("ready")
    # This agent receives everything at once, when the others have ended.
    frozen = hosts.workers.processes[1]
    freeze(frozen.pid)
    script.send(signal.SIGUSR1)
    script.end().assert_clean()
    for number in (0, 2):
        hosts.until("the end of a host", lambda number=number: hosts.names(number), lambda names: "host.ended" in names)
    frozen.send_signal(signal.SIGCONT)
    hosts.until("the end of a host", lambda: hosts.names(1), lambda names: "host.ended" in names)
    for number in range(3):
        said = [event for event in hosts.events(number) if event["event"].startswith("host.")]
        assert {event["event"] for event in said} <= {"host.joined", "host.left", "host.ended"}, said
        (ended,) = [event for event in said if event["event"] == "host.ended"]
        assert ended["level"] == "info" and ended["detail"].endswith(" is over: its client has ended")
    assert hosts.said() == ""


def test_joined_and_refused_clients_are_logged(start: Callable[..., Logged], tmp_path: Path):
    """Both ends log the outcome."""
    hosts = start(1, MONARCH_FILE_LOG="info")
    (address,) = hosts.workers.addresses
    other = tmp_path / "other"
    other.write_text("0" * 64)
    other.chmod(0o600)
    code = """
from monarch.actor import AuthenticationError, attach_to_workers
address, right, wrong = os.environ["TEST_HOST"].split()
attach_to_workers(workers=[address], secret=right).spawn_procs().spawn("echo", Echo).echo.call_one(1).get()
try:
    attach_to_workers(workers=[address], secret=wrong).initialized.get()
except AuthenticationError:
    from pathlib import Path
    # Written by a thread that nothing waits for.
    (log,) = Path(os.environ["MONARCH_LOG_DIR"]).rglob("runtime.jsonl")
    eventually("both events are logged", log.read_text, lambda text: ".attached" in text and ".not_" in text)
    say("refused")
"""
    variables = {
        "TEST_HOST": f"{address} {hosts.workers.secret} {other}",
        "MONARCH_FILE_LOG": "info",
        "MONARCH_LOG_DIR": str(tmp_path / "client"),
    }
    script = Script(code, env=variables)
    client = script.process.pid
    script.until("refused")
    done = script.end()
    assert (done.code, done.left) == (0, []), done
    (path,) = (tmp_path / "client").rglob("runtime.jsonl")
    said = [json.loads(line) for line in path.read_text().splitlines()]
    (attached,) = [event for event in said if event["event"] == "host.attached"]
    assert attached["peer"] == address and attached["pid"] == client
    assert attached["detail"].endswith(f"at {address}, its agent is pid {hosts.workers.processes[0].pid}")
    (refused,) = [event for event in said if event["event"] == "host.not_attached"]
    assert refused["peer"] == address and refused["detail"] == f"{address} did not join: refused by the other end"
    hosts.until("three events", lambda: set(hosts.names(0)), lambda names: {"host.joined", "host.refused", "host.ended"} <= names)
    (joined,) = [event for event in hosts.events(0) if event["event"] == "host.joined"]
    assert f" pid {client} uid {os.geteuid()} has joined from " in joined["detail"]
