"""`monarch run`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., str]
MONARCH = str(Path(sys.executable).with_name("monarch"))


def monarch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MONARCH, "run", *words], capture_output=True, text=True, timeout=25)


def test_ranks_on_this_machine(program: Program) -> None:
    done = monarch("--nproc-per-node=2", program("import os, sys; print(os.environ['RANK'], sys.argv[1:])"), "--lr", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] 0 ['--lr', '1']", "[1] 1 ['--lr', '1']"]


def test_ranks_find_the_modules_imported(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("colorsys", "decimal", "wave")
    script = program(f"import os, sys; print(os.environ['RANK'], [name for name in {names} if name in sys.modules])")

    def found(*words: str) -> list[str]:
        done = monarch(*words, "--nproc-per-node=2", script)
        assert (done.returncode, done.stderr) == (0, "")
        return sorted(line.split(maxsplit=2)[2] for line in done.stdout.splitlines())

    assert found("--preload", "colorsys,decimal", "--preload", "wave") == [str([*names])] * 2
    monkeypatch.setenv("MONARCH_PRELOAD", "decimal wave")
    assert found() == ["['decimal', 'wave']"] * 2
    assert found("--preload", "") == ["[]"] * 2


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_exit_code_is_the_first_failed_ranks(program: Program, text: str, code: int) -> None:
    done = monarch(program(text))
    assert done.returncode == code and done.stderr.startswith("monarch: rank 0 ")


def test_replay_of_a_failure(program: Program, folder: Path) -> None:
    script = program("import os\nprint('world', os.environ['WORLD_SIZE'])\nif os.environ['RANK'] == '1': raise ValueError('again')")
    first = monarch("--nproc-per-node=3", script)
    found = re.search(r"record: (\S+)", first.stderr)
    assert first.returncode == 1 and found is not None, first.stderr
    second = monarch("--replay", found[1])
    assert second.returncode == 1 and "rank 1" in second.stderr and "raised ValueError: again" in second.stderr
    assert "[1] world 3" in second.stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--nproc-per-node=x", "a.py"], 2, "--nproc-per-node=x: expected a number"),
        (["--nproc_per_nod_e=2", "a.py"], 2, "did you mean --nproc-per-node?"),
        ([], 2, "a launch names a program"),
        (["--preload", "not-a-name", "a.py"], 2, "preload: 'not-a-name' is no name of a module"),
        (["--nnodes=2", "a.py"], 2, "--nnodes=2: the mesh has 1 host"),
        (["none.py"], 1, "program 'none.py' is not on this host"),
        (["--replay", "none.json"], 1, "none.json: No such file or directory"),
        (["--replay", "none.json", "a.py"], 2, "takes its command from the file"),
    ],
)
def test_mistakes_are_named(words: list[str], code: int, text: str) -> None:
    done = monarch(*words)
    assert done.returncode == code and text in done.stderr, done.stderr


def test_interrupt_ends_the_ranks(program: Program, folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    script = program("import os, signal\nopen('fifo', 'w').write(str(os.getpid()))\nsignal.pause()")
    with subprocess.Popen([MONARCH, "run", script], preexec_fn=_default_interrupt) as client:
        pid = (folder / "fifo").read_text()
        client.send_signal(signal.SIGINT)
        assert client.wait(timeout=20) == 130
    assert not os.path.exists(f"/proc/{pid}")


def _default_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
