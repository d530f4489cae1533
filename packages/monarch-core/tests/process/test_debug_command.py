"""Scripts with breakpoints from outside: `monarch debug`, the end of the script, hooks, the permitted users."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from debugged_actors import PDB, PROMPT, DebugLine
from fresh_script import Script
from worker_processes import Workers

from monarch._core.debug.address import find_servers
from monarch._core.debug.client import nothing_here

MAIN = "from monarch._core.cli import main; main()"
Start = Callable[..., tuple[Script, int]]
ANY_PORT = {"MONARCH_DEBUG_SERVER_PORT": "0"}

STOP = """
import asyncio
from monarch.actor import debug_controller

# Waited for by some, in the main thread.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

class Stop(Actor):
    @endpoint
    def step(self, x):
        y = x + 1
        breakpoint()
        return y

class AsyncStop(Actor):
    @endpoint
    async def step(self, x):
        y = x + 1
        breakpoint()
        return y

def stand(count):
    debug_controller().wait_pending_sessions.call_one(count).get()
    say(f"port {debug_controller().serve.call_one().get()[1]}")
"""
TWO = STOP + "result = this_host().spawn_procs({'gpus': 2}).spawn('two', Stop).step.call(1)\nstand(2)\n"


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[Script, int]]]:
    """Starts a script that stands at a breakpoint; returns it and the port of its debugger."""
    started: list[Script] = []

    def run(code: str, **options: Any) -> tuple[Script, int]:
        script = Script(code, **{"env": ANY_PORT, **options})
        started.append(script)
        return script, int(script.until("port").split()[1])

    yield run
    for script in started:
        script.close()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", MAIN, "debug", *arguments]


def environment() -> dict[str, str]:
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "error"}
    return {name: value for name, value in found.items() if not name.startswith("MONARCH_DEBUG")}


def debug(*arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), env=environment(), input=lines, capture_output=True, text=True, check=False)


def hints_only(err: str) -> bool:
    return all("] monarch: breakpoint in " in line for line in err.splitlines())


# ---- the client


def test_piped_input_gives_a_transcript(start: Start) -> None:
    script, port = start(TWO + "print(list(result.get().values()))\nsignal.sigwait([signal.SIGUSR1])")
    lines = "list\nattach two 1\np y\nup\ndetach\ncast two ranks(:) p y * 10\nnonsense\ncontinue\nlist\nquit\nlist\n"
    done = debug("--port", str(port), lines=lines)
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout.split(PROMPT)
    assert [part.partition("\n")[0] for part in shown[1:]] == [
        "list",
        "attach two 1",
        "cast two ranks(:) p y * 10",
        "nonsense",
        "continue",
        "list",
        "quit",
    ]
    assert "(Pdb) p y\n2\n(Pdb) up\n*** Oldest frame\n(Pdb) detach\nDetached from two rank 1.\n" in shown[2]
    assert "[0] 20\n[1] 20\n" in shown[3]
    assert "Error parsing input: " in shown[4]
    script.send(signal.SIGUSR1)
    ended = script.end()
    assert (ended.code, ended.out.splitlines()[-1], ended.left) == (0, "[2, 2]", [])
    assert hints_only(ended.err), ended.err


def test_end_of_piped_input_leaves_the_session(start: Start) -> None:
    script, port = start(TWO + "result.get()")
    done = debug("--port", str(port), lines="attach two 0\np 'looked'")
    assert (done.returncode, done.stderr) == (0, "")
    assert "'looked'" in done.stdout
    assert "1     gpus=1" in debug("--port", str(port), lines="list").stdout
    debug("--port", str(port), lines="c\n")
    assert script.end().code == 0


def test_finds_the_job_without_a_port(start: Start) -> None:
    script, port = start(TWO + "result.get()")
    done = debug(lines="list\nc\n")
    if done.returncode:  # other scripts of this user are being debugged on this machine right now
        assert "several jobs of yours are being debugged; choose one:" in done.stderr
        assert f"\n  --port {port}  process {script.process.pid}: " in done.stderr
        done = debug("--port", str(port), lines="list\nc\n")
    assert "two    0     gpus=0" in done.stdout
    assert script.end().code == 0


HOSTS = (
    STOP
    + """
from monarch.actor import attach_to_workers
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
hosts = attach_to_workers(workers=os.environ["TEST_HOSTS"].split(), secret=os.environ["TEST_SECRET"])
far = hosts.spawn_procs().spawn("far", Stop)
result = far.step.call(1)
stand(2)
print(list(result.get().values()), flush=True)
far.step.call(5)
stand(2)
eventually("one session is left", lambda: debug_controller().list.call_one(print_output=False).get(), lambda found: len(found) <= 1)
say("one left")
signal.sigwait([signal.SIGUSR1])
"""
)


def test_actors_on_other_hosts(start: Start) -> None:
    with Workers(2, "tls") as workers:
        variables = {**ANY_PORT, "TEST_HOSTS": " ".join(workers.addresses), "TEST_SECRET": str(workers.secret)}
        script, port = start(HOSTS, env=variables)
        done = debug("--port", str(port), lines="list\nattach far 1\np y\ndetach\ncast far ranks(hosts=0:2) p y * 10\nc\n")
        assert (done.returncode, done.stderr) == (0, "")
        assert "far    0     hosts=0" in done.stdout
        assert "far    1     hosts=1" in done.stdout
        assert "(Pdb) p y\n2\n" in done.stdout
        assert "[0] 20\n[1] 20\n" in done.stdout
        script.until("[2, 2]")
        # A lost host loses its sessions; those of the other host stay.
        script.until("port")
        workers.processes[0].kill()
        workers.processes[0].wait()
        script.until("one left")
        said = debug("--port", str(port), lines="list\nattach far 1\np y\ndetach\nc\n").stdout
        assert "hosts=0" not in said
        assert "(Pdb) p y\n6\n" in said
        script.send(signal.SIGUSR1)
        ended = script.end()
        assert (ended.code, ended.left) == (0, []), ended


def test_session_names_the_host_of_its_process(start: Start) -> None:
    code = """
from monarch.actor import DebugSessionInfo
from monarch._core.process.current import current_process
here, controller = current_process().host, debug_controller()
for number, host in ((1, here), (2, "elsewhere")):
    info = DebugSessionInfo("x", number, {}, host, "step", 1)
    how, _ = controller.open_session.call_one(number, info, current_process().uid).get()
    say(str([how == f"monarch debug --port {controller.serve.call_one().get()[1]}" + end for end in ("", f", on {here}")]))
say("port 0")
"""
    script, _ = start(STOP + code)
    done = script.end()
    assert done.out.splitlines()[:2] == ["[True, False]", "[False, True]"], done


@pytest.mark.parametrize("arguments", [["--port", "none"], ["--port", "0"], ["--port", "65536"], ["extra"], ["--host"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert debug(*arguments).returncode == 2


def test_unanswered_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    done = debug("--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"nothing answers at localhost port {port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("attached", [False, True])
def test_another_client_takes_over(start: Start, attached: bool) -> None:
    script, port = start(TWO + "result.get()")
    with subprocess.Popen(
        command("--port", str(port)), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin
        assert client.stdout
        assert client.stderr
        assert "Monarch debugger" in client.stdout.readline()
        if attached:
            client.stdin.write("attach two 0\n")
            client.stdin.flush()
            assert "attach two 0" in client.stdout.readline()
            assert "Attached" in client.stdout.readline()
        with DebugLine(("127.0.0.1", port)) as other:
            assert client.wait() == 1
            assert "Another client has taken over." in client.stdout.read()
            assert "the connection has ended" in client.stderr.read()
            other.ask("c")
    assert script.end().code == 0


@pytest.mark.parametrize(("end", "code"), [("exit", 0), ("kill", 1)])
def test_end_of_the_job_ends_the_command(start: Start, end: str, code: int) -> None:
    script, port = start(TWO + "signal.sigwait([signal.SIGUSR1])")
    with subprocess.Popen(
        command("--port", str(port)), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout
        assert "Monarch debugger" in client.stdout.readline()
        script.send(signal.SIGKILL if end == "kill" else signal.SIGUSR1)
        assert client.wait() == code
        assert ("The job has ended." in client.stdout.read()) is (end == "exit")
    assert script.end().left == []


# ---- the end of a script


@pytest.mark.parametrize("actor", ["Stop", "AsyncStop"])
@pytest.mark.parametrize("how", ["falls off", "attached", "shut down", "in the client"])
def test_end_of_the_script_ends_its_sessions(start: Start, actor: str, how: str) -> None:
    code = f"result = this_host().spawn_procs({{'gpus': 2}}).spawn('two', {actor}).step.call(1)\nstand(2)\n"
    if how == "in the client":
        code = f"result = this_proc().spawn('own', {actor}).step.call(1)\nstand(1)\n"
    if how == "shut down":
        code += "from monarch.actor import shutdown_context\nshutdown_context().get()\n"
    if how == "attached":
        code += "signal.sigwait([signal.SIGUSR1])\n"
    script, port = start(STOP + code)
    if how == "attached":
        with DebugLine(("127.0.0.1", port)) as line:
            line.ask("attach two 0", PDB)
            script.send(signal.SIGUSR1)
            assert "The job has ended." in line.rest()
    done = script.end()
    assert (done.code, done.left) == (0, []), done
    said = [text for text in done.err.splitlines() if "monarch: breakpoint in " not in text]
    # A script that shuts down in its middle gets a report of the calls that did not end in time.
    assert said == [] or how == "shut down", done.err


def test_ctrl_c_ends_a_call_at_a_breakpoint(start: Start) -> None:
    script, _ = start(TWO + "result.get()")
    script.send(signal.SIGINT)
    done = script.end()
    assert done.code in (130, -signal.SIGINT)
    assert done.left == []
    # The lines of the procs may come at any moment.
    said = [text for text in done.err.splitlines() if "monarch: breakpoint in " not in text]
    assert said[-1] == "KeyboardInterrupt"


# ---- the address of the server, and its users


def test_no_port_is_open_before_a_breakpoint(start: Start) -> None:
    script, port = start(
        STOP
        + """
        from monarch._core.debug.address import _connections
        def listening():
            sockets = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
            rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")]
            return [row[1] for row in rows if f"socket:[{row[9]}]" in sockets and row[3] == "0A"]
        procs = this_host().spawn_procs({"gpus": 2})
        assert procs.spawn("echo", Echo).echo.call(1).get()
        assert listening() == []
        result = procs.spawn("two", Stop).step.call(1)
        stand(2)
        assert len(listening()) == 1
        result.get()
        """.replace("        ", ""),
        warnings=(),
    )
    assert [server.port for server in find_servers() if server.pid == script.process.pid] == [port]
    assert debug("--port", str(port), lines="c\n").returncode == 0
    assert script.end().code == 0
    assert not any(server.pid == script.process.pid for server in find_servers())


def test_taken_debug_port_is_replaced(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        script, port = start(TWO + "result.get()", env={"MONARCH_DEBUG_SERVER_PORT": str(taken)})
        assert port != taken
        assert debug("--port", str(port), lines="c\n").returncode == 0
        done = script.end()
    assert done.code == 0
    assert f"attach with: monarch debug --port {port} (port {taken} was taken)" in done.err


def test_bad_variables_do_not_stop_the_job() -> None:
    code = """
try:
    debug_controller()
except ValueError as e:
    print(e)
print(this_proc().spawn("one", Stop).step.call_one(1).get())
"""
    done = Script(STOP + code, env={"MONARCH_DEBUG_SERVER_PORT": "many"}).end()
    assert (done.code, done.left) == (0, []), done
    assert done.out.splitlines() == ["MONARCH_DEBUG_SERVER_PORT='many' is no port: expected 0 (any) to 65535", "2"]
    assert "the debugger cannot be reached, step() goes on: " in done.err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_refused(start: Start) -> None:
    script, port = start(TWO + "result.get()")
    code = f"""
import encodings.idna, os, socket
os.setuid(65534)
s = socket.create_connection(("127.0.0.1", {port}))
print(s.recv(1000).decode(), s.recv(10))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused: not the user of this job\n b''\n"
    assert debug("--port", str(port), lines="c\n").returncode == 0
    assert script.end().code == 0


def test_client_of_a_job_of_workers_is_named() -> None:
    with Workers(1) as workers, workers.attach() as hosts:
        hosts.spawn_procs().initialized.get()
        # The command does the same if it finds no server: another job on this machine may have one just now.
        told = nothing_here().splitlines()
    assert told[0].startswith("no job of yours on this machine is at a breakpoint; jobs with processes here are debugged")
    assert f"  on {socket.gethostname()}, process {os.getpid()}" in told[1:-1]
    assert "ssh -L" in told[-1]


def test_debuggers_on_other_hosts_are_listed() -> None:
    told = nothing_here(lambda: ["workers[1], process 7 at 127.0.0.1 port 27000: python train.py"]).splitlines()
    assert told[1] == "  on workers[1], process 7 at 127.0.0.1 port 27000: python train.py" and "monarch shell" in told[2]


def test_debuggers_of_this_machine_are_listed(start: Start) -> None:
    script, port = start(TWO + "result.get()")
    listed = debug("--here").stdout
    assert f" port {port}: " in listed, listed
    assert debug("--port", str(port), lines="c\n").returncode == 0
    assert script.end().code == 0


# ---- hooks


def test_switched_off() -> None:
    done = Script(STOP + "print(this_proc().spawn('one', Stop).step.call_one(1).get())", env={"PYTHONBREAKPOINT": "0"}).end()
    done.assert_clean()
    assert done.out == "2\n"


@pytest.mark.parametrize("how", ["variable", "hook"])
def test_hook_of_the_user(how: str) -> None:
    code = """
def hook():
    print("hook of the user", sys._getframe(1).f_code.co_name)
def bootstrap():
    sys.breakpointhook = hook
procs = this_host().spawn_procs(bootstrap=bootstrap if {own} else None)
print(procs.spawn('one', Stop).step.call_one(1).get())
"""
    env = {"PYTHONBREAKPOINT": "builtins.print"} if how == "variable" else {}
    done = Script(STOP + code.format(own=how == "hook"), env=env).end()
    done.assert_clean()
    expected = ["[0] hook of the user step"] if how == "hook" else ["[0] "]
    assert sorted(done.out.splitlines()) == sorted(["2", *expected])


def test_outside_an_endpoint_it_is_plain_pdb() -> None:
    code = """
this_proc().spawn('own', Echo).echo.call_one(1).get()
try:
    breakpoint()
    print('here')
except BaseException as e:
    print(repr(e))
"""
    done = Script(STOP + code).end()
    done.assert_clean()
    assert "-> print('here')" in done.out
    assert "(Pdb) " in done.out
    assert done.out.splitlines()[-1] == "BdbQuit()"


def test_await_and_asyncio_client(start: Start) -> None:
    code = """
async def main():
    result = this_host().spawn_procs().spawn('one', AsyncStop).step.call_one(1)
    await debug_controller().wait_pending_session.call_one()
    (info,) = await debug_controller().list.call_one(print_output=False)
    say(f"port {(await debug_controller().serve.call_one())[1]}")
    return info.function, await result
print(asyncio.run(main()))
"""
    script, port = start(STOP + code)
    assert debug("--port", str(port), lines="c\n").returncode == 0
    done = script.end()
    assert (done.code, done.out.splitlines()[-1]) == (0, "('step', 2)"), done


def test_class_of_the_script_shows_its_source(start: Start) -> None:
    script, port = start(STOP + "result = this_host().spawn_procs().spawn('one', Stop).step.call_one(1)\nstand(1)\nresult.get()")
    done = debug("--port", str(port), lines="attach one 0\nlist\ndetach\nc\n")
    assert "-> return y" in done.stdout
    assert "class Stop(Actor):" in done.stdout
    assert script.end().code == 0
