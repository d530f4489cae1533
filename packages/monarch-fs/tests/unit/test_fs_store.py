"""The store: a model, several objects on one folder, limits, pins, damage, a full disk, a killed writer."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.config import configured
from monarch.extension.directory_tree import blake3, save_cached
from monarch.fs._home import home_problem
from monarch.fs._index import cache_folder
from monarch.fs._store.location import held_bytes, in_memory, open_store, store_folder, store_limit
from monarch.fs._store.store import Store
from monarch.fs.errors import FsError

LIMIT = 1 << 20


def content(number: int, size: int = 3000) -> tuple[bytes, bytes]:
    data = number.to_bytes(8, "big") * (size // 8)
    return blake3(data), data


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store", LIMIT)
    yield made
    made.close()


def test_content_comes_back_in_parts(store: Store) -> None:
    id, data = content(1)
    assert store.put(id, data) and store.put(id, memoryview(data))
    assert store.read(id, 0, 10_000) == data and store.read(id, 100, 50) == data[100:150]
    assert store.read(id, len(data), 5) == b"" and store.read(id, 10**9, 5) == b""
    assert store.missing([id, bytes(32), b"x" * 32]) == [b"x" * 32] and store.read(b"x" * 32, 0, 1) is None


def test_wrong_content_is_refused(store: Store) -> None:
    id, data = content(1)
    with pytest.raises(ValueError, match=id.hex()):
        store.put(id, data[:-1])
    assert not store.has(id)


def test_folders_are_private(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "store", 0o755)
    store = Store(tmp_path / "store", LIMIT)
    store.put(*content(1))
    for folder, _, files in os.walk(tmp_path / "store"):
        assert os.stat(folder).st_mode & 0o777 == 0o700
        assert all(os.stat(os.path.join(folder, name)).st_mode & 0o777 == 0o600 for name in files)
    store.close()


def test_limit_holds_and_least_used_goes(store: Store) -> None:
    chunks = [content(number) for number in range(600)]
    for number, (id, data) in enumerate(chunks):
        assert store.put(id, data)
        # Always in use: each look marks its segment.
        store._files.clear()  # pyright: ignore[reportPrivateUsage]
        assert store.read(chunks[0][0], 0, 10) == chunks[0][1][:10], number
    assert store.usage().bytes <= LIMIT
    assert not store.has(chunks[30][0]) and store.has(chunks[-1][0])
    held = sum(entry.stat().st_size for entry in os.scandir(store.folder / "segments"))
    assert held <= LIMIT


def test_content_beyond_the_limit_has_no_room(store: Store) -> None:
    assert not store.put(*content(1, LIMIT + 8))
    assert not store.put(*content(2, LIMIT))
    assert store.put(*content(3, LIMIT // 2))


def test_pinned_stay_until_process_ends(tmp_path: Path) -> None:
    store, other = Store(tmp_path, LIMIT), Store(tmp_path, LIMIT)
    pinned = [content(number) for number in range(100)]
    store.pin("tree", [id for id, _ in pinned])
    assert all(store.put(*chunk) for chunk in pinned)
    store._seal()  # pyright: ignore[reportPrivateUsage]
    for number in range(1000, 1600):
        other.put(*content(number))
    assert other.missing([id for id, _ in pinned]) == []
    store.unpin("tree")
    for number in range(2000, 2600):
        assert other.put(*content(number))
    assert len(other.missing([id for id, _ in pinned])) == 100
    assert store.missing([id for id, _ in pinned]) and store.usage().bytes <= LIMIT
    store.close()
    other.close()


def test_full_of_pins_is_no_room(store: Store) -> None:
    chunks = [content(number) for number in range(600)]
    store.pin("tree", [id for id, _ in chunks])
    stored = [store.put(*chunk) for chunk in chunks]
    assert stored[0] and not stored[-1] and store.usage().bytes <= LIMIT
    assert all(store.read(id, 0, 9999) == data for (id, data), kept in zip(chunks, stored, strict=True) if kept)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "read", "reopen"]), st.integers(0, 1), st.integers(0, 30)), max_size=60))
def test_two_users_of_a_folder_agree(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]) -> None:
    folder = tmp_path_factory.mktemp("store")
    stores = [Store(folder, LIMIT), Store(folder, LIMIT)]
    model: dict[bytes, bytes] = {}
    for action, which, number in steps:
        id, data = content(number, 64 + 8 * number)
        if action == "put":
            assert stores[which].put(id, data)
            model[id] = data
        elif action == "reopen":
            stores[which].close()
            stores[which] = Store(folder, LIMIT)
        assert stores[1 - which].read(id, 0, 10_000) == model.get(id)
    for store in stores:
        assert store.missing(model) == []
        store.close()


@pytest.mark.parametrize("damage", ["truncate", "overwrite", "index", "remove"])
def test_damaged_content_is_not_served(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path, LIMIT)
    chunks = [content(number) for number in range(5)]
    for chunk in chunks:
        store.put(*chunk)
    store.close()
    [data_file] = (tmp_path / "segments").glob("*.data")
    [index_file] = (tmp_path / "segments").glob("*.index")
    if damage == "truncate":
        os.truncate(data_file, 4000)
    elif damage == "overwrite":
        data_file.write_bytes(chunks[0][1] + bytes(12_000))
    elif damage == "index":
        index_file.write_bytes(os.urandom(500))
    else:
        data_file.unlink()
    other = Store(tmp_path, LIMIT)
    for id, data in chunks:
        assert other.read(id, 10, 100) in (None, data[10:110])
    assert other.read(chunks[4][0], 0, 10) is None and not other.has(chunks[4][0])
    assert other.put(*chunks[4]) and other.read(chunks[4][0], 0, 9999) == chunks[4][1]
    other.close()


def test_verify_finds_later_damage(store: Store) -> None:
    id, data = content(1)
    store.put(id, data)
    assert store.verify(id)
    [data_file] = (store.folder / "segments").glob("*.data")
    data_file.write_bytes(bytes(len(data)))
    assert not store.verify(id) and not store.has(id)
    assert store.put(id, data) and store.read(id, 0, 9999) == data


def test_full_disk_is_no_room(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path)], check=True)
    try:
        store = Store(tmp_path / "store", 64 << 20)
        chunks = [content(number, 8000) for number in range(100)]
        stored = [store.put(*chunk) for chunk in chunks]
        assert stored[0] and not all(stored)
        found = [store.read(id, 0, 9999) for id, _ in chunks]
        assert all(read == data for read, (_, data), kept in zip(found, chunks, stored, strict=True) if kept and read is not None)
        # A failed put makes room for the next one: how much too late depends on the pages that the file system counts.
        id, data = content(1000, 8000)
        assert store.put(id, data) or store.put(id, data)
        assert store.read(id, 0, 9999) == data
        store.close()
        del store
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


WRITER = """
import sys
from pathlib import Path
from typing import Any
from monarch.config import configured
from monarch.extension.directory_tree import blake3
from monarch.fs._store.store import Store
from monarch.fs.errors import FsError
store = Store(Path(sys.argv[1]), 64 << 20)
store.pin("tree", [b"p" * 32])
print("ready", flush=True)
number = int(sys.argv[2])
while True:
    number += 1
    data = number.to_bytes(8, "big") * 3000
    store.put(blake3(data), data)
    if number % 100 == 0:
        print(number, flush=True)
"""


def test_killed_writers_leave_whole_contents(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(start)], stdout=subprocess.PIPE, text=True)
        for start in (0, 10**9)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert [writer.stdout.readline() for _ in range(4)][0] == "ready\n"
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    store = Store(tmp_path, 64 << 20)
    for start in (0, 10**9):
        for number in range(start + 1, start + 301):
            id, data = content(number, 24_000)
            assert store.read(id, 0, 30_000) == data
    # Pins of dead processes are void, and their segments are sealed: all can be removed.
    before = store.usage().bytes
    with store._exclusive():  # pyright: ignore[reportPrivateUsage]
        assert store._pins.pinned() == set()  # pyright: ignore[reportPrivateUsage]
        assert store._remove(before)  # pyright: ignore[reportPrivateUsage]
    assert store.usage().bytes == 0 and not list((tmp_path / "pins").iterdir())
    store.close()


def test_threads_put_and_read_at_once(store: Store) -> None:
    errors: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for number in range(start, start + 200):
                id, data = content(number, 800)
                assert store.put(id, data) and store.read(id, 0, 900) == data
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and store.usage().chunks == 500


def test_folder_and_limit_by_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    assert store_folder().parent == tmp_path / "home" / "fs" and store_folder(str(tmp_path / "x")) == tmp_path / "x"
    space = os.statvfs(tmp_path)
    assert 0 < store_limit(tmp_path / "x") <= min(100 << 30, space.f_blocks * space.f_frsize // 2) and store_limit(tmp_path, 5) == 5
    with pytest.raises(ValueError, match="fs_store_bytes: -1"):
        store_limit(tmp_path, -1)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(tmp_path / "x")


def test_user_without_home_directory_needs_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(uid: int) -> Any:
        raise KeyError(uid)

    for name in ("HOME", "MONARCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", missing)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FsError, match="has no home directory: HOME is not set") as caught:
        open_store()
    assert caught.value.hint == "set MONARCH_HOME to a directory that this user may write" and caught.value.hint in home_problem()
    # No index is stored.
    assert not save_cached(cache_folder.default_folder() / "x", b"") and not os.listdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_problem() == "" and store_folder().is_relative_to(tmp_path / ".monarch")


def test_store_in_memory_is_bounded_by_available_memory(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        place = Path(folder, "store")
        [available] = re.findall(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())
        assert in_memory(place) and not in_memory(tmp_path / "store")
        limit = store_limit(place)
        assert 0 < limit <= min(os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize // 2, (int(available) << 10) // 2)
        store = Store(place, 1 << 20)
        contents = [os.urandom(100_000) for _ in range(40)]
        for content in contents:
            assert store.put(blake3(content), content)
        assert held_bytes(place) <= 1 << 20 and store.read(blake3(contents[-1]), 0, 5) == contents[-1][:5]
        store.close()


def test_folder_unusable_as_a_store_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for folder, reason in (
        ("relative", "not absolute"),
        (str(tmp_path / "file"), "Not a directory"),
        (f"{tmp_path}/file/below", "Not a directory"),
    ):
        with configured(fs_store_dir=folder), pytest.raises(FsError, match=reason) as caught:
            open_store()
        assert (caught.value.path, caught.value.host) == (folder, os.uname().nodename)
        assert "the setting fs_store_dir" in str(caught.value) and "an absolute path" in str(caught.value.hint)
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "file"))
    with pytest.raises(FsError, match="below MONARCH_HOME cannot be used"):
        open_store()


def test_removed_store_is_made_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", 1 << 24)
    content = b"content"
    id = blake3(content)
    assert store.put(id, content)
    shutil.rmtree(tmp_path / "store")
    assert store.missing([id]) == [id] and store.read(id, 0, 7) is None
    assert store.put(id, content) and store.read(id, 0, 7) == content
    store.close()
