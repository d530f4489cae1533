"""What a push makes of a directory: the source's tree, nothing outside, and no torn file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fs_pushed_source import PushedSource, failed, shown

from monarch.fs._push.folder import TEMPORARY


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir(mode=0o750)
    (top / "small").write_bytes(b"small")
    (top / "nothing").write_bytes(b"")
    (top / "deep" / "large").write_bytes(os.urandom(3 << 20) + b"end")
    (top / "deep" / "er" / "program").write_bytes(b"#!/bin/sh\n")
    (top / "deep" / "er" / "program").chmod(0o755)
    os.link(top / "small", top / "deep" / "other name")
    (top / "link").symlink_to("deep/er")
    (top / "out").symlink_to("/etc/passwd")
    (top / os.fsdecode(b"\xff\n name")).write_bytes(b"odd")
    with (top / "holes").open("wb") as file:
        file.write(b"begin")
        file.seek(5 << 20)
        file.write(b"end")
    os.utime(top / "small", ns=(1, 10**18 + 7))
    os.utime(top / "deep", ns=(1, 10**18 + 9))
    return top


def test_target_equals_the_source(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "a" / "target"
    counts = PushedSource(source).push(target)
    assert (counts.failures, counts.unreadable, counts.files) == ([], [], 7)
    assert shown(target) == shown(source)
    assert (target / "holes").stat().st_blocks * 512 < 1 << 20
    assert (target / "small").stat().st_nlink == 2


@pytest.mark.parametrize("has_record", [True, False])
def test_unchanged_files_are_not_written(source: Path, tmp_path: Path, has_record: bool) -> None:
    pushed, target, state = PushedSource(source), tmp_path / "target", tmp_path / "state" if has_record else None
    pushed.push(target, state=state)
    before = {path: (target / os.fsdecode(path)).lstat().st_ino for path in shown(target)}
    counts = pushed.push(target, state=state)
    assert (counts.written, pushed.fetched) == (0, 0)
    assert before == {path: (target / os.fsdecode(path)).lstat().st_ino for path in shown(target)}


@pytest.mark.parametrize("has_record", [True, False])
def test_equal_size_and_mtime_hide_no_edit(source: Path, tmp_path: Path, has_record: bool) -> None:
    target, state = tmp_path / "target", tmp_path / "state" if has_record else None
    PushedSource(source).push(target, state=state)
    kept = (source / "small").stat()
    (source / "small").write_bytes(b"SMALL")
    os.utime(source / "small", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    counts = PushedSource(source).push(target, state=state)
    assert counts.written == 1 and shown(target) == shown(source)


def test_edits_of_the_target_are_undone(source: Path, tmp_path: Path) -> None:
    pushed, target = PushedSource(source), tmp_path / "target"
    pushed.push(target, state=tmp_path / "state")
    (target / "deep" / "large").write_bytes(b"short")
    (target / "nothing").chmod(0o600)
    (target / "link").unlink()
    (target / "link").mkdir()
    (target / "empty").rmdir()
    (target / "empty").write_bytes(b"a file")
    assert pushed.push(target, state=tmp_path / "state").written == 1
    assert shown(target) == shown(source)


def test_delete_removes_what_the_source_lacks(source: Path, tmp_path: Path) -> None:
    pushed, target = PushedSource(source), tmp_path / "target"
    pushed.push(target)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    (target / "more" / "below").mkdir(parents=True)
    (target / "more" / "below" / "file").write_bytes(b"x")
    (target / "more" / "way out").symlink_to(outside)
    (target / "deep" / "way out").symlink_to(outside)
    (target / ".monarch").mkdir()
    assert pushed.push(target).deleted == 0 and (target / "more").exists()
    assert pushed.push(target, delete=True).deleted == 5
    assert (outside / "precious").read_bytes() == b"x"
    assert (target / ".monarch").is_dir()
    (target / ".monarch").rmdir()
    os.utime(target, ns=(1, source.stat().st_mtime_ns))
    assert shown(target) == shown(source)


def test_failed_push_removes_nothing(source: Path, tmp_path: Path) -> None:
    pushed, target = PushedSource(source), tmp_path / "target"
    target.mkdir()
    (target / "more").write_bytes(b"x")
    id = next(iter(pushed.chunks))
    pushed.broken[id] = failed("the source left")
    counts = pushed.push(target, delete=True)
    assert [failure.reason for failure in counts.failures] == ["the source left"] and counts.failures[0].path.startswith(str(target))
    assert (target / "more").exists() and counts.deleted == 0
    # The others were written.
    assert counts.written == 5


def test_directory_in_the_way_needs_delete(source: Path, tmp_path: Path) -> None:
    pushed, target = PushedSource(source), tmp_path / "target"
    (target / "small" / "below").mkdir(parents=True)
    (target / "nothing").mkdir()
    counts = pushed.push(target)
    assert [failure.path for failure in counts.failures] == [str(target / "small")] and "delete=True" in counts.failures[0].reason
    assert (target / "nothing").is_file()
    assert pushed.push(target, delete=True).failures == []
    assert shown(target) == shown(source)


def test_planted_links_lead_nowhere(source: Path, tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    (outside / "er").mkdir(parents=True)
    (outside / "small").write_bytes(b"precious")
    (outside / "small").chmod(0o600)
    target.mkdir()
    (target / "deep").symlink_to(outside)
    (target / "small").symlink_to(outside / "small")
    os.link(outside / "small", target / "nothing")
    before = shown(outside)
    assert PushedSource(source).push(target).failures == []
    assert shown(outside) == before and shown(target) == shown(source)


def test_shared_inode_keeps_its_attributes(source: Path, tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.write_bytes(b"")
    outside.chmod(0o600)
    os.link(outside, target / "nothing")
    assert PushedSource(source).push(target).failures == []
    assert outside.stat().st_mode & 0o777 == 0o600 and outside.stat().st_nlink == 1


def test_directory_swapped_for_a_link_is_safe(source: Path, tmp_path: Path) -> None:
    pushed, target, outside = PushedSource(source), tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    (outside / "er").mkdir()

    def swap() -> None:
        if not (target / "deep").is_symlink():
            (target / "deep").rename(tmp_path / "moved")
            (target / "deep").symlink_to(outside)

    pushed.before_fetch = swap
    counts = pushed.push(target)
    assert {failure.path for failure in counts.failures} >= {str(target / "deep" / "large"), str(target / "deep" / "er" / "program")}
    assert shown(outside).keys() == {b"er"}


def test_files_never_appear_torn(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    contents = [bytes([letter]) * 300_000 for letter in b"ab"]
    trees: list[PushedSource] = []
    for content in contents:
        (source / "changing").write_bytes(content)
        trees.append(PushedSource(source))
    trees[0].push(target)
    torn: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            if (found := (target / "changing").read_bytes()) not in contents:
                torn.append(len(found))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(20):
            assert trees[(number + 1) % 2].push(target).written == 1
    finally:
        stop.set()
        reader.join()
    assert torn == []


KILLED = """
import os, sys
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
from pathlib import Path
from fs_pushed_source import PushedSource
from monarch.fs._push import file_writer
write = file_writer.FileWriter.write
def killed(self, data, size):
    write(self, data, size)
    if self._offset > 1 << 20:
        os.kill(os.getpid(), 9)
file_writer.FileWriter.write = killed
PushedSource(Path(sys.argv[2])).push(sys.argv[3])
"""


def test_killed_push_leaves_no_torn_file(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "deep").mkdir(parents=True)
    (target / "deep" / "large").write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(Path(__file__).parent), str(source), str(target)], timeout=25)
    assert done.returncode == -signal.SIGKILL
    assert (target / "deep" / "large").read_bytes() == b"old"
    assert any(name.startswith(TEMPORARY) for name in map(os.path.basename, shown(target)))
    assert PushedSource(source).push(target).failures == []
    assert shown(target) == shown(source)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs: root is needed")
def test_full_disk_leaves_whole_files(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(target)], check=True)
    try:
        counts = PushedSource(source).push(target, delete=True)
        assert counts.failures[-1].path == str(target / "deep" / "large") and "space" in counts.failures[-1].reason
        here, there = shown(target), shown(source)
        assert b"deep/large" not in here
        assert all(values[2] == there[path][2] for path, values in here.items() if values[2] and not isinstance(values[2], tuple))
        assert not any(os.path.basename(path).startswith(TEMPORARY) for path in here)
    finally:
        subprocess.run(["umount", str(target)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs: root is needed")
def test_delete_does_not_enter_mounts(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    inner = target / "more" / "mounted"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(inner)], check=True)
    try:
        (inner / "precious").write_bytes(b"x")
        counts = PushedSource(source).push(target, delete=True)
        assert "mounted" in counts.failures[0].reason and (inner / "precious").exists()
    finally:
        subprocess.run(["umount", str(inner)], check=True)
