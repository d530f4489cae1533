"""Programs that do what programs do: fork, leave processes, change directories, take ports, end their guard."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from eventually import eventually

from monarch.spmd import RestartPolicy, SPMDFailure, SPMDRun

Start = Callable[..., SPMDRun]
Program = Callable[..., str]


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_guard_is_a_failure(program: Program, start: Start, ranks: int) -> None:
    script = program(
        """
        import os, signal
        def parent(pid):
            return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            os.kill(parent(os.getppid()), signal.SIGKILL)
        signal.pause()
        """
    )
    with pytest.raises(SPMDFailure, match="was killed by SIGKILL") as raised:
        start(f"--nproc-per-node={ranks}", script).result.get()
    assert raised.value.rank == ranks - 1


def test_parts_of_lines_are_progress(program: Program, start: Start) -> None:
    script = program(
        """
        import threading
        for i in range(8):
            print(f"\\r{i}", end="", flush=True)
            threading.Event().wait(0.4)
        """
    )
    assert start(script, policy=RestartPolicy(hang_timeout=1.5)).result.get().returns == {0: 0}


def test_other_taken_port_is_the_programs_own_failure(program: Program, start: Start, folder: Path) -> None:
    script = program("open('runs', 'a').write('x')\nraise OSError(98, 'Address already in use')")
    with pytest.raises(SPMDFailure, match="Address already in use"):
        start(script).result.get()
    assert (folder / "runs").read_text() == "x"


def test_port_that_another_program_has_taken(program: Program, start: Start, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # The thief outlives its attempt: it is no process of the run.
    script = program(
        """
        import os, socket
        port = int(os.environ["MASTER_PORT"])
        open("runs", "a").write("x")
        if len(open("runs").read()) == 1:
            with open("port", "w") as file:
                file.write(str(port))
            open("taken").read()
        server = socket.socket()
        server.bind(("", port))
        server.listen()
        """
    )
    os.mkfifo(folder / "taken")
    running = start(script)
    port = int(eventually("the port", lambda: (folder / "port").read_text() if (folder / "port").exists() else ""))
    with socket.socket() as thief:
        thief.bind(("", port))
        thief.listen()
        (folder / "taken").write_text("")
        result = running.result.get()
    assert result.attempts == 1 and (folder / "runs").read_text() == "xx"
    assert "another program has taken the port of rank 0" in capfd.readouterr().err


@pytest.mark.parametrize("code", [0, 3])
def test_processes_in_other_sessions_end_with_the_rank(program: Program, start: Start, folder: Path, code: int) -> None:
    script = program(
        f"""
        import subprocess, sys
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        twice = subprocess.run(["setsid", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True)
        with open("pids", "w") as file:
            file.write(f"{{child.pid}} {{twice.stdout}}")
        sys.exit({code})
        """
    )
    running = start(script)
    if code:
        with pytest.raises(SPMDFailure):
            running.result.get()
    else:
        running.result.get()
    for pid in (folder / "pids").read_text().split():
        assert not os.path.exists(f"/proc/{pid}")


def test_program_that_changes_its_directory(program: Program, start: Start) -> None:
    program(
        """
        import inspect, multiprocessing, os
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            os.chdir("/")
            assert os.path.exists(__file__) and "return 2 * x" in inspect.getsource(double)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(double, [1]) == [2]
        """
    )
    start("program.py").result.get()


@pytest.mark.parametrize("how", ["script", "module"])
def test_namespace_is_the_programs_own(program: Program, start: Start, how: str) -> None:
    script = program(
        """
        names = {name for name in globals() if not name.startswith("__")}
        assert names == set(), names
        assert __annotations__ == {} and __loader__ is not None
        """
    )
    start(*([script] if how == "script" else ["-m", "program"])).result.get()


def test_archive_as_a_script(start: Start, folder: Path) -> None:
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "import beside\nassert __name__ == '__main__' and beside.X == 3\n")
        archive.writestr("beside.py", "X = 3\n")
    start("app.zip").result.get()


def test_record_of_a_huge_message_hides_secrets(program: Program, start: Start) -> None:
    script = program("import os\nprint(os.environ['MY_TOKEN'])\nraise ValueError(os.environ['MY_TOKEN'] + 'x' * 20_000_000)")
    arguments = (script, "--api-key=hunter-option", "--token", "hunter-word", "https://me:hunter-url@host/x")
    with pytest.raises(SPMDFailure) as raised:
        start(*arguments, env={"MY_TOKEN": "hunter-variable"}).result.get()
    path = Path(raised.value.record or "")
    assert path.stat().st_size < 1 << 20 and len(str(raised.value)) < 1 << 20
    text = path.read_text()
    assert "hunter" not in text
    assert json.loads(text)["command"][-4:] == ["--api-key=***", "--token", "***", "https://***@host/x"]


def test_nothing_is_left_where_the_client_is_killed(program: Program, folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    temporary = folder / "tmp"
    temporary.mkdir()
    script = program("import os, signal\nopen('fifo', 'w').write(str(os.getpid()))\nsignal.pause()")
    code = f"from monarch.actor import this_host\nfrom monarch.spmd import run\nrun(this_host(), ['torchrun', {script!r}]).result.get()"
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)}) as client:
        pid = (folder / "fifo").read_text()
        client.send_signal(signal.SIGKILL)
    eventually("the end of the rank", lambda: not os.path.exists(f"/proc/{pid}"))
    assert [path.name for path in temporary.iterdir() if "rank" in path.name] == []


# Seconds of the program's end: fewer, and more, than the default permits.
@pytest.mark.parametrize(("options", "takes", "is_left"), [(["--shutdown-timeout=0"], 3, True), (["--shutdown-timeout=25"], 6, False)])
def test_time_for_the_end_of_a_program(program: Program, start: Start, folder: Path, options: list[str], takes: int, is_left: bool) -> None:
    script = program(
        f"""
        import os, signal, sys, time
        def end(*_):
            time.sleep({takes})  # sleeps: as a program that writes a checkpoint
            open("tidy", "w").close()
            os._exit(0)
        if os.environ["RANK"] == "0":
            open("fifo").read()
            sys.exit(5)
        signal.signal(signal.SIGTERM, end)
        open("fifo", "w").close()
        while True:
            signal.pause()
        """
    )
    os.mkfifo(folder / "fifo")
    with pytest.raises(SPMDFailure, match="exited with code 5"):
        start("--nproc-per-node=2", *options, script).result.get()
    assert (folder / "tidy").exists() is not is_left
