"""Threads that put contents into one store at once."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from monarch.extension.directory_tree import blake3
from monarch.fs._store.segment import SegmentWriter
from monarch.fs._store.store import Store

# Segments are a 64th of it: 64 KiB, some tens of contents.
_LIMIT = 4 << 20


def _contents(count: int) -> list[tuple[bytes, bytes]]:
    found = [os.urandom(500 + 40 * (number % 50)) for number in range(count)]
    return [(blake3(content), content) for content in found]


def test_contents_of_all_threads_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, _LIMIT)
    contents = _contents(800)
    together = Barrier(4)

    def put(part: int) -> list[bool]:
        together.wait(10)
        # Each content is put by two threads.
        return [store.put(id, content) for id, content in contents if (id[0] % 4) in (part, (part + 1) % 4)]

    with ThreadPoolExecutor(4) as threads:
        assert all(all(stored) for stored in threads.map(put, range(4)))
    store.close()
    again = Store(tmp_path, _LIMIT)
    assert [id for id, content in contents if again.read(id, 0, len(content)) != content] == []
    assert all(index.sealed for index in again._indexes.values())
    assert again.usage().bytes <= _LIMIT


def test_slow_write_into_a_full_segment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, _LIMIT)
    (slow, slow_content), *others = _contents(200)
    written, release = Barrier(2), Barrier(2)
    write = SegmentWriter.write

    def delayed(self: SegmentWriter, offset: int, data: bytes) -> None:
        if data is slow_content:
            written.wait(10)
            release.wait(10)
        write(self, offset, data)

    monkeypatch.setattr(SegmentWriter, "write", delayed)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.put, slow, slow_content)
        written.wait(10)
        assert all(store.put(id, content) for id, content in others)
        # The content has no record yet.
        assert not store.has(slow) and not Store(tmp_path, _LIMIT).has(slow)
        release.wait(10)
        assert waiting.result(10)
    assert store.read(slow, 0, 1 << 20) == slow_content
    store.close()
    again = Store(tmp_path, _LIMIT)
    assert again.read(slow, 0, 1 << 20) == slow_content
    assert all(index.sealed for index in again._indexes.values())


def test_full_disk_loses_one_content_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, _LIMIT)
    contents = _contents(40)
    unlucky = contents[20][1]
    # Removing unused contents would make room.
    store.pin("tree", [id for id, _ in contents])
    write = SegmentWriter.write

    def full(self: SegmentWriter, offset: int, data: bytes) -> None:
        if data is unlucky:
            write(self, offset, data[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, offset, data)

    monkeypatch.setattr(SegmentWriter, "write", full)
    assert [store.put(id, content) for id, content in contents] == [content is not unlucky for _, content in contents]
    again = Store(tmp_path, _LIMIT)
    assert [again.read(id, 0, 1 << 20) for id, _ in contents] == [None if content is unlucky else content for _, content in contents]
