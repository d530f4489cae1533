"""What a command runs in, where, and how it ended."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest
from exec_scripts import wait_for_end

from monarch.actor import Future, this_host
from monarch.job import ExecError, exec_command


def run(*words: str, **options: object) -> int:
    return exec_command(this_host(), list(words), **options).get()  # type: ignore[arg-type]


def test_exit_code() -> None:
    assert run("true") == 0
    assert run("sh", "-c", "exit 3") == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_signal_counts_as_128_and_its_number(number: signal.Signals) -> None:
    assert run("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$") == 128 + number


def test_result_is_the_largest_code_of_all_ranks() -> None:
    assert run("sh", "-c", "exit $MONARCH_RANK_GPUS", per_host={"gpus": 3}) == 2


def test_command_starts_at_the_call_and_outlives_timeouts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "go")
    future: Future[int] | None = exec_command(
        this_host(), ["sh", "-c", f"echo x > {tmp_path}/begun; read x < {tmp_path}/go; echo done > {tmp_path}/begun"]
    )
    assert (tmp_path / "begun").read_text() == "x\n"
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    del future
    (tmp_path / "go").write_text("go\n")
    assert (tmp_path / "begun").read_text() == "done\n"


def test_result_is_available_after_a_timeout_of_get(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    future = exec_command(this_host(), ["sh", "-c", f"read x < {tmp_path}/go; exit 4"])
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    (tmp_path / "go").write_text("go\n")
    assert future.get() == 4
    assert future.get() == 4


def test_coordinates_are_in_the_environment(capfd: pytest.CaptureFixture[str]) -> None:
    words = 'echo "$MONARCH_RANK_gpus/$MONARCH_SIZE_gpus $MONARCH_RANK_GPUS/$MONARCH_SIZE_GPUS $MONARCH_RANK_x/$MONARCH_SIZE_X"'
    assert run("sh", "-c", words, per_host={"x": 2, "gpus": 2}) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] 0/2 0/2 0/2", "[1] 1/2 1/2 0/2", "[2] 0/2 0/2 1/2", "[3] 1/2 1/2 1/2"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"rank": 0}, ["[0] 0 0", "[1] 0 1", "[2] 1 0", "[3] 1 1"]),
        ({"point": {"x": 1, "gpus": 1}}, ["1 1"]),
        ({"point": {"x": 1, "gpus": 0}}, ["1 0"]),
        ({"point": {"x": 1}}, ["[2] 1 0", "[3] 1 1"]),
    ],
)
def test_command_runs_on_chosen_ranks(capfd: pytest.CaptureFixture[str], where: dict[str, object], expected: list[str]) -> None:
    assert run("sh", "-c", "echo $MONARCH_RANK_x $MONARCH_RANK_gpus", per_host={"x": 2, "gpus": 2}, **where) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == expected


def test_processes_of_a_host_write_files_by_rank(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "echo out $MONARCH_RANK_GPUS; echo err >&2"
    assert run("sh", "-c", words, per_host={"x": 1, "gpus": 2}, output_dir=str(tmp_path / "out")) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["stderr_0.txt", "stderr_1.txt", "stdout_0.txt", "stdout_1.txt"]
    assert (tmp_path / "out/stdout_1.txt").read_text() == "out 1\n"
    assert run("echo", "again", per_host={"gpus": 2}, point={"gpus": 1}, output_dir=str(tmp_path / "out")) == 0
    assert (tmp_path / "out/stdout.txt").read_text() == "again\n"
    assert capfd.readouterr().out == ""


def test_environment_and_folder(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("sh", "-c", 'echo "$HELLO"; pwd', env={"HELLO": "wörld = 1"}, workdir=str(tmp_path)) == 0
    assert capfd.readouterr().out == f"wörld = 1\n{tmp_path}\n"


def test_stdin_is_empty(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("sh", "-c", "cat; echo end") == 0
    assert capfd.readouterr().out == "end\n"


def test_python_files_and_modules_run_in_hosts_interpreter(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("import sys\nprint(sys.executable, sys.argv[1:])\nsys.exit(3)\n")
    assert run("tool.py", "a", workdir=str(tmp_path)) == 3
    assert run("-m", "tool", "b", env={"PYTHONPATH": str(tmp_path)}) == 3
    assert capfd.readouterr().out == f"{sys.executable} ['a']\n{sys.executable} ['b']\n"


def test_command_has_its_own_group_and_default_signals(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, signal\n"
        "print(os.getpid() == os.getpgid(0), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.pthread_sigmask(0, []))"
    )
    assert run(sys.executable, "-c", code) == 0
    assert capfd.readouterr().out == "True True set()\n"


def test_no_descriptor_leaks_into_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("sh", "-c", "ls /proc/self/fd | wc -l") == 0
    # The count is its three files, and the folder that it lists.
    assert capfd.readouterr().out.strip() == "4"


@pytest.mark.parametrize(
    ("words", "options", "number", "word"),
    [
        (["/no/such/program", "a b"], {}, errno.ENOENT, "/no/such/program"),
        (["no-such-program"], {}, errno.ENOENT, "no-such-program"),
        (["/etc/passwd"], {}, errno.EACCES, "/etc/passwd"),
        (["true"], {"workdir": "/no/such/folder"}, errno.ENOENT, "/no/such/folder"),
        (["true"], {"output_dir": "/proc/nowhere"}, errno.ENOENT, "/proc/nowhere"),
    ],
)
def test_command_that_cannot_start_is_an_error(words: list[str], options: dict[str, str], number: int, word: str) -> None:
    error = exec_command(this_host(), words, **options).exception()  # type: ignore[arg-type]
    assert isinstance(error, ExecError)
    assert (error.errno, error.host, error.command) == (number, os.uname().nodename, tuple(words))
    assert str(error).startswith(f"cannot start '{word}' on {os.uname().nodename}: {os.strerror(number)}")
    assert f"command: {' '.join(words)}" in str(error)


def test_rank_without_output_folder_does_not_stop_others(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "0").symlink_to("/bin/echo")
    words = ["sh", "-c", "true"]
    future = exec_command(this_host(), words, per_host={"gpus": 2}, output_dir=str(tmp_path / "gpus_1/file/$SUBDIR"))
    assert future.get() == 0
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gpus_1").write_text("in the way")
    failed = exec_command(this_host(), ["sh", "-c", "echo ran"], per_host={"gpus": 2}, output_dir=str(tmp_path / "out/$SUBDIR"))
    assert isinstance(failed.exception(), ExecError)
    assert (tmp_path / "out/gpus_0/stdout.txt").read_text() == "ran\n"
    assert capfd.readouterr().err.startswith("[1] cannot start")


@pytest.mark.parametrize(
    ("words", "options", "text"),
    [
        ([], {}, "list of words"),
        ("true", {}, "list of words"),
        (["a\0b"], {}, "null"),
        (["a\ud800"], {}, "lone surrogates"),
        (["true"], {"env": {"A": "\ud800"}}, "environment variable"),
        (["true"], {"env": {3: "c"}}, "environment variable"),
        (["true"], {"workdir": Path("/")}, "workdir is text"),
        (["true"], {"workdir": "a\0b"}, "workdir is text"),
        (["true"], {"output_dir": "\ud800"}, "output_dir is text"),
        (["true"], {"timeout": "1"}, "timeout '1'"),
        (["true"], {"env": {"A=B": "c"}}, "environment variable"),
        (["true"], {"rank": 0, "point": {}}, "exclude"),
        (["true"], {"rank": 1}, "rank 1"),
        (["true"], {"point": {"hosts": 0}}, "no dimension 'hosts'"),
        (["true"], {"point": {"x": 2}, "per_host": {"x": 2}}, "out of range"),
        (["true"], {"per_host": {"x": 0}}, "positive"),
        (["true"], {"timeout": 0}, "timeout"),
        (["true"], {"rank": 1, "per_host": {"x": 2}}, "rank 1"),
    ],
)
def test_invalid_arguments_are_refused_first(words: list[str], options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        exec_command(this_host(), words, **options)  # type: ignore[arg-type]


def test_nothing_is_left_of_its_group(tmp_path: Path) -> None:
    assert run("sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid") == 0
    assert wait_for_end(int((tmp_path / "pid").read_text()))


def test_process_outside_the_group_survives(tmp_path: Path) -> None:
    assert (
        run(
            "sh",
            "-c",
            f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' > /dev/null 2>&1 & while ! [ -s {tmp_path}/pid ]; do :; done",
        )
        == 0
    )
    fd = os.pidfd_open(int((tmp_path / "pid").read_text()))
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    os.close(fd)


def test_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("sleep", "1000", timeout=0.01) == 124
    monkeypatch.setattr("monarch.job._host.command.GRACE", 0.05)
    assert run("sh", "-c", "trap '' INT TERM; while :; do sleep 1; done", timeout=0.1) == 124


def test_command_ended_before_its_timeout_keeps_its_code() -> None:
    # Its child, which holds the output, is ended after that time.
    assert run("sh", "-c", "sleep 1000 & exit 5", timeout=0.5) == 5


def test_unreached_timeout_has_no_effect() -> None:
    assert run("sh", "-c", "exit 5", timeout=1000) == 5


def test_results_are_seen_by_several_at_once() -> None:
    futures = [exec_command(this_host(), ["sh", "-c", f"exit {n}"]) for n in range(5)]
    assert [future.get() for future in futures] == list(range(5))
