"""Output: which stream, in what order, all of it, and never more of it in memory than there is room for."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path

import pytest
from exec_scripts import Script, all_end

from monarch.actor import this_host
from monarch.job import exec_command
from monarch.job._client.exec import make_target, start


def run(*words: str, **options: object) -> int:
    return exec_command(this_host(), list(words), **options).get()  # type: ignore[arg-type]


def test_each_stream_goes_to_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("sh", "-c", "echo out; echo err >&2; printf 'no end'") == 0
    assert capfd.readouterr() == ("out\nno end", "err\n")


def test_lines_of_several_ranks_have_their_rank(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("sh", "-c", "echo a; echo; printf b; echo c >&2", per_host={"gpus": 2}) == 0
    out, err = capfd.readouterr()
    for rank in "01":
        assert [line for line in out.splitlines() if line.startswith(f"[{rank}]")] == [f"[{rank}] a", f"[{rank}] ", f"[{rank}] b"]
    assert sorted(err.splitlines()) == ["[0] c", "[1] c"]
    assert out.count("\n") == 6


def test_output_is_shown_immediately() -> None:
    script = Script("""
    fifo = sys.argv[0] + ".fifo"
    os.mkfifo(fifo)
    future = exec_command(this_host(), ["sh", "-c", f"echo first; read x < {fifo}; echo second $x"])
    say(f"code {future.get()}")
    os.unlink(fifo)
    """)
    try:
        script.until("first")
        Path(f"{script.path}.fifo").write_text("go\n")
        script.until("second go")
        script.until("code 0")
    except BaseException:
        script.close()
        raise
    script.end().assert_clean()


def test_characters_that_are_split_across_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    # Two processes write the two bytes of the character, the second when the first has been shown.
    future = exec_command(this_host(), ["sh", "-c", rf"printf 'a\303'; read x < {tmp_path}/go; printf '\244b\377'"])
    (tmp_path / "go").write_text("go\n")
    assert future.get() == 0
    assert shown.getvalue() == "aäb�"


def test_any_bytes_arrive_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"
    assert run(sys.executable, "-c", code) == 0
    assert capfdbinary.readouterr().out == bytes(range(256)) * 1000


def test_unfinished_lines_of_ranks_are_not_mixed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run("sh", "-c", "head -c 300000 /dev/zero", per_host={"gpus": 2}) == 0
    out = capfdbinary.readouterr().out
    assert out.count(b"\0") == 600_000
    assert all(line.startswith((b"[0] ", b"[1] ")) for line in out.splitlines())


def test_64_mib_arrive_whole_and_in_order() -> None:
    code = "import sys\nfor i in range(1 << 20): sys.stdout.write(f'{i:063d}\\n')"
    script = Script(f"say('code ' + str(exec_command(this_host(), [sys.executable, '-c', {code!r}]).get()))")
    digest, size = hashlib.sha256(), 0
    stream = script.process.stdout
    assert stream is not None
    for i in range(1 << 20):
        line = stream.readline()
        size += len(line)
        assert int(line) == i
        digest.update(line)
    assert size == 64 << 20
    script.until("code 0")
    script.end().assert_clean()


def test_paused_reader_pauses_the_command(tmp_path: Path) -> None:
    """An endless command gets as far as the buffers on its way are large, and not further, until a process reads."""
    code = f"""
import os
written = 0
os.mkfifo("{tmp_path}/stuck")
os.set_blocking(1, False)
import select
poll = select.poll(); poll.register(1, select.POLLOUT)
while written < 64 << 20:
    if not poll.poll(500):
        with open("{tmp_path}/stuck", "w") as f:
            f.write(str(written))
        poll.poll()
    written += os.write(1, b"x" * 4096)
"""
    script = Script(f"""
    future = exec_command(this_host(), [sys.executable, "-c", {code!r}])
    eventually("the command is stuck", lambda: os.path.exists("{tmp_path}/stuck"))
    with open("{tmp_path}/stuck") as stuck:
        print(stuck.read(), file=sys.stderr, flush=True)
    os._exit(0)
    """)
    try:
        assert script._wait(25) == 0
        script.err.seek(0)
        # The bound covers the pipes, the buffer of the proc, and output in flight; the script itself reads nothing.
        assert 0 < int(script.err.read()) < 4 << 20
        assert all_end(script)
    finally:
        script.close()


def test_files_instead_of_streams(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "all" / "$SUBDIR")
    assert run("sh", "-c", "echo out $MONARCH_RANK_GPUS; echo err >&2", per_host={"x": 1, "gpus": 2}, output_dir=folder) == 0
    assert capfd.readouterr() == ("", "")
    for rank in (0, 1):
        assert (tmp_path / f"all/x_0_gpus_{rank}/stdout.txt").read_text() == f"out {rank}\n"
        assert (tmp_path / f"all/x_0_gpus_{rank}/stderr.txt").read_text() == "err\n"


def test_files_of_a_mesh_without_dimensions(tmp_path: Path) -> None:
    assert run("echo", "out", output_dir=str(tmp_path / "$SUBDIR")) == 0
    assert (tmp_path / "stdout.txt").read_text() == "out\n"


def test_output_after_the_commands_end_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("bash", "-c", "exec > >(while read x; do echo late $x; done); echo line; exit 6") == 6
    assert capfd.readouterr().out == "late line\n"


def test_daemon_with_the_pipe_does_not_delay_results(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' & while ! [ -s {tmp_path}/pid ]; do :; done; echo end"
    try:
        assert run("sh", "-c", words) == 0
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)
    assert capfd.readouterr().out == "end\n"


def test_client_without_streams_gets_the_code() -> None:
    script = Script("""
    os.close(0)
    sys.stdout = None
    os.close(1)
    code = exec_command(this_host(), ["sh", "-c", "cat; echo lost; exit 3"]).get()
    print(code, file=sys.stderr)
    """)
    done = script.end()
    done.assert_clean(err="3\n")


def test_closed_reader_does_not_change_the_code() -> None:
    script = Script("""
    say("ready")
    sys.stdin = None
    code = exec_command(this_host(), ["sh", "-c", "sleep 0.1; echo lost; echo lost; exit 3"]).get()
    print(code, file=sys.stderr, flush=True)
    os._exit(0)
    """)
    try:
        script.until("ready")
        assert script.process.stdout is not None
        script.process.stdout.close()
        assert script._wait(25) == 0
        script.err.seek(0)
        assert script.err.read() == "3\n"
        assert all_end(script)
    finally:
        script.close()


def test_full_disk_is_named_and_the_command_continues(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "stdout.txt").symlink_to("/dev/full")
    # `monarch exec --output-dir` does the same: output is shown, and kept.
    target = make_target(this_host(), ["sh", "-c", "echo out; exit 3"], folder=str(tmp_path), streams=True)
    assert start([target])[1].get() == 3
    assert capfd.readouterr() == ("out\n", f"monarch: {tmp_path}/stdout.txt is not complete: No space left on device\n")
