"""py-spy on real processes: one that runs, one that holds its GIL, one that is stopped; and a py-spy that is missing, fails or hangs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import telemetry_program

from monarch.telemetry._stacks.flame import flame
from monarch.telemetry._stacks.frames import Thread
from monarch.telemetry._stacks.pyspy import Profile, dump, find, parse_folded, profile
from monarch.telemetry._stacks.result import BinaryNotFound, Failed, Ok
from monarch.telemetry._stacks.rows import dump_rows
from monarch.telemetry.errors import TelemetryError
from tools.frozen import freeze

WAITS = """
import os, threading

def inner(depth, text="abc"):
    os.write(1, b"x")
    threading.Event().wait()

def outer():
    inner(3)

threading.Thread(target=outer, name="the waiter").start()
"""
# The first call also holds the GIL: all later reads after its byte happen while the GIL is held.
HOLDS = """
import ctypes, threading
threading.Thread(target=threading.Event().wait, name="starves", daemon=True).start()
libc = ctypes.PyDLL(None)

def hold():
    libc.write(1, b"x", 1), libc.sleep(600)

hold()
"""
BUSY = """
import os
os.write(1, b"x")

def burn():
    while True:
        sum(range(1000))

burn()
"""
Started = Callable[[str], int]


@pytest.fixture
def started() -> Iterator[Started]:
    """Starts Python programs that write one byte when they are where they are to be."""
    with contextlib.ExitStack() as stack:

        def start(code: str) -> int:
            process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            stack.callback(ended, process)
            assert process.stdout is not None
            assert process.stdout.read(1) == b"x"
            return process.pid

        yield start


def ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An interpreter without a py-spy beside it; its folder."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    return tmp_path


def names(thread: Thread) -> list[str]:
    return [frame.name for frame in thread.frames]


def test_threads_of_a_process_with_their_locals(started: Started) -> None:
    pid = started(WAITS)
    result = dump(pid, locals=True)
    assert isinstance(result, Ok), result
    assert (result.pid, result.warnings, result.mode) == (pid, (), "py-spy locals")
    assert Path(result.binary) == Path(sys.executable).parent / "py-spy"
    (waiter,) = [one for one in result.stack_traces if one.name == "the waiter"]
    assert [name.rpartition(".")[2] for name in names(waiter)][:4] == ["wait", "wait", "inner", "outer"]
    assert waiter.owns_gil is False
    inner = waiter.frames[2]
    assert (inner.filename, inner.line) == ("<string>", 6)
    assert {(one.name, one.arg, one.repr) for one in inner.locals or ()} == {("depth", True, "3"), ("text", True, '"abc"')}
    assert {batch.num_rows > 0 for batch in dump_rows(result, "d", "proc", 1).values()} == {True}


def test_dump_without_locals_has_none(started: Started) -> None:
    result = dump(started(WAITS))
    assert isinstance(result, Ok), result
    assert {frame.locals for one in result.stack_traces for frame in one.frames} == {None}


def test_native_frames_or_the_reason_for_none(started: Started) -> None:
    result = dump(started(WAITS), native=True)
    assert isinstance(result, Ok), result
    assert any(name.endswith("inner") for one in result.stack_traces for name in names(one))
    if "native" in result.mode:
        assert any(frame.module for one in result.stack_traces for frame in one.frames)
    else:
        assert result.warnings[0].startswith("no native frames: ")


def test_thread_that_holds_the_gil_is_found(started: Started) -> None:
    result = dump(started(HOLDS))
    assert isinstance(result, Ok), result
    (holder,) = [one for one in result.stack_traces if one.owns_gil]
    assert (holder.name, names(holder)) == ("MainThread", ["hold", "<module>"])
    assert {one.name for one in result.stack_traces} == {"MainThread", "starves"}


def test_stopped_process_is_read_without_a_pause(started: Started) -> None:
    pid = started(WAITS)
    freeze(pid)
    os.waitpid(pid, os.WUNTRACED)
    result = dump(pid, native=True)
    assert isinstance(result, Ok), result
    assert result.mode == "py-spy nonblocking"
    assert result.warnings == (f"process {pid} is stopped by a signal", "no native frames: the process is read without a pause")
    assert any(name.endswith("inner") for one in result.stack_traces for name in names(one))
    # Reading it did not continue the process.
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_ended_process_and_one_without_python_fail(started: Started) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    result = dump(gone.pid)
    assert isinstance(result, Failed)
    assert (result.pid, result.exit_code) == (gone.pid, 1)
    assert "Check that the process is running" in str(result.error())
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert isinstance(dump(other.pid), Failed)
    finally:
        other.kill()
        other.wait()


def test_refused_ptrace_names_the_capability(started: Started) -> None:
    pid = started(WAITS) if os.geteuid() == 0 else 1
    code = f"""
import json
from monarch.telemetry._stacks.pyspy import dump
print(json.dumps(dump({pid}).to_json()))
"""
    drop = ["setpriv", "--bounding-set=-sys_ptrace"] if os.geteuid() == 0 else []
    done = subprocess.run([*drop, sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, timeout=25)
    failed = json.loads(done.stdout)["Failed"]
    assert failed["stderr"].startswith(f"reading process {pid} needs the capability CAP_SYS_PTRACE, which this process does not have")
    assert "hint: add it to the container (docker: --cap-add SYS_PTRACE" in failed["stderr"]


def test_missing_binary_names_what_was_searched(without: Path) -> None:
    result = find("/set/py-spy", environ={"PYSPY_BIN": "/var/py-spy", "PATH": f"/one:{without}:/one"})
    assert result == BinaryNotFound((str(without / "bin" / "py-spy"), "/set/py-spy", "/var/py-spy", "/one/py-spy", str(without / "py-spy")))
    error = result.error()
    assert str(error).startswith("py-spy was not found; searched: ")
    assert "monarch-telemetry[stacks]" in str(error)
    environ = {"PATH": ""}
    assert dump(1, environ=environ) == profile(1, environ=environ) == BinaryNotFound((str(without / "bin" / "py-spy"),))


def test_binary_is_searched_in_order(without: Path) -> None:
    environ = {"PYSPY_BIN": str(without / "var"), "PATH": str(without / "path")}
    places = [without / "path" / "py-spy", without / "var", without / "set", without / "bin" / "py-spy"]
    for place in places:
        script(place, "exit 1")
        assert find(str(without / "set"), environ=environ) == place
    # A file without permission to execute is not one.
    places[-1].chmod(0o644)
    if os.geteuid() != 0 or not os.access(places[-1], os.X_OK):
        assert find(str(without / "set"), environ=environ) == without / "set"


@pytest.mark.parametrize(
    ("text", "code", "stderr"),
    [
        ("echo 'Error: no luck' >&2; echo >&2; echo 'Stack backtrace:' >&2; exit 3", 3, "Error: no luck"),
        ("exit 4", 4, "py-spy has ended with exit code 4"),
        ("kill -9 $$", -9, "py-spy was ended by signal 9"),
        ("echo '{'", 0, "the output of py-spy cannot be read: Expecting property name"),
        ("echo '[{}]'", 0, "the output of py-spy cannot be read: malformed stacks: [0].thread_id is missing"),
    ],
)
def test_pyspy_that_fails(without: Path, text: str, code: int, stderr: str) -> None:
    binary = script(without / "bin" / "py-spy", text)
    result = dump(os.getpid())
    assert isinstance(result, Failed)
    assert (result.pid, result.binary, result.exit_code) == (os.getpid(), str(binary), code)
    assert result.stderr.startswith(stderr)
    assert "backtrace" not in result.stderr


def test_pyspy_that_cannot_be_started(without: Path) -> None:
    binary = without / "bin" / "py-spy"
    script(binary, "").write_text("#!/nowhere/interpreter\n")
    result = dump(1)
    assert result == Failed(1, str(binary), None, f"{binary} cannot be started: No such file or directory")


def test_pyspy_that_hangs_is_ended_with_its_children(without: Path) -> None:
    pipe = without / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # Both processes hold the writing end: it is closed when both have ended.
        binary = script(without / "bin" / "py-spy", f"exec 9>{pipe}\nsleep 600 &\nwait")
        result = dump(7, timeout=0.5)
        assert result == Failed(7, str(binary), None, "py-spy has not ended within 0.5 s")
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_native_frames_that_fail_are_left_out(without: Path) -> None:
    fails = 'case "$*" in *--native*) printf "Error: x\\n\\nCaused by:\\n    0: cannot merge\\n" >&2; exit 1;; esac'
    script(without / "bin" / "py-spy", f"{fails}\necho '[]'")
    result = dump(os.getpid(), native=True)
    assert isinstance(result, Ok)
    assert (result.warnings, result.mode) == (("no native frames: cannot merge",), "py-spy")


def test_profile_of_a_process_is_a_flame_graph(started: Started) -> None:
    pid = started(BUSY)
    result = profile(pid, duration_s=0.5, rate_hz=50)
    assert isinstance(result, Profile), result
    assert sum(count for _, count in result.stacks) > 0
    assert all("burn" in " ".join(stack) for stack, _ in result.stacks)
    svg = flame(result.stacks, title=f"process {pid}")
    assert "burn (&lt;string&gt;:" in svg


def test_wrong_profiles_are_refused() -> None:
    with pytest.raises(TelemetryError, match="the rate 1001 Hz is not within 1 to 1000 Hz"):
        profile(1, rate_hz=1001)
    for seconds in (0.0, 301.0, float("nan")):
        with pytest.raises(TelemetryError, match="is not above 0 and at most 300 s"):
            profile(1, duration_s=seconds)
    assert parse_folded("a;b c 12\n\nd 1\n") == ((("a", "b c"), 12), (("d",), 1))
    with pytest.raises(TelemetryError, match="line 2 has no count: 'a;b x'"):
        parse_folded("a 1\na;b x\n")


JOB = """
import ctypes, json, os, signal, subprocess, sys, threading
from pathlib import Path
from monarch.actor import Actor, Port, Channel, endpoint, this_host
from monarch.telemetry._stacks.merged import waits_for_work
from monarch.telemetry._stacks.frames import procs_of_look
from monarch.telemetry._stacks.merged import StackReport
from monarch.telemetry._stacks.outside import complete
from monarch.telemetry._stacks.pyspy import dump
from monarch.telemetry._stacks.rows import stack_rows

class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def hold(self, pipe: str) -> None:
        libc, file = ctypes.PyDLL(None), os.open(pipe, os.O_WRONLY)
        libc.write(file, b"x", 1), libc.sleep(600)

    @endpoint
    def step(self, started: Port[int]) -> None:
        started.send(1)
        threading.Event().wait()

# The reply to `pid` is there before its thread waits again: a signal may stop it in between, even with the GIL.
def stopped_while_idle(pid):
    os.kill(pid, signal.SIGSTOP)
    # py-spy fails on a thread that stops while it attaches to it.
    states = Path(f"/proc/{pid}/task").glob("*/status")
    while not all("(stopped)" in state.read_text() for state in states):
        states = Path(f"/proc/{pid}/task").glob("*/status")
    threads = dump(pid).stack_traces
    return all(waits_for_work(thread) and not thread.owns_gil for thread in threads)

def look():
    command = [str(Path(sys.executable).with_name("monarch")), "stack", "--json", str(os.getpid())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return procs_of_look(json.loads(done.stdout)[0]["answer"])

procs = this_host().spawn_procs({"gpus": 5}, name="workers")
worker = procs.spawn("worker", Worker)
pids = [pid for _, pid in worker.pid.call().get()]
started, running = Channel[int].open()
worker.slice(gpus=slice(0, 3)).step.broadcast(started)
for _ in range(3):
    running.recv().get()
os.mkfifo("pipe")
worker.slice(gpus=3).hold.broadcast(os.path.abspath("pipe"))
with open("pipe", "rb") as pipe:
    pipe.read(1)
while not stopped_while_idle(pids[4]):
    os.kill(pids[4], signal.SIGCONT)
wanted = {0: "gil", 1: "gil", 2: "gil", 3: "no_gil", 4: "stopped by a signal"}
found = look()
while {one.place.rank: one.unread or one.source for one in found if one.place.mesh} != wanted:
    found = look()
for report in (StackReport.of(found), StackReport.of(complete(found, dump))):
    for line in str(report).splitlines():
        if "in workers" in line or "of workers" in line or "in Worker." in line or "in hold" in line:
            print("=", line.replace(os.getcwd(), ""))
    print("= -")
rows = stack_rows(complete(found, dump), "trainer-1", "workers").to_pylist()
print("=", sorted({(row["rank"], row["source"]) for row in rows}))
print("=", [(row["rank"], row["thread_name"], row["name"]) for row in rows if row["owns_gil"] and row["frame_depth"] == 0])
print("=", {row["proc_id"] for row in rows} == {one.proc_id for one in found if one.place.mesh}, {row["pid"] for row in rows} == {*pids})
os.kill(pids[4], signal.SIGKILL)
os.kill(pids[3], signal.SIGKILL)
"""


def test_pyspy_shows_held_gil_and_stopped_proc() -> None:
    step = ["3 x actor worker in workers[0-2]", '    File "/program.py", line 25, in Worker.step']
    assert telemetry_program.shown(JOB) == [
        *step,
        "1 x a thread without a name in workers[3] (the GIL is held)",
        '    File "/program.py", line 20, in hold',
        "1 x no stack of workers[4]: stopped by a signal",
        "-",
        *step,
        "1 x actor worker in workers[3] (holds the GIL)",
        '    File "/program.py", line 20, in Worker.hold',
        "1 x no stack of workers[4]: stopped by a signal; its threads wait for work",
        "-",
        "[(0, 'gil'), (1, 'gil'), (2, 'gil'), (3, 'py-spy'), (4, 'py-spy')]",
        "[(3, 'actor worker', 'Worker.hold')]",
        "True True",
    ]
