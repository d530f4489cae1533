"""Floods of each listener of each kind of process, from other users of the machine and from the same user."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fresh_script import Script
from hostile_peers import ask
from listener_flood import KINDS, STRANGER, ListenerFlood, is_bulk, listening_sockets
from test_hostile_peers import Agent
from worker_processes import COMMAND, Workers

from monarch._core._native import control_directory
from monarch._core.observe import inspection

# Seconds: longer than a host may be silent, as `host_loss_timeout` is 3 s.
FLOOD_S = 4.5
# The number of silent connections of the same user that block no listener.
SILENT = 64
# Two processes that connect and close, and one of each other kind.
FLOOD = (*KINDS, "churn")
REFUSED = 2000
# The most log lines about refused connections, for this number of them.
FEW_LINES = 100

JOB = """
import json, os, pickle, signal
import monarch.actor
from monarch.actor import attach_to_workers, debug_controller

def fault(failure):
    say(f"fault {failure.report()}")
    os._exit(1)

monarch.actor.unhandled_fault_hook = fault
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
workers, trust = json.loads(os.environ["TEST_HOSTS"])
hosts = attach_to_workers(workers=workers, **trust)
here = this_host().spawn_procs({"procs": 2}).spawn("here", Echo)
there = hosts.spawn_procs().spawn("there", Echo)
debug_controller().serve.call_one().get()
say(f"handle {pickle.dumps(here.slice(procs=0)).hex()}")
n = 0
while signal.SIGUSR1 not in signal.sigpending():
    n += 1
    assert list(there.echo.call(n).get().values()) == [n] * len(workers)
    assert list(here.echo.call(n).get().values()) == [n] * 2
    if n % 50 == 0:
        say(f"round {n}")
hosts.shutdown().get()
say("over")
"""


class Job:
    """A script that calls actors of its own host and of two others until it is ended, and serves the debugger."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        env = {"TEST_HOSTS": json.dumps([workers.addresses, workers.trust()]), "MONARCH_DEBUG_SERVER_PORT": "0"}
        self.script = Script(JOB, env=env, warnings=("-W", "error", "-W", "ignore::UserWarning"))
        self.handle = self.script.until("handle").split()[1]
        self.goes_on()

    def goes_on(self, seconds: float = 0.0) -> None:
        """Calls are answered, for `seconds`."""
        end = time.monotonic() + seconds
        self.script.until("round")
        while time.monotonic() < end:
            self.script.until("round")

    def is_listed(self) -> None:
        """`monarch ps` shows the job with its actors, on all hosts, and agents answer their own queries."""
        pid = str(self.script.process.pid)
        done = subprocess.run([sys.executable, "-c", COMMAND, "ps", pid], capture_output=True, text=True)
        assert done.returncode == 0 and pid in done.stdout, done
        assert done.stdout.count(".Echo here") >= 2 and done.stdout.count(".Echo there") >= 2, done.stdout
        agents = {one.answer["agent_pid"] for one in inspection.look(inspection.STATE) if one.answer is not None}
        assert agents >= {process.pid for process in self.workers.processes}

    def lets_in(self) -> None:
        """Another client of the same user calls an actor by its handle."""
        code = f"import pickle; print(pickle.loads(bytes.fromhex({self.handle!r})).echo.call_one(5).get(timeout=20))"
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")

    def serves(self) -> None:
        self.goes_on()
        self.is_listed()
        self.lets_in()

    def end(self) -> None:
        self.script.send(signal.SIGUSR1)
        self.script.until("over")
        self.script.end().assert_clean()


@contextlib.contextmanager
def job(kind: str) -> Iterator[Job]:
    with Workers(2, kind) as workers:
        made = Job(workers)
        try:
            yield made
            made.end()
        finally:
            made.script.close()


class Jobs:
    """A job of each kind, which serves one test after another. The job of a failed test serves no other."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[contextlib.ExitStack, Job]] = {}

    @contextlib.contextmanager
    def use(self, kind: str = "tls") -> Iterator[Job]:
        if kind not in self._running:
            stack = contextlib.ExitStack()
            self._running[kind] = stack, stack.enter_context(job(kind))
        stack, made = self._running[kind]
        try:
            yield made
        except BaseException as e:
            del self._running[kind]
            stack.__exit__(type(e), e, e.__traceback__)
            raise

    def end(self) -> None:
        with contextlib.ExitStack() as all_of_them:
            for stack, _ in self._running.values():
                all_of_them.enter_context(stack)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    made.end()


def of_client(made: Job) -> list[str]:
    return control_sockets(made.script.process.pid)


def of_worker(made: Job) -> list[str]:
    return control_sockets(made.workers.processes[0].pid)


def of_worker_address(made: Job) -> list[str]:
    return [a for a in listening_sockets(made.workers.processes[0].pid) if made.workers.folder.name in a]


def of_worker_port(made: Job) -> list[str]:
    return [a for a in listening_sockets(made.workers.processes[0].pid) if a.startswith("tcp:")]


def of_debugger(made: Job) -> list[str]:
    return [a for a in listening_sockets(made.script.process.pid) if a.startswith("tcp:")]


def control_sockets(pid: int) -> list[str]:
    return [a for a in listening_sockets(pid) if a.startswith("unix:") and not is_bulk(a) and "monarch-workers-" not in a]


LISTENERS = [
    pytest.param(of_client, "tls", id="control socket of the client"),
    pytest.param(of_worker, "tls", id="control socket of an agent"),
    pytest.param(of_worker_address, "abstract", id="unix address of a worker"),
    pytest.param(of_worker_port, "tls", id="port of a worker"),
    pytest.param(of_worker_port, "insecure", id="port of a worker without encryption"),
    pytest.param(of_debugger, "tls", id="port of the debugger"),
]


@pytest.fixture(params=["another user", "the same user"])
def uid(request: pytest.FixtureRequest) -> int | None:
    if request.param == "the same user":
        return None
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    return STRANGER


def told(events: list[dict[str, Any]]) -> int:
    """The number of refused connections in the events, each of which may stand for several."""
    return sum(event.get("count", 1) for event in events)


@pytest.mark.parametrize(("listeners", "kind"), LISTENERS)
def test_flood_of_a_listener_harms_no_job(jobs: Jobs, listeners: Callable[[Job], list[str]], kind: str, uid: int | None):
    with jobs.use(kind) as made, contextlib.ExitStack() as stack:
        addresses = listeners(made)
        assert addresses
        floods = [stack.enter_context(ListenerFlood(k, address, uid)) for address in addresses for k in FLOOD]
        made.goes_on(FLOOD_S)
        made.serves()
        stack.close()
        # Every flood has found an open listener, or a directory that is closed to its user.
        assert all(flood.shut_out or any(flood.counts.values()) for flood in floods)
        made.serves()


@pytest.mark.parametrize("count", [SILENT, 500])
@pytest.mark.parametrize("listeners", [of_client, of_worker])
def test_silent_connections_shut_out_no_process(jobs: Jobs, listeners: Callable[[Job], list[str]], count: int):
    with jobs.use() as made, contextlib.ExitStack() as stack:
        (address,) = listeners(made)
        flood = stack.enter_context(ListenerFlood("silent", address, count=count))
        made.serves()
        stack.close()
        assert flood.counts["connections"] >= count
        made.serves()


@pytest.fixture
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agent]:
    """A worker with its log, of the kind that the test names."""
    made = Agent(tmp_path, request.param)
    with made.workers:
        yield made


@pytest.mark.parametrize("agent", ["insecure", "tls"], indirect=True)
def test_refused_connections_are_counted_in_few_lines(agent: Agent):
    for _ in range(REFUSED):
        ask(agent.address, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    agent.until(
        "all refusals", lambda: sum(event.get("count", 1) for event in agent.events("host.refused")), lambda count: count >= REFUSED
    )
    events = agent.events("host.refused")
    assert sum(event.get("count", 1) for event in events) == REFUSED
    assert 1 <= len(events) <= FEW_LINES
    assert 1 <= agent.log().count("monarch: host.refused: ") <= FEW_LINES
    assert events[0]["peer"].startswith("127.0.0.1:") and events[0]["detail"]
    agent.serves()


def ends_before(stranger: subprocess.Popen[bytes], own: socket.socket) -> bool:
    """The connection of the other user ends, and the user's own continues."""
    assert stranger.stdout is not None
    while True:
        ready, _, _ = select.select([stranger.stdout, own], [], [])
        if stranger.stdout in ready:
            return stranger.stdout.readline() == b"ended\n"
        if not own.recv(4096):
            return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
@pytest.mark.parametrize("agent", ["abstract"], indirect=True)
def test_another_user_is_refused_at_once(agent: Agent):
    for address in [a for a in listening_sockets(agent.pid) if a.startswith("unix:")]:
        name = address.removeprefix("unix:").replace("@", "\0", 1)
        # A silent connection of the same user, and after it one of another user: the later one ends first.
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(name)
            with ListenerFlood("one", address, STRANGER) as stranger:
                assert stranger.shut_out or ends_before(stranger.process, own)
    agent.serves()


FULL = """
import os, secrets, socket, subprocess, sys
name = "\\0monarch-" + secrets.token_hex(8)
if os.fork() == 0:
    os.setgid(65534)
    os.setuid(65534)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(0)
    held = []
    while True:
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].setblocking(False)
        try:
            held[-1].connect(name)
        except BlockingIOError:
            break
    os.write(1, b"full\\n")
    sys.stdin.read()
    os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_full_listener_of_another_user_blocks_no_ps():
    """The listener has the name of an agent's control socket. The test has its own network and directory of control sockets, so that no
    other job is visible.
    """
    folder = control_directory()
    mount = ["mount", "-t", "tmpfs", "-o", "mode=700", "none", folder]
    hide = f"os.makedirs({folder!r}, 0o700, exist_ok=True)\nsubprocess.run({mount!r}, check=True)\n"
    look = f"assert os.read(ready, 5) == b'full\\n'\nsubprocess.run([sys.executable, '-c', {COMMAND!r}, 'ps'], stdin=subprocess.DEVNULL)"
    code = "import os, subprocess\n" + hide + "ready, told = os.pipe()\n" + FULL.replace("os.write(1,", "os.write(told,") + look
    argv = ["unshare", "--net", "--mount", sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert b"no job of this user" in process.stdout.readline()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
