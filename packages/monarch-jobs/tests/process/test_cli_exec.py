"""The verbs that run things on hosts, as commands of their own, on a job of this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pexpect
import pytest
from exec_scripts import Script

from monarch.job import LocalJob
from monarch.job._cli.hosts import Ports, parse

# The code of the installed entry points.
MAIN = """
import sys
from importlib import import_module
from monarch._core.cli import root
for module, verbs in {"exec": ["command"], "hosts": ["cp", "port_forward", "shell"], "job": ["kill"]}.items():
    for verb in verbs:
        root.root.add_command(getattr(import_module(f"monarch.job._cli.{module}"), verb))
root.main()
"""


@pytest.fixture(autouse=True)
def job(folder: Path) -> Path:
    """A current job with two meshes of one host each."""
    LocalJob(("first", "second")).state()
    return folder


def monarch(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", MAIN, *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=25, check=False)


def said(*words: str, stdin: str = "") -> str:
    done = monarch(*words, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.parametrize("options", [(), ("--one",), ("--mesh", "second"), ("--point", "gpus=1", "--per-host", "gpus=2")])
def test_one_rank_streams_as_it_is(options: tuple[str, ...]) -> None:
    done = monarch("exec", *options, "--", "sh", "-c", "echo out; echo err >&2; exit 5")
    assert (done.returncode, done.stdout, done.stderr) == (5, "out\n", "err\n")


def test_per_host_runs_all_processes_of_host_0() -> None:
    out = said("exec", "--per-host", "gpus=2", "--output-dir", "out", "sh", "-c", "echo $MONARCH_RANK_GPUS of $MONARCH_SIZE_GPUS")
    assert sorted(out.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]
    assert sorted(os.listdir("out")) == ["stderr_0.txt", "stderr_1.txt", "stdout_0.txt", "stdout_1.txt"]


def test_all_ranks_of_all_meshes_also_into_files() -> None:
    done = monarch(
        "exec", "--all", "--per-host", "gpus=2", "-e", "WORD=hello", "sh", "-c", "echo $WORD $MONARCH_RANK_GPUS; exit $MONARCH_RANK_GPUS"
    )
    assert done.returncode == 1
    assert sorted(done.stdout.splitlines()) == [f"[{mesh} {rank}] hello {rank}" for mesh in ("first", "second") for rank in (0, 1)]
    match = re.fullmatch(
        rf"monarch: output by rank on the hosts: ({re.escape(tempfile.gettempdir())}/monarch_exec_[0-9a-f]+)\n", done.stderr
    )
    assert match is not None, done.stderr
    place = Path(match[1])
    try:
        assert (place / "second/gpus_1/stdout.txt").read_text() == "hello 1\n"
        assert (place / "first/gpus_0/stderr.txt").read_text() == ""
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("closed", "shown"), [("<&-", ("out\n", "err\n")), (">&-", ("", "err\n")), ("2>&-", ("out\n", "")), ("<&- >&- 2>&-", ("", ""))]
)
def test_command_runs_with_closed_streams(closed: str, shown: tuple[str, str]) -> None:
    words = ["exec", "sh", "-c", "echo out; echo err >&2; exit 5"]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-W", "error", "-c", MAIN, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (5, *shown)


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        (["exec", "yes"], "monarch: stdout is not complete: No space left on device\n"),
        (["shell", "-e", "SHELL=/bin/sh"], "monarch: cannot show the output of the shell: No space left on device\n"),
    ],
)
def test_full_stdout_is_named(verb: list[str], text: str) -> None:
    command = [sys.executable, "-W", "error", "-c", MAIN, *verb]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, input="echo out\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=25, check=False)
    assert (done.returncode, done.stderr) == (130 if verb[0] == "exec" else 1, text)


def test_shell_without_stdout() -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-W", "error", "-c", MAIN, "shell", "-e", "SHELL=/bin/sh"]
    done = subprocess.run(command, input="exit 4\n", capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "")


def test_output_dir(folder: Path) -> None:
    out = said("exec", "--mesh", "first", "--per-host", "x=2", "--output-dir", f"{folder}/out/$SUBDIR", "echo", "word")
    assert sorted(out.splitlines()) == ["[0] word", "[1] word"]
    assert (folder / "out/x_1/stdout.txt").read_text() == "word\n"


def test_options_after_the_command_are_its_own() -> None:
    assert said("exec", "echo", "--all", "-m", "--help") == "--all -m --help\n"


def test_workdir_and_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSED_ON", "as it is here")
    assert said("exec", "--workdir", str(folder), "-e", "A=b=c", "-e", "PASSED_ON", "sh", "-c", "pwd; echo $A, $PASSED_ON") == (
        f"{folder}\nb=c, as it is here\n"
    )


def test_scripts_and_modules(folder: Path) -> None:
    (folder / "tool").write_text(f"#!{sys.executable} -I\nimport sys; print(sys.flags.isolated, sys.argv[1:])\n")
    (folder / "tool.py").write_text("import sys; print(__file__.endswith('/tool.py'), sys.argv[1:])\n")
    assert said("exec", "--script", str(folder / "tool"), "a", "b c") == "1 ['a', 'b c']\n"
    assert said("exec", "--script", str(folder / "tool.py"), "--", "-x") == "True ['-x']\n"
    assert said("exec", "--script", "-", "word", stdin='echo "$1" $#\n') == "word 1\n"
    assert said("exec", "-m", "platform") != ""
    assert not list(Path(tempfile.gettempdir()).glob("monarch-script-*/tool*"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no command"),
        (("--all", "--one", "true"), "exclude each other"),
        (("--mesh", "first", "--point", "x=0", "true"), "exclude each other"),
        (("--script", "-", "-m", "x"), "exclude each other"),
        (("--mesh", "third", "true"), "no mesh 'third' in this job, there is: first, second"),
        (("--point", "x=0", "true"), "no dimension 'x'"),
        (("--point", "x=1", "--per-host", "x=1", "true"), "out of range"),
        (("--per-host", "x", "true"), "expected dimension=number"),
        (("--per-host", "x=0", "true"), "positive"),
        (("-e", "=b", "true"), "expected NAME=VALUE"),
        (("--timeout", "0", "true"), "timeout"),
    ],
)
def test_usage(words: tuple[str, ...], text: str) -> None:
    done = monarch("exec", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_exit_codes() -> None:
    assert monarch("exec", "sh", "-c", "kill -15 $$").returncode == 143
    assert monarch("exec", "--timeout", "0.1", "sleep", "1000").returncode == 124
    done = monarch("exec", "no-such-program")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        127,
        f"monarch: cannot start 'no-such-program' on {os.uname().nodename}: No such file or directory (ENOENT)",
    )
    assert monarch("exec", "/etc/passwd").returncode == 126


def test_kill_afterwards(folder: Path) -> None:
    assert monarch("exec", "--kill", "sh", "-c", "exit 6").returncode == 6
    done = monarch("exec", "true")
    assert done.returncode == 3, done
    assert done.stderr.startswith("monarch: ")


def test_help_for_agents() -> None:
    text = said("exec", "--help")
    assert "Job reuse:" in text
    assert "--per-host" in text


def test_ctrl_c() -> None:
    words = "trap 'echo last words; exit 0' INT; echo ready; while :; do sleep 0.1; done"
    script = Script(f"sys.argv = ['monarch', 'exec', 'sh', '-c', {words!r}]{MAIN}")
    try:
        script.until("ready")
        script.send(signal.SIGINT)
    except BaseException:
        script.close()
        raise
    done = script.end()
    assert (done.code, done.out, done.err, done.left) == (130, "ready\nlast words\n", "", [])


def test_second_ctrl_c_kills_the_command() -> None:
    words = "trap 'echo once' INT; trap '' TERM; echo ready; while :; do sleep 0.1; done"
    script = Script(f"sys.argv = ['monarch', 'exec', 'sh', '-c', {words!r}]{MAIN}")
    try:
        script.until("ready")
        script.send(signal.SIGINT)
        script.until("once")
        script.send(signal.SIGINT)
    except BaseException:
        script.close()
        raise
    done = script.end()
    assert (done.code, done.err, done.left) == (130, "", [])


def test_closed_reader_ends_an_endless_command() -> None:
    script = Script(f"sys.argv = ['monarch', 'exec', 'yes']{MAIN}")
    try:
        script.until("y")
        assert script.process.stdout is not None
        script.process.stdout.close()
        assert script._wait(25) == 128 + signal.SIGINT
        assert script.left() == []
    finally:
        script.close()


def test_shell() -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        MAIN,
        "shell",
        "--mesh",
        "second",
        "-e",
        "SHELL=/bin/sh",
        "-e",
        "WORD=hi",
        "--workdir",
        "/",
    ]
    session = pexpect.spawn(command[0], command[1:], timeout=10, encoding="utf-8")
    try:
        session.sendline("echo $WORD-$PWD-; exit 9")
        session.expect("hi-/-")
        session.expect(pexpect.EOF)
        session.wait()
        assert session.exitstatus == 9
    finally:
        session.close(force=True)


def test_port_forward() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = Script(f"sys.argv = ['monarch', 'port-forward', 'second', '0:{port}', '127.0.0.2:0:{port}']{MAIN}")
        try:
            for host in ("127.0.0.1", "127.0.0.2"):
                line = script.until(host)
                match = re.fullmatch(rf"{host}:([0-9]+) -> second:{port}", line)
                assert match is not None, line
                with socket.create_connection((host, int(match[1]))) as client:
                    accepted, _ = server.accept()
                    with accepted:
                        accepted.sendall(b"hello")
                    assert client.recv(10) == b"hello"
            script.send(signal.SIGINT)
        except BaseException:
            script.close()
            raise
        done = script.end()
        assert (done.code, done.err, done.left) == (130, "", [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("80:8080",), (None, None, [Ports("80", 8080)])),
        (("8080",), (None, None, [Ports("8080", 8080)])),
        (("a", "0.0.0.0:80:8080", "81"), ("a", None, [Ports("0.0.0.0:80", 8080), Ports("81", 81)])),
        (("a:hosts=1,gpus=2", "[::1]:80:8080"), ("a", "hosts=1,gpus=2", [Ports("[::1]:80", 8080)])),
    ],
)
def test_port_mappings_are_parsed(words: tuple[str, ...], expected: object) -> None:
    assert parse(words) == expected


@pytest.mark.parametrize("words", [("a",), ("80:0",), ("a", "b"), ("80:99999",), ("x:y:z",)])
def test_invalid_port_mappings_are_refused(words: tuple[str, ...]) -> None:
    assert monarch("port-forward", *words).returncode == 2


def test_cp_to_and_fro(folder: Path) -> None:
    (folder / "tree/inner").mkdir(parents=True)
    (folder / "tree/inner/file").write_bytes(os.urandom(5_000_000))
    (folder / "tree/inner/file").chmod(0o640)
    (folder / "tree/link").symlink_to("inner/file")
    there, back = folder / "there", folder / "back"
    assert said("cp", "tree", f"first:{there}") == ""
    assert (there / "inner/file").read_bytes() == (folder / "tree/inner/file").read_bytes()
    assert (there / "inner/file").stat().st_mode & 0o777 == 0o640
    assert os.readlink(there / "link") == "inner/file"
    # The copy goes into an existing directory, under its own name.
    assert said("cp", f"second[]:{there}/inner/file", "tree") == ""
    assert (folder / "tree/file").read_bytes() == (there / "inner/file").read_bytes()
    assert said("cp", f"second:{there}", str(back)) == ""
    assert sorted(os.listdir(back)) == ["inner", "link"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("a", "b"), 2, "one of SRC and DST"),
        (("first:a", "second:b"), 2, "one of SRC and DST"),
        (("third:a", "b"), 2, "no mesh 'third'"),
        (("first[hosts=0]:a", "b"), 2, "no dimension 'hosts'"),
        (("first:/no/such/file", "b"), 1, "/no/such/file: No such file or directory"),
        (("/no/such/file", "first:b"), 1, "/no/such/file: No such file or directory"),
        (("/etc/hostname", "first:/proc/nowhere/x"), 1, "No such file or directory"),
    ],
)
def test_cp_that_fails(folder: Path, words: tuple[str, ...], code: int, text: str) -> None:
    done = monarch("cp", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "b").exists()


def test_cp_names_omitted_files(folder: Path) -> None:
    (folder / "tree").mkdir()
    os.mkfifo(folder / "tree/pipe")
    for words in (("tree", f"first:{folder}/there"), (f"first:{folder}/tree", "back")):
        done = monarch("cp", *words)
        assert (done.returncode, done.stderr) == (1, "monarch: left out: pipe: not a file, a directory or a link\n")


def test_without_a_job(folder: Path) -> None:
    shutil.rmtree(folder / ".monarch")
    codes: list[int] = []
    calls = [("exec", "true"), ("shell",), ("cp", "first:x", "y"), ("port-forward", "80")]
    threads = [threading.Thread(target=lambda call=call: codes.append(monarch(*call).returncode)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [3, 3, 3, 3]
