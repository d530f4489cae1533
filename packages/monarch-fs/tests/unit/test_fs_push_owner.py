"""Who owns what a push writes: users without privileges, directories of others, set-id bits; and pushes beside each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from fs_pushed_source import PushedSource, shown

from monarch.fs._push import push_record
from monarch.fs._push.push_counts import PushCounts
from monarch.fs._push.push_record import PushRecord

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: root is needed")
USER = 12345

# Pushes once as root, so that all modules are loaded, and then as the user.
SCRIPT = """
import json, os, sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from fs_pushed_source import PushedSource
source, first, *targets = map(Path, sys.argv[2:])
pushed = PushedSource(source)
pushed.push(first, set_id=True)
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
results = []
for target in targets:
    try:
        counts = pushed.push(target, set_id=True)
        results.append([counts.written, [list(failure)[:3] for failure in counts.failures]])
    except OSError as e:
        results.append([type(e).__name__, e.filename])
print(json.dumps(results))
"""


@pytest.fixture
def place() -> Generator[Path]:
    """A folder that every user may pass through, in contrast to those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "folder").mkdir(parents=True)
    (top / "folder" / "file").write_text("content")
    (top / "tool").write_text("#!/bin/sh\n")
    (top / "tool").chmod(0o6755)
    (top / "folder").chmod(0o555)
    return top


def push_as_user(source: Path, first: Path, *targets: Path) -> list[Any]:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    argv = [sys.executable, "-c", SCRIPT, path, *map(str, (source, first, *targets))]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=25)
    return json.loads(done.stdout)


@ROOT
def test_user_owns_what_is_pushed_as_the_user(source: Path, place: Path) -> None:
    target = place / "target"
    target.mkdir()
    os.chown(target, USER, USER)
    assert push_as_user(source, place / "first", target, target) == [[2, []], [0, []]]
    owners = {(found.lstat().st_uid, found.lstat().st_gid) for found in target.rglob("*")}
    assert owners == {(USER, USER)}
    # A program with the set-user-id bit of root does not get that of this user.
    assert (target / "tool").stat().st_mode & 0o7777 == 0o755
    assert (place / "first" / "tool").stat().st_mode & 0o7777 == 0o6755
    assert (target / "folder").stat().st_mode & 0o7777 == 0o555 and (target / "folder" / "file").read_text() == "content"


def test_set_id_bits_need_an_option(source: Path, place: Path) -> None:
    target, pushed = place / "target", PushedSource(source)
    (source / "folder").chmod(0o2755)
    assert pushed.push(target).written == 2
    assert (target / "tool").stat().st_mode & 0o7777 == 0o755
    assert pushed.push(target).written == 0
    pushed.push(target, set_id=True)
    assert (target / "tool").stat().st_mode & 0o7777 == 0o6755
    # And removed again.
    pushed.push(target)
    assert (target / "tool").stat().st_mode & 0o7777 == 0o755


@ROOT
def test_directories_of_others_are_named(source: Path, place: Path) -> None:
    others, partly = place / "others", place / "partly"
    others.mkdir()
    (partly / "folder").mkdir(parents=True)
    os.chown(partly, USER, USER)
    (place / "closed").mkdir(mode=0o700)
    targets = (others / "new", others, partly, place / "closed" / "target")
    new, own, part, closed = push_as_user(source, place / "first", *targets)
    assert new == ["PermissionError", str(others / "new")]
    assert (own[0], {path for path, _, _ in own[1]}) == (0, {str(others / "folder"), str(others / "tool"), f"{others}/"})
    assert all(reason == "Operation not permitted" or "denied" in reason for _, _, reason in (*own[1], *part[1]))
    # Files that belong to the user are written.
    assert part[0] == 1 and {path for path, _, _ in part[1]} == {str(partly / "folder"), str(partly / "folder" / "file")}
    assert closed == ["PermissionError", str(place / "closed" / "target")]
    assert list(others.iterdir()) == [] and list((partly / "folder").iterdir()) == []


@ROOT
def test_target_that_is_a_mount_is_filled(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(target)], check=True)
    try:
        (target / "more").write_text("x")
        counts = PushedSource(source).push(target, delete=True, set_id=True)
        assert (counts.failures, counts.deleted) == ([], 1)
        assert shown(target) == shown(source) and os.path.ismount(target)
    finally:
        subprocess.run(["umount", str(target)], check=True)


@ROOT
def test_mount_within_the_target_stays(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "tool").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(target / "tool")], check=True)
    try:
        (target / "tool" / "precious").write_text("x")
        for delete in (False, True):
            [failure] = PushedSource(source).push(target, delete=delete).failures
            assert failure.path == str(target / "tool")
        assert (target / "tool" / "precious").read_text() == "x"
    finally:
        subprocess.run(["umount", str(target / "tool")], check=True)


def test_target_link_means_its_directory(source: Path, tmp_path: Path) -> None:
    real, beside = tmp_path / "real", tmp_path / "beside"
    for folder in (real, beside):
        folder.mkdir()
        (folder / "more").write_text("x")
    (tmp_path / "target").symlink_to(real)
    (real / "up").symlink_to("..")
    (real / "beside").symlink_to(beside)
    assert PushedSource(source).push(tmp_path / "target", delete=True, set_id=True).deleted == 3
    assert (tmp_path / "target").is_symlink() and (beside / "more").exists()
    assert shown(real) == shown(source)


def test_pushes_into_one_target_follow_each_other(source: Path, tmp_path: Path) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    other.mkdir()
    for number in range(50):
        (source / f"file {number}").write_text(f"one {number}")
        (other / f"file {number}").write_text(f"another {number}")
    trees = {name: PushedSource(folder) for name, folder in (("one", source), ("another", other))}
    # A push that has started to fetch locks the target until its end.
    held, goes_on, ends = threading.Event(), threading.Event(), list[str]()

    def wait() -> None:
        held.set()
        assert goes_on.wait(20)

    def push(name: str) -> None:
        counts: PushCounts = trees[name].push(target, delete=True)
        assert counts.failures == []
        ends.append(name)

    trees["one"].before_fetch = wait
    first = threading.Thread(target=push, args=("one",))
    first.start()
    assert held.wait(20)
    second = threading.Thread(target=push, args=("another",))
    second.start()
    goes_on.set()
    for thread in (first, second):
        thread.join(20)
    assert ends == ["one", "another"]
    assert shown(target) == shown(other)


def test_old_records_are_removed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    pushed = PushedSource(source)
    for number in range(3):
        pushed.push(tmp_path / f"target-{number}", state=state)
    old = PushRecord.place(state, str(tmp_path / "target-1"))
    os.utime(old, (1, 1))
    monkeypatch.setattr(push_record, "_MOST_FILES", 2)
    pushed.push(tmp_path / "target-2", state=state)
    assert {path.name for path in state.iterdir()} == {PushRecord.place(state, str(tmp_path / f"target-{n}")).name for n in (0, 2)}
    assert pushed.push(tmp_path / "target-1", state=state).written == 0
