"""Launches on this machine: variables, programs, output, ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from eventually import eventually

from monarch.actor import this_host
from monarch.spmd import LaunchArgumentError, SPMDError, SPMDFailure, SPMDRun, run

Start = Callable[..., SPMDRun]
Program = Callable[..., str]


def test_variables_and_arguments(program: Program, start: Start, folder: Path) -> None:
    script = program(
        """
        import json, os, sys
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "OMP_NUM_THREADS", "EXTRA")
        found = {name: os.environ[name] for name in names}
        found |= {name: os.environ["TORCHELASTIC_" + name] for name in ("RUN_ID", "RESTART_COUNT", "MAX_RESTARTS", "USE_AGENT_STORE")}
        found |= {"argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__, "cwd": os.getcwd()}
        with open(f"rank{os.environ['RANK']}.json", "w") as file:
            json.dump(found, file)
        """
    )
    options = ("--nproc-per-node=2", "--role=trainer", "--max-restarts=3")
    running = start(*options, script, "--lr", "0.1", run_id="r1", env={"EXTRA": "x", "RANK": "9"})
    result = running.result.get()
    assert (result.attempts, result.world_size, result.returns) == (1, 2, {0: 0, 1: 0})
    for rank in (0, 1):
        assert json.loads((folder / f"rank{rank}.json").read_text()) == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "ROLE_NAME": "trainer",
            "OMP_NUM_THREADS": "1",
            "EXTRA": "x",
            "RUN_ID": "r1",
            "RESTART_COUNT": "0",
            "MAX_RESTARTS": "3",
            "USE_AGENT_STORE": "False",
            "argv": [script, "--lr", "0.1"],
            "path": str(folder),
            "name": "__main__",
            "file": script,
            "cwd": str(folder),
        }


def test_module_with_what_lies_beside_it(program: Program, start: Start, folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("VALUE = 7\n")
    (folder / "pkg" / "train.py").write_text("import sys\nfrom . import VALUE\nassert __name__ == '__main__'\nprint(VALUE, sys.argv[1:])\n")
    start("-m", "pkg.train", "a").result.get()


def test_folder_with_a_main(start: Start, folder: Path) -> None:
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").write_text("import beside\nassert __name__ == '__main__' and beside.X == 3\n")
    (folder / "app" / "beside.py").write_text("X = 3\n")
    start("--run-path", "app").result.get()


def test_other_program_has_one_rank_a_host(folder: Path) -> None:
    run(this_host(), ["sh", "-c", "echo $RANK of $WORLD_SIZE > out"], workdir=str(folder)).result.get()
    assert (folder / "out").read_text() == "0 of 1\n"


def test_program_runs_on_the_main_thread(program: Program, start: Start) -> None:
    script = program(
        """
        import multiprocessing, signal, threading
        def double(x):
            return 2 * x
        class Own:
            pass
        if __name__ == "__main__":
            assert threading.current_thread() is threading.main_thread()
            signal.signal(signal.SIGTERM, lambda *_: None)
            import pickle
            assert type(pickle.loads(pickle.dumps(Own()))) is Own
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(double, [1, 2]) == [2, 4]
        """
    )
    start(script).result.get()


def test_output_is_shown_by_rank_and_stored(program: Program, start: Start, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = program(
        """
        import os, sys
        print("out", os.environ["RANK"])
        print("err", os.environ["RANK"], file=sys.stderr)
        sys.stdout.write("no end")
        """
    )
    start("--nproc-per-node=2", script, log_dir="logs", run_id="r").result.get()
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == ["[0] no end", "[0] out 0", "[1] no end", "[1] out 1"]
    assert sorted(shown.err.splitlines()) == ["[0] err 0", "[1] err 1"]
    for rank in (0, 1):
        place = folder / "logs" / "r" / "attempt_0" / str(rank)
        assert (place / "stdout.log").read_text() == f"out {rank}\nno end"
        assert (place / "stderr.log").read_text() == f"err {rank}\n"


def test_ranks_that_are_left_out_of_the_output(program: Program, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    start("--nproc-per-node=2", "--local-ranks-filter=1", program("import os; print(os.environ['RANK'])")).result.get()
    assert capfd.readouterr().out == "[1] 1\n"


def test_much_output_arrives_whole(program: Program, start: Start, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start(program("for i in range(200000): print('line', i)"), log_dir="logs", run_id="r").result.get()
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "[0] line 0" and lines[-1] == "[0] line 199999" and len(lines) == 200000


@pytest.mark.parametrize(
    ("text", "kind", "exitcode", "words"),
    [
        ("raise ValueError('bad')", "exception", 1, "raised ValueError: bad"),
        ("import sys; sys.exit(3)", "exit", 3, "exited with code 3"),
        ("import sys; sys.exit('words')", "exit", 1, "exited with code 1"),
        ("import os; os._exit(7)", "exit", 7, "exited with code 7"),
        ("import os; os.abort()", "signal", -6, "was killed by SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "signal", -9, "was killed by SIGKILL"),
        ("raise KeyboardInterrupt", "exception", -2, "raised KeyboardInterrupt"),
        ("import signal; signal.signal(2, signal.SIG_DFL); signal.raise_signal(2)", "signal", -2, "was killed by SIGINT"),
        ("def f(:", "exception", 1, "raised SyntaxError"),
        ("import no_such_module", "exception", 1, "raised ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_failures(program: Program, start: Start, folder: Path, text: str, kind: str, exitcode: int, words: str) -> None:
    with pytest.raises(SPMDFailure) as raised:
        start(program(f"print('before', flush=True)\n{text}") if "def" not in text else program(text)).result.get()
    failure = raised.value
    assert (failure.rank, failure.exitcode, failure.failures[0].kind) == (0, exitcode, kind)
    first = str(failure).split("\n")[0]
    assert first.startswith("rank 0 (gpus=0, ") and words in first
    found = json.loads(Path(failure.record or "").read_text())
    assert found["failures"][0]["exitcode"] == exitcode and found["rank"] == 0


@pytest.mark.parametrize("text", ["import sys; sys.exit()", "import sys; sys.exit(0)", "import os; os._exit(0)", "", "raise SystemExit"])
def test_program_with_exit_code_zero_succeeds(program: Program, start: Start, text: str) -> None:
    assert start(program(text)).result.get().returns == {0: 0}


@pytest.mark.parametrize("error", ["KeyError('k')", "KeyboardInterrupt"])
def test_traceback_has_frames_of_the_program_only(program: Program, start: Start, error: str) -> None:
    with pytest.raises(SPMDFailure) as raised:
        start(program(f"def step():\n    raise {error}\nstep()\n")).result.get()
    assert [line.split(",")[0].strip() for line in raised.value.failures[0].traceback.splitlines() if "File" in line] == [
        f'File "{Path("program.py").resolve()}"'
    ] * 2


def test_run_that_is_active_already(program: Program, start: Start, folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    waits, ends = program("open('fifo').read()"), program("", "ends.py")
    first = start(waits, run_id="same", log_dir="logs")
    assert repr(first) == "SPMDRun('same', active)"
    with pytest.raises(SPMDError, match="the run same is already active, with its files in .*logs\n.*run_id or log_dir"):
        start(ends, run_id="same", log_dir=str(folder / "logs"))
    # A run with other files, or another name.
    start(ends, run_id="same", log_dir="others").result.get()
    start(ends, run_id="other", log_dir="logs").result.get()
    (folder / "fifo").write_text("")
    first.result.get()
    assert repr(first) == "SPMDRun('same', ended)"
    for _ in range(3):
        start(ends, run_id="same", log_dir="logs").result.get()


def test_first_rank_that_fails_is_the_headline(program: Program, start: Start) -> None:
    script = program(
        """
        import os, signal
        if os.environ["RANK"] == "2":
            raise ValueError("first")
        signal.pause()
        """
    )
    with pytest.raises(SPMDFailure, match="raised ValueError: first") as raised:
        start("--nproc-per-node=4", script).result.get()
    assert raised.value.rank == 2 and len(raised.value.failures) == 1
    assert "3 ranks were ended in consequence" in str(raised.value)


# Rank 1 raises, and the connections of the others fail: they close when it ends, or while its exception is in flight.
LEAVES = {
    "ends at once": """
        if rank == "1":
            atexit.register(open_fifo, "a", "w")
            raise ValueError("first")
        open_fifo("a", "r")
        raise RuntimeError("connection closed by peer")
    """,
    "ends later": """
        if rank == "1":
            atexit.register(signal.pause)
            atexit.register(open_fifo, "a", "w")
            raise ValueError("first")
        open_fifo("a", "r")
        raise KeyError("second")
    """,
    "tidies up": """
        if rank == "1":
            atexit.register(open_fifo, "b", "r")
            try:
                raise ValueError("first")
            finally:
                open_fifo("a", "w")
                open_fifo("a", "r")
        # They end in reverse order.
        atexit.register(open_fifo, "b", "w")
        atexit.register(open_fifo, "a", "w")
        open_fifo("a", "r")
        raise RuntimeError("Read error: Connection reset by peer")
    """,
}


@pytest.mark.parametrize("way", LEAVES)
def test_first_raising_rank_is_the_headline(program: Program, start: Start, folder: Path, way: str) -> None:
    script = program(
        """
        import atexit, os, signal
        rank = os.environ["RANK"]
        def open_fifo(name, mode):
            # It is opened when both ends are.
            open(name, mode).close()
        """
        + LEAVES[way]
    )
    for name in "ab":
        os.mkfifo(folder / name)
    with pytest.raises(SPMDFailure, match="rank 1 .* raised ValueError: first") as raised:
        start("--nproc-per-node=2", script).result.get()
    failure = raised.value
    assert (failure.rank, failure.exitcode, failure.failures[0].kind) == (1, 1, "exception")
    assert "ValueError" in failure.failures[0].traceback and [one.rank for one in failure.failures] in ([1, 0], [1])


def test_restart_has_new_processes_and_a_new_port(program: Program, start: Start, folder: Path) -> None:
    script = program(
        """
        import os, sys
        count = os.environ["TORCHELASTIC_RESTART_COUNT"]
        with open(f"{count}.{os.environ['RANK']}", "w") as file:
            file.write(f"{os.environ['MASTER_PORT']} {os.getpid()}")
        if count == "0" and os.environ["RANK"] == "1":
            sys.exit(4)
        """
    )
    result = start("--nproc-per-node=2", "--max-restarts=2", script).result.get()
    assert result.attempts == 2
    found = {path.name: path.read_text().split() for path in folder.glob("?.?")}
    assert found["1.0"][0] == found["1.1"][0] != found["0.1"][0]
    assert found["1.1"][1] != found["0.1"][1]


def test_program_that_ignores_sigterm_is_killed_with_children(program: Program, start: Start, folder: Path) -> None:
    script = program(
        """
        import os, signal, subprocess, sys
        if os.environ["RANK"] == "0":
            # A fifo is opened when both ends are.
            open("fifo").read()
            sys.exit(5)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        with open("pid", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        open("fifo", "w").close()
        while True:
            signal.pause()
        """
    )
    os.mkfifo(folder / "fifo")
    with pytest.raises(SPMDFailure, match="exited with code 5"):
        start("--nproc-per-node=2", script).result.get()
    for pid in (folder / "pid").read_text().split():
        assert not os.path.exists(f"/proc/{pid}")


def test_stop_keeps_the_host(program: Program, start: Start, folder: Path) -> None:
    script = program("import signal\nopen('ready', 'w').close()\nsignal.pause()")
    running = start(script)
    eventually("the program", (folder / "ready").exists)
    running.stop().get()
    with pytest.raises(SPMDError, match="the run was stopped") as raised:
        running.result.get()
    assert raised.value.code == "stopped"
    assert start(program("")).result.get().world_size == 1


def test_with_block_ends_a_run(program: Program, start: Start, folder: Path) -> None:
    script = program("import signal\nopen('ready', 'w').close()\nsignal.pause()")
    with pytest.raises(KeyboardInterrupt), start(script) as running:
        eventually("the program", (folder / "ready").exists)
        raise KeyboardInterrupt
    with pytest.raises(SPMDError, match="the run was stopped"):
        running.result.get()
    with start(program("")) as running:
        assert running.result.get().world_size == 1


def test_log_and_procs_while_it_runs(program: Program, start: Start) -> None:
    script = program("import signal\nfor i in range(5): print('line', i, flush=True)\nsignal.pause()")
    running = start("--nproc-per-node=2", script)
    for rank in (0, 1):
        eventually("five lines", partial(_log, running, rank), lambda text: text.count("\n") == 5)
    assert running.log(0, tail=2).get() == "line 3\nline 4\n"
    assert running.attempt == 0 and running.procs().sizes == {"gpus": 2}
    with pytest.raises(SPMDError, match="rank 2 is not in this run, which has 2 ranks"):
        running.log(2).get()
    running.stop().get()
    with pytest.raises(SPMDError, match="has ended"):
        running.procs()


def _log(running: SPMDRun, rank: int) -> str:
    try:
        return running.log(rank).get()
    except SPMDError:  # the ranks do not exist yet
        return ""


def test_hang_is_found_and_shows_stacks(program: Program, start: Start, folder: Path) -> None:
    from monarch.spmd import RestartPolicy

    script = program("import threading\nprint('begun', flush=True)\ndef stuck():\n    threading.Event().wait()\nstuck()\n")
    with pytest.raises(SPMDFailure, match="printed nothing for 1 s") as raised:
        start("--nproc-per-node=2", script, policy=RestartPolicy(hang_timeout=1.0)).result.get()
    failure = raised.value
    assert failure.failures[0].kind == "hang" and len(failure.failures) == 2
    assert failure.stacks.split("\n")[:6] == [
        "ranks 0-1:",
        "  Current thread (most recent call last):",
        f'    File "{script}", line 5, in <module>',
        "      stuck()",
        f'    File "{script}", line 4, in stuck',
        "      threading.Event().wait()",
    ]
    assert "start_program" not in failure.stacks
    assert json.loads(Path(failure.record or "").read_text())["stacks"] == failure.stacks


def test_long_traceback_keeps_the_line_of_the_program(program: Program, start: Start) -> None:
    frames = "".join(f"def f{number}():\n    return f{number + 1}()  # {'x' * 200}\n" for number in range(300))
    script = program(f"{frames}def f300():\n    raise ValueError('deep')\nf0()\n")
    with pytest.raises(SPMDFailure) as raised:
        start(script).result.get()
    text = raised.value.failures[0].traceback
    assert f'File "{script}", line 603, in <module>\n    f0()' in text and "\n  ...\n" in text and text.endswith("ValueError: deep\n")


def test_program_that_is_not_there(start: Start, folder: Path) -> None:
    with pytest.raises(SPMDError, match=r"program 'none.py' is not on this host; the directory is .*work") as raised:
        start("none.py").result.get()
    assert not isinstance(raised.value, SPMDFailure)
    with pytest.raises(SPMDError, match=r"cannot start 'no-such-tool': No such file or directory \(ENOENT\)"):
        start("--no-python", "no-such-tool").result.get()


def test_directory_that_is_not_there(folder: Path) -> None:
    with pytest.raises(SPMDError, match="the directory '/no/such' is not on this host"):
        run(this_host(), ["python", "a.py"], workdir="/no/such").result.get()


@pytest.mark.parametrize(
    ("command", "arguments", "error", "text"),
    [
        (["torchrun", "--nnodes=2", "a.py"], {}, LaunchArgumentError, "--nnodes=2: the mesh has 1 host"),
        (["torchrun", "--nproc-per-node=0", "a.py"], {}, LaunchArgumentError, "--nproc-per-node=0: expected"),
        (["torchrun", "a.py"], {"run_id": "a/b"}, ValueError, "run_id='a/b'"),
        (["torchrun", "a.py"], {"run_id": ".."}, ValueError, "run_id='..'"),
        (["torchrun", "a.py"], {"run_id": 5}, TypeError, "run_id=5"),
        (["torchrun", "a.py"], {"policy": {}}, TypeError, "policy={}: expected a RestartPolicy"),
        (["torchrun", "a.py"], {"workdir": ""}, ValueError, "workdir=''"),
        (["torchrun", "a.py"], {"workdir": Path("x")}, TypeError, "expected a text, not PosixPath"),
        (["torchrun", "a.py"], {"env": 5}, TypeError, "env=5: expected a mapping"),
        (["torchrun", "a.py"], {"env": {"A=": "b"}}, ValueError, "env"),
        (["torchrun", "a.py"], {"env": {"A": 1}}, TypeError, "expected texts"),
    ],
)
def test_bad_arguments_start_nothing(command: list[str], arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(this_host(), command, **arguments)  # type: ignore[arg-type]


def test_gpus_are_counted_on_the_host(program: Program, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchArgumentError, match="--nproc-per-node=gpu: .* has 0 GPUs"):
        start("--nproc-per-node=gpu", program(""), env={}).result.get()
    count = len(os.sched_getaffinity(0))
    assert start("--nproc-per-node=auto", program("")).result.get().world_size == count


def test_rank_that_is_killed_from_outside(program: Program, start: Start, folder: Path) -> None:
    script = program("import os, signal\nopen(os.environ['RANK'] + '.pid', 'w').write(str(os.getpid()))\nsignal.pause()")
    running = start("--nproc-per-node=2", script)
    pid = int(eventually("its pid", lambda: (folder / "1.pid").read_text() if (folder / "1.pid").exists() else ""))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SPMDFailure, match="rank 1 .* was killed by SIGKILL") as raised:
        running.result.get()
    assert raised.value.reason.signal == 9


def test_repeated_runs_leave_nothing(program: Program, start: Start) -> None:
    script = program("print('x')")
    before: set[str] = set()
    for number in range(4):
        start("--nproc-per-node=2", script).result.get()
        if number == 1:
            before = _children()
    eventually("no more processes than before", _children, lambda now: len(now) <= len(before))


def _children() -> set[str]:
    """Processes below this one."""
    parents: dict[str, str] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[pid] = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
    found = {str(os.getpid())}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def test_client_that_ends_takes_its_ranks_along(program: Program, folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    script = program("import os, signal\nopen('fifo', 'w').write(str(os.getpid()))\nsignal.pause()", "sleeper.py")
    client = f"""
from monarch.actor import this_host
from monarch.spmd import run
running = run(this_host(), ["torchrun", {script!r}])
print(open("fifo").read())
"""
    done = subprocess.run([sys.executable, "-c", client], capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stderr
    pid = done.stdout.strip()
    assert pid.isdigit()
    eventually("the end of the rank", lambda: not os.path.exists(f"/proc/{pid}"))
