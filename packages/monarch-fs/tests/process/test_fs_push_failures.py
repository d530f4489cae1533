"""Pushes that something disturbs: hosts and clients that are killed, sources that change, small stores, two pushes at once."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fs_push_hosts import push_hosts

from monarch.actor import this_host
from monarch.fs import FsError, StaleSourceError
from monarch.fs._push.folder import TEMPORARY
from monarch.fs._push.push import push
from monarch.fs._relay.origin import Origin

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="hosts have mount namespaces of their own: root is needed")
LARGE = 12 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "package").mkdir(parents=True)
    for number in range(20):
        (top / "package" / f"module_{number}.py").write_text(f"VALUE = {number}, {secrets.token_hex()!r}\n" * 50)
    (top / "large").write_bytes(os.urandom(LARGE))
    return top


def content(folder: Path) -> dict[str, bytes]:
    return {str(place.relative_to(folder)): place.read_bytes() for place in folder.rglob("*") if place.is_file()}


def places(tmp_path: Path, count: int) -> tuple[str, list[Path]]:
    own = [tmp_path / f"host-{number}" for number in range(count)]
    for folder in (tmp_path / "shared", *own):
        folder.mkdir()
    return str(tmp_path / "shared"), own


def at_read(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Acts when hosts ask the client for contents for the time of this number; 0: before the first."""
    serve = Origin.serve

    def hooked(self: Origin, tree: str, read: Callable[[Sequence[bytes]], Any]) -> None:
        calls = iter(range(1 << 30))

        def counted(ids: Sequence[bytes]) -> Any:
            if next(calls) == number:
                act()
            return read(ids)

        serve(self, tree, counted)

    monkeypatch.setattr(Origin, "serve", hooked)


@ROOT
@pytest.mark.parametrize("killed", [0, 2])
def test_host_killed_during_a_push_is_named(
    path: list[str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int
) -> None:
    shared, own = places(tmp_path, 3)
    with push_hosts(shared, own, path) as (hosts, workers):
        at_read(monkeypatch, 3, lambda: workers[killed].send_signal(signal.SIGKILL))
        with pytest.raises(FsError, match="1 of 3 hosts could not be pushed to"):
            push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25)
    for number, folder in enumerate(own):
        if number != killed:
            assert content(folder / "code") == content(source)
    # No name of the host that was killed has a part of a file.
    there = {name: data for name, data in content(own[killed]).items() if not os.path.basename(name).startswith(os.fsdecode(TEMPORARY))}
    assert there.items() <= {f"code/{name}": data for name, data in content(source).items()}.items()


CLIENT = """
import os, sys
sys.path[:0] = sys.argv[1].split(":")
from monarch.actor import attach_to_workers
from monarch.fs._push.push import push
from monarch.fs._relay.origin import Origin
serve = Origin.serve
def hooked(self, tree, read):
    calls = iter(range(1 << 30))
    serve(self, tree, lambda ids: os.kill(os.getpid(), 9) if next(calls) == 3 else read(ids))
Origin.serve = hooked
push(attach_to_workers(workers=[sys.argv[2]]), sys.argv[3], sys.argv[4], delete=True, gitignore=False).get(timeout=25)
"""


@ROOT
def test_client_killed_during_a_push_leaves_whole_files(path: list[str], source: Path, tmp_path: Path) -> None:
    shared, own = places(tmp_path, 1)
    target = own[0] / "code"
    target.mkdir()
    (target / "large").write_bytes(b"old")
    (target / "more").write_bytes(b"not of the source")
    with push_hosts(shared, own, path) as (hosts, workers):
        address = list[str](workers[0].args)[-1]  # pyright: ignore
        argv = [sys.executable, "-c", CLIENT, os.pathsep.join(path), address, str(source), f"{shared}/code"]
        done = subprocess.run(argv, timeout=25, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert (target / "large").read_bytes() == b"old" and (target / "more").exists()
        # The push of the next client waits for the end of that one, and repairs its result.
        push(hosts, source, f"{shared}/code", delete=True, gitignore=False).get(timeout=25)
        assert content(target) == content(source)


def test_file_that_changes_during_a_push_is_named(path: list[str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    changed = source / "package" / "module_7.py"

    def edit() -> None:
        changed.write_text("VALUE = 'edited'\n")

    at_read(monkeypatch, 0, edit)
    with pytest.raises(StaleSourceError, match="package/module_7.py") as error:
        push(this_host(), source, str(target), gitignore=False, delete=True).get(timeout=25)
    assert "push again" in str(error.value)
    expected = {name: data for name, data in content(source).items() if name != "package/module_7.py"}
    assert content(target) == expected
    monkeypatch.undo()
    assert push(this_host(), source, str(target), gitignore=False).get(timeout=25).files_written == 1
    assert content(target) == content(source)


def test_file_that_goes_during_a_push_is_named(path: list[str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_read(monkeypatch, 0, (source / "package" / "module_3.py").unlink)
    with pytest.raises(StaleSourceError, match="1 file removed since the index: package/module_3.py"):
        push(this_host(), source, str(tmp_path / "target"), gitignore=False).get(timeout=25)
    assert len(content(tmp_path / "target")) == 20


@ROOT
def test_store_without_room_passes_contents_by(path: list[str], source: Path, tmp_path: Path) -> None:
    shared, own = places(tmp_path, 2)
    with push_hosts(shared, own, path, MONARCH_FS_STORE_BYTES=str(1 << 20)) as (hosts, _):
        push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25)
    assert [content(folder / "code") for folder in own] == [content(source)] * 2


@ROOT
def test_full_disk_of_one_host_is_named(path: list[str], source: Path, tmp_path: Path) -> None:
    shared, own = places(tmp_path, 2)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(own[1])], check=True)
    try:
        with push_hosts(shared, own, path) as (hosts, _):
            with pytest.raises(FsError, match="1 of 2 hosts could not be pushed to") as error:
                push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25)
            assert f"{shared}/code/large: No space left on device" in str(error.value)
            assert error.value.errno == 28
        assert content(own[0] / "code") == content(source)
        assert "large" not in content(own[1] / "code")
    finally:
        subprocess.run(["umount", str(own[1])], check=True)


@ROOT
def test_target_that_cannot_be_written_is_named(path: list[str], source: Path, tmp_path: Path) -> None:
    shared, own = places(tmp_path, 1)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(own[0])], check=True)
    try:
        with push_hosts(shared, own, path) as (hosts, _):
            for target in (shared, f"{shared}/code"):
                with pytest.raises(FsError, match="Read-only file system") as error:
                    push(hosts, source, target, gitignore=False).get(timeout=25)
                assert shared in str(error.value)
    finally:
        subprocess.run(["umount", str(own[0])], check=True)


@ROOT
def test_two_pushes_into_one_target_follow_each_other(path: list[str], source: Path, tmp_path: Path) -> None:
    shared, own = places(tmp_path, 2)
    other = tmp_path / "other"
    (other / "package").mkdir(parents=True)
    (other / "large").write_bytes(os.urandom(LARGE))
    (other / "package" / "module_1.py").write_text("OTHER = 1\n")
    with push_hosts(shared, own, path) as (hosts, _):
        for _ in range(3):
            futures = [push(hosts, place, f"{shared}/code", delete=True, gitignore=False) for place in (source, other, source)]
            for future in futures:
                future.get(timeout=25)
            for folder in own:
                assert content(folder / "code") in (content(source), content(other))


@ROOT
def test_names_of_every_byte_arrive(path: list[str], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    top = os.fsencode(source)
    names = [bytes([byte]) * 2 for byte in range(1, 256) if byte not in b"/."] + [b"n" * 255, b"...", b" ", b"\n"]
    for name in names:
        with open(os.path.join(top, name), "wb") as file:
            file.write(b"content of " + name)
    os.symlink(b"\xff\x01\n", os.path.join(top, b"link \xfe"))
    shared, own = places(tmp_path, 1)
    with push_hosts(shared, own, path) as (hosts, _):
        report = push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25)
        assert report.files_written == len(names)
        assert push(hosts, source, f"{shared}/code", gitignore=False).get(timeout=25).files_written == 0
    assert content(own[0] / "code") == content(source)
    assert os.readlink(os.path.join(os.fsencode(own[0]), b"code", b"link \xfe")) == b"\xff\x01\n"
