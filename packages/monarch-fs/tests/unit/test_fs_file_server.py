"""What a host answers about a gathered tree, and the changes that it reports."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from monarch.fs._gather import file_server, watcher
from monarch.fs._gather.file_server import FileServer
from monarch.fs._gather.watcher import Changed
from monarch.fs._tree.point_key import point_key, points, remote_path

Reports = Queue[list[Changed] | None]
Start = Callable[..., tuple[FileServer, Reports]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[FileServer] = []

    def begin(path: Path = tmp_path, **options: int) -> tuple[FileServer, Reports]:
        reports: Reports = Queue()
        started.append(FileServer(str(path), reports.put, **options))
        return started[-1], reports

    yield begin
    for server in started:
        server.close()


def until(reports: Reports, wanted: Changed) -> None:
    while True:
        if wanted in (reports.get(timeout=20) or ()):
            return


def test_read_is_bounded(start: Start, tmp_path: Path) -> None:
    os.truncate(os.open(tmp_path / "large", os.O_CREAT | os.O_RDWR), 300 << 20)
    server, _ = start()
    attr = server.attr(b"large")
    assert attr.size == 300 << 20
    assert len(server.read(b"large", attr.identity, 1 << 20, 128 << 10).data) == 128 << 10
    assert len(server.read(b"large", attr.identity, 0, 1 << 30).data) == file_server.LARGEST_READ


def test_truncated_file_gives_a_short_read(start: Start, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 1000)
    server, _ = start()
    attr = server.attr(b"log")
    os.truncate(tmp_path / "log", 10)
    part = server.read(b"log", attr.identity, 5, 1000)
    assert part.data == b"xxxxx"
    assert part.attr.size == 10


def test_held_file_is_read_after_a_rotation(start: Start, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("old")
    server, _ = start()
    held = server.attr(b"log").identity
    server.hold(b"log", held)
    os.rename(tmp_path / "log", tmp_path / "log.1")
    (tmp_path / "log").write_text("new")
    assert server.read(b"log", held, 0, 10).data == b"old"
    assert server.read(b"log", server.attr(b"log").identity, 0, 10).data == b"new"


def test_other_file_of_a_name_is_stale(start: Start, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("old")
    server, _ = start()
    old = server.attr(b"log").identity
    (tmp_path / "other").write_text("new")
    os.rename(tmp_path / "other", tmp_path / "log")
    with pytest.raises(OSError) as caught:
        server.read(b"log", old, 0, 10)
    assert caught.value.errno == errno.ESTALE


def test_open_files_are_bounded(start: Start, tmp_path: Path) -> None:
    server, _ = start()
    for number in range(200):
        name = b"%d" % number
        (tmp_path / str(number)).write_bytes(name)
        assert server.read(name, server.attr(name).identity, 0, 10).data == name
    assert server.counts()["open"] == 128


def test_large_directory_is_listed_in_pages(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_server, "PAGE", 7)
    names = sorted(b"%d" % number for number in range(40))
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    os.mkfifo(tmp_path / "pipe")
    server, _ = start()
    found: list[bytes] = []
    after, is_last, pages = b"", False, 0
    while not is_last:
        entries, is_last, after = server.list(b"", after)
        found += [name for name, _ in entries]
        pages += 1
    assert (found, pages) == (names, 6)


def test_changes_are_reported(start: Start, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "log").write_text("1")
    server, reports = start()
    server.list(b"d", b"")
    with open(tmp_path / "d" / "log", "a") as log:
        log.write("2")
    until(reports, Changed(b"d", b"log", False))
    (tmp_path / "d" / "new").mkdir()
    until(reports, Changed(b"d", b"new", True))
    os.rename(tmp_path / "d", tmp_path / "e")
    until(reports, Changed(b"", b"d", True))


def test_many_writes_are_one_report(start: Start, tmp_path: Path) -> None:
    server, reports = start()
    server.list(b"", b"")
    with open(tmp_path / "log", "ab", buffering=0) as log:
        for _ in range(10_000):
            log.write(b"x")
    (tmp_path / "end").touch()
    count = 1
    while Changed(b"", b"end", True) not in (reports.get(timeout=20) or ()):
        count += 1
    assert count < 100


def test_watches_are_bounded(start: Start, tmp_path: Path) -> None:
    server, reports = start(watches=3)
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        server.list(b"%d" % number, b"")
    assert server.counts()["watched"] == 3
    (tmp_path / "9" / "x").touch()
    until(reports, Changed(b"9", b"x", True))


def test_directory_without_a_watch_is_compared(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutWatches:
        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *_: -1

    monkeypatch.setattr(watcher, "_libc", WithoutWatches())
    (tmp_path / "log").write_text("1")
    server, reports = start()
    server.list(b"", b"")
    assert server.counts()["compared"] == 1
    (tmp_path / "log").write_text("22")
    until(reports, Changed(b"", b"log", False))
    (tmp_path / "log").unlink()
    until(reports, Changed(b"", b"log", True))


def test_file_root_reports_its_own_changes_only(start: Start, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1")
    server, reports = start(tmp_path / "log")
    assert server.attr(b"").size == 1
    (tmp_path / "other").touch()
    (tmp_path / "log").write_text("22")
    assert set(reports.get(timeout=20) or ()) == {Changed(b"", b"", False)}


def test_keys_name_the_points() -> None:
    assert [point_key(at) for at in points({"hosts": 1, "gpus": 2})] == ["hosts_0_gpus_0", "hosts_0_gpus_1"]
    assert [point_key(at) for at in points({})] == [""]
    assert remote_path("/logs/$SUBDIR/x", "hosts_0") == "/logs/hosts_0/x"
    with pytest.raises(ValueError, match="absolute"):
        remote_path("logs", "hosts_0")
