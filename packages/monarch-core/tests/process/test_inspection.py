"""Inspection of a job from outside: `monarch ps`, `monarch stack`; and `dump_state` from inside."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from eventually import eventually
from fresh_script import Script
from worker_processes import Workers

from monarch._core._native import control_directory
from monarch._core.cli.root import root
from monarch._core.observe import inspection
from monarch._core.process.current import current_process
from monarch._core.process.identity import to_base58
from monarch.actor import Actor, Channel, HostMesh, Port, ProcMesh, attach_to_workers, dump_state, endpoint, this_host
from monarch.config import configured
from tools.frozen import freeze


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def wait_here(self, started: Port[int]) -> None:
        started.send(os.getpid())
        threading.Event().wait()

    @endpoint
    def keep_the_gil(self, started: Port[int]) -> None:
        from monarch._core._native import hold_gil

        started.send(os.getpid())
        hold_gil(0.0, 1000.0)
        threading.Event().wait()


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs(per_host={"procs": 3}, name="looked at")
    yield mesh
    with configured(stop_grace_period="100ms", stop_actor_timeout="200ms", process_exit_timeout="200ms"):
        mesh.stop().get()


MAIN = "from monarch._core.cli import main; main()"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", MAIN, *arguments], capture_output=True, text=True, check=False)


def monarch(*arguments: str, code: int | None = 0) -> str:
    done = run(*arguments)
    assert done.stderr == ""
    assert code is None or done.returncode == code, done.stdout
    return done.stdout


def look(what: int = inspection.STATE) -> dict[str, dict[str, Any]]:
    """The inspected processes of this job, by their names."""
    mine = [one.answer for one in inspection.look(what) if one.agent == current_process().uid]
    assert len(mine) == 1 and mine[0] is not None
    return {proc["name"]: proc for proc in mine[0]["procs"]}


def name(rank: int) -> str:
    return f"<root>.<looked at{{'procs': {rank}/3}}>"


def test_ps_shows_what_runs_and_since_when(procs: ProcMesh) -> None:
    worker = procs.spawn("w", Worker)
    started, running = Channel[int].open()
    worker.slice(procs=0).wait_here.broadcast(started)
    running.recv().get()
    worker.slice(procs=0).pid.broadcast()
    worker.slice(procs=1).pid.call_one().get()
    text = monarch("ps", str(os.getpid()))
    lines = text.splitlines()
    assert lines[0].startswith(f"job {os.getpid()} on {os.uname().nodename}: ")
    assert lines[1].split() == ["PID", "STATE", "UP", "RSS", "QUEUED", "DOING", "PROC", "/", "ACTOR"]
    at = next(i for i, line in enumerate(lines) if line.endswith(name(0)))
    assert lines[at].split()[1] == "running"
    queued, doing, since, *display = lines[at + 1].split()
    assert (queued, doing) == ("1", "wait_here") and since.endswith("s")
    assert " ".join(display) == "<root>.<test_inspection.Worker w{'procs': 0/3}>"
    at = next(i for i, line in enumerate(lines) if line.endswith(name(1)))
    assert lines[at + 1].split()[:2] == ["0", "-"]


def test_hostile_names_change_no_terminal() -> None:
    hostile = "evil\x1b[2J\x1b]0;owned\x07\n  1 alive\u202egpj"
    thread = threading.Thread(target=(waits := threading.Event()).wait, name=hostile, daemon=True)
    thread.start()
    mesh = this_host().spawn_procs(per_host={"procs": 1}, name=hostile)
    try:
        mesh.spawn(hostile, Worker).pid.call().get()
        for verb in ("ps", "stack"):
            shown = monarch(verb, "--here", str(os.getpid()), *(["--all"] if verb == "stack" else []))
            assert "evil\\x1b[2J\\x1b]0;owned\\x07\\n  1 alive\\u202egpj" in shown
            assert all(line.isprintable() for line in shown.split("\n"))
    finally:
        waits.set()
        mesh.stop().get()


def test_job_is_found_by_its_client(procs: ProcMesh) -> None:
    script = Script("p = this_host().spawn_procs(); p.initialized.get(); say('up'); sys.stdin.read(); time.sleep(1000)")  # sleeps: killed
    script.until("up")
    try:
        # The exit code covers all jobs of this user, also those of other runs: one of them may be unresponsive, or end just now.
        found = {one["answer"]["agent_pid"] for one in json.loads(monarch("ps", "--json", code=None)) if one["answer"] is not None}
        assert {os.getpid(), script.process.pid} <= found
        only = json.loads(monarch("ps", "--json", str(script.process.pid)))
        assert [one["answer"]["agent_pid"] for one in only] == [script.process.pid]
    finally:
        script.close()
    done = run("ps", str(script.process.pid))
    assert done.returncode == 2
    assert f"process {script.process.pid} is not the client of a job of this user on this machine" in done.stderr


def test_stopped_client_is_named_with_the_cause() -> None:
    script = Script("p = this_host().spawn_procs(); p.initialized.get(); say('up'); sys.stdin.read(); time.sleep(1000)")  # sleeps: killed
    try:
        script.until("up")
        pid = script.process.pid
        script.send(signal.SIGSTOP)
        commands = (["ps", str(pid)], ["doctor", "--crash", str(pid)])
        with ThreadPoolExecutor(len(commands)) as threads:
            for done in threads.map(lambda command: run(*command), commands):
                assert (done.returncode, done.stderr) == (1, ""), done
                assert done.stdout == (
                    f"process {pid} is the client of a job, or the agent of a host, and cannot be looked into: "
                    f"it is stopped by a signal; `kill -CONT {pid}` continues it\n"
                )
    finally:
        script.close()


def test_captured_files_are_named_for_each_host(tmp_path: Path) -> None:
    with Workers(1) as workers, configured(enable_file_capture=True, log_dir=str(tmp_path)):
        hosts = workers.attach()
        mesh = hosts.spawn_procs(name="there")
        here = this_host().spawn_procs(name="here")
        for procs in (mesh, here):
            procs.initialized.get()
        text = monarch("ps", str(os.getpid()))
        places = re.findall(r"^ *output of procs is captured in (\S+), as MESH/RANK.stdout and MESH/RANK.stderr$", text, re.M)
        assert len(set(places)) == 2 and all(Path(place).parent == tmp_path for place in places), text
        assert places[0].endswith(to_base58(current_process().uid))
        # Nothing has been printed: no file is there, and the place is known all the same.
        here.stop().get()
        hosts.shutdown().get()


def test_stacks_of_all_procs_equal_ones_together(procs: ProcMesh) -> None:
    started, running = Channel[int].open()
    procs.spawn("w", Worker).wait_here.broadcast(started)
    for _ in range(3):
        running.recv().get()
    text = monarch("stack", str(os.getpid()))
    head, *lines = text.partition("3 x <root>.<test_inspection.Worker w> in <root>.<looked at>[0-2]\n")[2].splitlines()
    assert head.endswith(("in Worker.wait_here", "in wait_here"))
    assert lines[0].endswith("wait") and "threading.py" in lines[0]


def test_stacks_while_something_holds_the_gil(procs: ProcMesh) -> None:
    started, running = Channel[int].open()
    worker = procs.spawn("w", Worker)
    worker.slice(procs=1).keep_the_gil.broadcast(started)
    running.recv().get()
    eventually("the stack is without the GIL", lambda: look(inspection.STACKS)[name(1)]["answer"], lambda text: "without_gil" in text)
    text = monarch("stack", str(os.getpid()))
    _, _, rest = text.partition("1 x <root>.<test_inspection.Worker w> in <root>.<looked at>[1] (the GIL is held)\n")
    assert rest.splitlines()[0].endswith("in keep_the_gil")
    # The proc is reported as unresponsive, with its stacks, and never as dead.
    eventually("stacks", lambda: look()[name(1)]["stacks"], lambda stacks: stacks is not None)
    seen = look()[name(1)]
    assert (seen["state"], seen["evidence"]) == ("unresponsive", "something keeps the GIL, or the machine is overloaded")
    assert "keep_the_gil" in seen["stacks"]["text"]
    assert "is unresponsive for" in monarch("ps", str(os.getpid()), code=1)
    # Its state needs no Python.
    assert [actor["doing"] for actor in seen["answer"]["actors"]] == ["keep_the_gil"]
    assert worker.slice(procs=0).pid.call_one().get()


def test_stopped_process_is_unresponsive_until_it_continues(procs: ProcMesh) -> None:
    worker = procs.spawn("w", Worker)
    pid = worker.slice(procs=2).pid.call_one().get()
    freeze(pid)
    waiting = worker.pid.call()
    eventually("no answer", lambda: look()[name(2)]["state"], lambda state: state == "unresponsive")
    seen = look()[name(2)]
    assert (seen["evidence"], seen["kernel"], seen["answer"], seen["stacks"]) == ("stopped by a signal", "T", None, None)
    assert f"{name(2)} (pid {pid}) does not answer" in monarch("stack", str(os.getpid()), code=1)
    os.kill(pid, signal.SIGCONT)
    assert waiting.get().item(procs=2) == pid
    eventually("an answer", lambda: look()[name(2)]["state"], lambda state: state == "running")
    assert look()[name(2)]["evidence"] is None


def test_client_that_holds_the_gil_is_inspected() -> None:
    script = Script("""
        from monarch._core._native import hold_gil
        p = this_host().spawn_procs()
        p.initialized.get()
        def stuck_here():
            say("holds")
            hold_gil(0.0, 1000.0)
            time.sleep(1000)  # sleeps: until it is killed
        stuck_here()
    """)
    script.until("holds")
    try:
        # The script prints the word an instant before it takes the GIL.
        held = "x a thread without a name in client (the GIL is held)"
        text = eventually("the GIL is held", lambda: monarch("stack", str(script.process.pid)), lambda text: held in text)
        assert text.splitlines()[0].startswith(f"job {script.process.pid} on ")
        assert "in stuck_here" in text
        assert monarch("ps", str(script.process.pid), code=None).count("<root>.<") == 1
    finally:
        script.close()


@pytest.mark.parametrize("way", ["direct", "through a gateway"])
def test_hosts_of_a_job(way: str) -> None:
    """The client's inspection shows all its processes, by whichever route it reaches its hosts."""
    with Workers(3, "tls") as workers:
        variables = {"TEST_HOSTS": " ".join(workers.addresses), "TEST_SECRET": str(workers.secret)}
        code = """
from monarch.actor import attach, attach_to_workers
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: say("told")
workers, secret = os.environ["TEST_HOSTS"].split(), os.environ["TEST_SECRET"]
if WAY != "direct":
    attach(workers[0], secret=secret)
hosts = attach_to_workers(workers=workers, secret=secret)
class Waiter(Actor):
    @endpoint
    def wait_here(self):
        threading.Event().wait()
waiters = hosts.spawn_procs(name="far").spawn("waiter", Waiter)
waiters.initialized.get()
waiters.wait_here.broadcast()
say("ready")
while True:
    signal.pause()
"""
        script = Script(f"WAY = {way!r}\n" + textwrap.dedent(code), env=variables)
        # Another client uses the same hosts: neither sees the other's processes.
        other = Script("WAY = 'direct'\n" + textwrap.dedent(code).replace("far", "others"), env=variables)
        try:
            script.until("ready")
            other.until("ready")
            pid = str(script.process.pid)
            agents = [process.pid for process in workers.processes]
            # The message may still be in flight.
            eventually("three wait", lambda: monarch("ps", pid), lambda text: len(re.findall(r"wait_here [\d.]+s", text)) == 3)
            said = monarch("ps", pid)
            assert sorted(int(n) for n in re.findall(r"^  host \S+, worker (\d+)$", said, re.M)) == sorted(agents)
            assert sorted(re.findall(r"<root>\.<far\{'hosts': \d/3\}>$", said, re.M)) == [
                f"<root>.<far{{'hosts': {n}/3}}>" for n in range(3)
            ]
            assert "others" not in said
            # The first look of a busy process may be late: it imports what looks at the stacks.
            waiter = re.compile(r"^1 x <root>\.<__main__\.Waiter waiter> in <root>\.<far>\[\d\]$", re.M)
            said = eventually("three stacks are shown", lambda: monarch("stack", pid), lambda text: len(waiter.findall(text)) == 3)
            assert len(re.findall(r"line \d+, in (?:Waiter\.)?wait_here$", said, re.M)) == 3
            (found,) = json.loads(monarch("ps", "--json", pid))
            assert [one["error"] for one in found["answer"]["hosts"]] == [None] * 3
            workers.processes[2].kill()
            workers.processes[2].wait()
            script.until("told")
            said = monarch("ps", pid)
            assert "lost" not in said and len(re.findall(r"wait_here", said)) == 2
            said = monarch("ps", "--all", pid)
            assert re.search(r"^  host \S+: lost: agent killed$", said, re.M), said
        finally:
            script.close()
            other.close()


def sections(*arguments: str) -> dict[str, list[str]]:
    """The output of `monarch ps`, by kind and pid: it may include other jobs of the machine. No interpreter is started for it."""
    printed = CliRunner().invoke(root, ["ps", *arguments], catch_exceptions=False).stdout
    found = [part.splitlines() for part in printed.rstrip().split("\n\n")]
    return {" ".join(lines[0].split()[:2]): lines for lines in found}


def is_lost(hosts: HostMesh, rank: int) -> bool:
    known = current_process().hosts.native
    return known is not None and any(id == hosts.__core__.agents[rank] and why is not None for id, _, _, why in known.hosts())


def test_agents_are_listed_with_their_job() -> None:
    with Workers(3) as workers:
        used, idle = workers.processes[:2], workers.processes[2]
        with attach_to_workers(workers=workers.addresses[:2]) as hosts:
            hosts.spawn_procs(name="far").initialized.get()
            late = attach_to_workers(workers=["ipc://@no-worker-listens-here"])
            found = sections()
            job = found[f"job {os.getpid()}"]
            shown = [line for line in job if "worker " in line]
            assert sorted(int(line.split()[-1]) for line in shown) == sorted(process.pid for process in used)
            assert all(line.startswith("  host ") for line in shown)
            assert "  a host: it has not joined yet" in job
            # An agent is listed once: as an agent, and on its own only if it works for no job of this machine.
            for process in used:
                assert f"agent {process.pid}" not in found and f"job {process.pid}" not in found
            alone = found[f"agent {idle.pid}"]
            assert alone[2].split()[-1] == "agent" and len(alone) == 3
            everything = sections("--all")
            assert {f"agent {process.pid}" for process in workers.processes} <= set(everything)
            assert any(
                line.startswith(f"  works for {os.uname().nodename} pid {os.getpid()} ") for line in everything[f"agent {used[0].pid}"]
            )
            # Processes given by pid are always shown.
            assert list(sections(str(used[0].pid))) == [f"agent {used[0].pid}"]
            workers.processes[0].kill()
            eventually("the host is lost", lambda: is_lost(hosts, 0))
            assert not any("lost" in line for line in sections()[f"job {os.getpid()}"])
            assert any("lost: agent killed" in line for line in sections("--all")[f"job {os.getpid()}"])
            del late


def test_another_user_sees_nothing(procs: ProcMesh) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to become somebody else")
    procs.initialized.get()
    code = "import os, sys; sys.path[:] = %r\nfrom monarch._core.observe import inspection\nos.setuid(65534)\n"
    # The directory of control sockets is closed to other users.
    code += "print([agent for agent in inspection.agents() if agent == %d], [one for one in inspection.look(0) if one.agent == %d])"
    uid = current_process().uid
    assert uid in inspection.agents()
    done = subprocess.run([sys.executable, "-c", code % (sys.path, uid, uid)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[] []\n", "")


def test_agent_of_another_user_is_left_out() -> None:
    """The directory of control sockets is not available to the agent, which has an abstract name."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    code = """
import os, socket
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("\\0monarch-00000000000000ab")
    listener.listen()
    print("listens", flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "listens\n"
        try:
            assert 0xAB in inspection.agents()
            assert 0xAB not in [one.agent for one in inspection.look(inspection.STATE)]
        finally:
            other.communicate("\n")


def test_malformed_bytes_on_control_sockets_disturb_nothing(procs: ProcMesh) -> None:
    worker = procs.spawn("w", Worker)
    worker.pid.call().get()
    dice = random.Random(4)
    greeting = b"\1\0\0\0" + dice.randbytes(8)
    for n in range(200):
        with socket.socket(socket.AF_UNIX) as guest:
            guest.connect(f"{control_directory()}/monarch-{current_process().uid:016x}")
            said = dice.randbytes(dice.randrange(64))
            try:
                guest.sendall(said if n % 2 else greeting + said)
            except OSError:  # the agent has closed the connection
                continue
    assert len(list(worker.pid.call().get().values())) == 3
    assert look()[name(0)]["state"] == "running"


def test_dump_state_is_json_for_a_bug_report(procs: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_SOMETHING", "shown")
    monkeypatch.setenv("A_SECRET", "must not be shown")
    monkeypatch.setenv("MONARCH_HUB_TOKEN", "neither this one")
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "a7", "https://me:pass@host/x"])
    worker = procs.spawn("w", Worker)
    worker.pid.call().get()
    text = dump_state()
    state = json.loads(text)
    assert state["environment"]["MONARCH_HUB_TOKEN"] == "***" and "neither this one" not in text
    assert state["argv"] == ["train.py", "--api-key", "***", "https://me:***@host/x"]
    assert state["pid"] == os.getpid() and state["versions"]["monarch-core"]
    assert state["environment"]["MONARCH_SOMETHING"] == "shown" and "must not be shown" not in text
    assert any(mesh["class"] == "test_inspection.Worker" and mesh["owner"] == "<root>" for mesh in state["owned"])
    assert {proc["name"] for proc in state["host"]["procs"]} >= {"client", name(0), name(1), name(2)}
    assert any(name.endswith("test_dump_state_is_json_for_a_bug_report") for one in state["threads"] for _, _, name in one["frames"])


def test_dump_state_without_a_runtime() -> None:
    code = "import json; from monarch.actor import dump_state; print(sorted(json.loads(dump_state())))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "process" not in done.stdout and "'settings'" in done.stdout
