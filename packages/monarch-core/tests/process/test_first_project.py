"""`monarch demo` and `monarch init`: the first commands of a new user, in fresh processes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch._core.cli.starter import FILES

MONARCH = [sys.executable, "-c", "from monarch._core.cli import main; main()"]


def run(*argv: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*argv], cwd=folder, capture_output=True, text=True, timeout=60, check=False, **options)


def test_demo_shows_calls_and_a_kill(tmp_path: Path) -> None:
    done = run(*MONARCH, "demo", "--pause", "0", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Killed(sig=9)" in done.stdout
    assert "'columns': 3/4}, 1))" in done.stdout
    assert done.stdout.rstrip().endswith("writes a first project")


def test_demo_ends_with_the_error_of_a_step(tmp_path: Path) -> None:
    def limit() -> None:
        # Enough for the interpreter, and too few for the runtime.
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    done = run(*MONARCH, "demo", "--pause", "0", folder=tmp_path, preexec_fn=limit)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("Error: ") and "Too many open files" in done.stderr
    assert "next:" not in done.stdout


def test_commands_run_in_a_removed_folder(tmp_path: Path) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = run("sh", "-c", script, "sh", *MONARCH, "init", str(tmp_path / "project"), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"cd {tmp_path}/project\n" in done.stdout
    done = run("sh", "-c", script, "sh", *MONARCH, "init", "project", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "Error: project: No such file or directory\n")


def test_init_on_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, 1 << 10))

    done = run(*MONARCH, "init", "project", folder=tmp_path, preexec_fn=limit)
    assert (done.returncode, done.stderr) == (1, "Error: project: File too large\n")
    assert not list((tmp_path / "project").iterdir())


def test_project_runs_and_its_test_passes(tmp_path: Path) -> None:
    folder = tmp_path / "with space" / "project"
    done = run(*MONARCH, "init", str(folder), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"cd '{folder}'\npython work.py" in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    program = run(sys.executable, "work.py", folder=folder)
    assert (program.returncode, program.stderr) == (0, "")
    assert "x = 2: the mean of 2 workers is 4.5" in program.stdout
    test = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=folder)
    assert "1 passed" in test.stdout, test.stdout


def test_init_of_this_folder_needs_no_cd(tmp_path: Path) -> None:
    done = run(*MONARCH, "init", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cd " not in done.stdout


@pytest.mark.parametrize("name", ["work.py", "test_work.py"])
def test_init_overwrites_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    done = run(*MONARCH, "init", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"Error: {name} exists: choose another folder, or move the file away\n"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_init_below_a_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(*MONARCH, "init", "file/project", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "Error: file/project: Not a directory\n")
