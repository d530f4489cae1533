"""Pushes to hosts: real files, each content sent once, failures of hosts that name them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fs_push_hosts import push_hosts

from monarch.actor import this_host
from monarch.fs import FsError
from monarch.fs._push.push import push

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="hosts have mount namespaces of their own: root is needed")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "package").mkdir(parents=True)
    (top / "package" / "module.py").write_text("VALUE = 1\n")
    (top / "large").write_bytes(os.urandom(3 << 20))
    (top / "left out").mkdir()
    (top / "left out" / "file").write_text("x")
    (top / ".gitignore").write_text("left out\n")
    return top


def content(folder: Path) -> dict[str, Any]:
    files = [place for place in folder.rglob("*") if place.is_file()]
    return {str(place.relative_to(folder)): (place.read_bytes(), place.stat().st_mtime_ns, place.stat().st_mode) for place in files}


def test_this_host_gets_real_files(path: list[str], source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    report = push(this_host(), source, str(target), gitignore=False).get(timeout=25)
    assert (report.hosts, report.files, report.files_written) == (1, 4, 4)
    assert report.bytes_sent == report.bytes_written == sum(len(values[0]) for values in content(target).values())
    expected = content(source)
    assert content(target) == expected
    (target / "package" / "module.py").write_text("VALUE = 2\n")
    again = push(this_host(), source, str(target), gitignore=False).get(timeout=25)
    assert (again.files_written, again.bytes_sent) == (1, 0)
    assert content(target) == expected


def test_ignored_files_are_left_out(path: list[str], source: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    push(this_host(), source, str(tmp_path / "target"), exclude=(".monarch", ".git")).get(timeout=25)
    expected = {name: values for name, values in content(source).items() if not name.startswith((".git/", "left out"))}
    assert content(tmp_path / "target") == expected


@pytest.mark.parametrize("place", ["{source}", "{source}/below", "{source}/.."])
def test_target_that_overlaps_the_source_is_refused(path: list[str], source: Path, place: str) -> None:
    before = content(source)
    with pytest.raises(ValueError, match="overlaps with the source"):
        push(this_host(), source, place.format(source=source), delete=True, gitignore=False).get(timeout=25)
    assert content(source) == before


def test_wrong_arguments_are_named(path: list[str], source: Path) -> None:
    with pytest.raises(ValueError, match="target 'relative' is no absolute path"):
        push(this_host(), source, "relative")
    with pytest.raises(FileNotFoundError, match="none' does not exist"):
        push(this_host(), source / "none", "/srv/env")
    with pytest.raises(NotADirectoryError, match="large' is no directory"):
        push(this_host(), source / "large", "/srv/env")
    with pytest.raises(ValueError, match="neither a conda environment"):
        push(this_host(), source, "/srv/env", relocate=True)


@ROOT
def test_each_content_is_sent_once(path: list[str], source: Path, tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", [tmp_path / f"host-{number}" for number in range(3)]
    for folder in (shared, *own):
        folder.mkdir()
    with push_hosts(str(shared), own, path) as (hosts, _):
        report = push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25)
    assert [content(folder / "code") for folder in own] == [content(source)] * 3
    assert (report.hosts, report.files_written) == (3, 12)
    assert report.bytes_sent <= 2 * sum(len(values[0]) for values in content(source).values())
    assert report.bytes_written == 3 * sum(len(values[0]) for values in content(source).values())


@ROOT
def test_failed_host_is_named_and_others_complete(path: list[str], source: Path, tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", [tmp_path / f"host-{number}" for number in range(2)]
    for folder in (shared, *own):
        folder.mkdir()
    (own[1] / "code").write_text("a file is in the way")
    with push_hosts(str(shared), own, path) as (hosts, _):
        with pytest.raises(FsError, match="1 of 2 hosts could not be pushed to") as error:
            push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25)
    assert f"{shared}/code" in str(error.value) and "File exists" in str(error.value)
    assert content(own[0] / "code") == content(source)
    assert (own[1] / "code").read_text() == "a file is in the way"


@ROOT
def test_pushed_venv_runs_on_the_host(path: list[str], tmp_path: Path) -> None:
    source, shared, own = tmp_path / "venv", tmp_path / "shared", tmp_path / "host"
    for folder in (shared, own):
        folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(source)], check=True, timeout=25)
    (source / ".gitignore").write_text("*\n")
    (source / "bin" / "tool").write_text(f"#!{source}/bin/python\nimport sys\nprint(sys.prefix)\n")
    (source / "bin" / "tool").chmod(0o755)
    with push_hosts(str(shared), [own], path) as (hosts, workers):
        report = push(hosts, source, f"{shared}/env", relocate=True).get(timeout=25)
        assert report.prefix_left == []
        entered = ["nsenter", "--mount", "--target", str(workers[0].pid), f"{shared}/env/bin/tool"]
        done = subprocess.run(entered, check=True, capture_output=True, text=True, timeout=25)
    assert done.stdout == f"{shared}/env\n"


@ROOT
def test_lost_host_does_not_hang_the_push(path: list[str], source: Path, tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", [tmp_path / f"host-{number}" for number in range(2)]
    for folder in (shared, *own):
        folder.mkdir()
    with push_hosts(str(shared), own, path) as (hosts, workers):
        push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25)
        workers[1].send_signal(signal.SIGKILL)
        (source / "package" / "module.py").write_text("VALUE = 3\n")
        with pytest.raises(Exception) as error:
            push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25)
    assert not isinstance(error.value, TimeoutError)
