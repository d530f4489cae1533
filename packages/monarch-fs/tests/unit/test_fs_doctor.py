"""What `monarch doctor` reports of the store."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from monarch.config import configured
from monarch.extension.directory_tree import blake3
from monarch.fs._doctor import lines
from monarch.fs._store.location import open_store


def store_line() -> tuple[str, str]:
    subject, text, remedy = list(lines())[-1]
    assert subject == "fs"
    return text, remedy


def test_store_has_its_space(tmp_path: Path) -> None:
    with configured(fs_store_dir=str(tmp_path / "store"), fs_store_bytes=3 << 30):
        text, _ = store_line()
        assert text.startswith(f"store {tmp_path}/store: 0 bytes of at most 3.0 GiB, ") and text.endswith("free on the disk")
        assert not os.path.exists(tmp_path / "store")
        store = open_store()
        content = os.urandom(2 << 20)
        store.put(blake3(content), content)
        store.close()
        assert ": 2.0 MiB of at most" in store_line()[0]


def test_store_without_room_or_place_has_a_remedy(tmp_path: Path) -> None:
    with configured(fs_store_dir=str(tmp_path / "store"), fs_store_bytes=1000):
        text, remedy = store_line()
        assert ": 0 bytes of at most 1000 bytes, " in text and "set fs_store_dir" in remedy
    (tmp_path / "file").write_text("")
    for folder in ("relative", f"{tmp_path}/file", f"{tmp_path}/file/below"):
        with configured(fs_store_dir=folder):
            text, remedy = store_line()
            assert text.startswith(f"{folder}: the store of the setting fs_store_dir cannot be used") and remedy


def test_store_in_memory_is_named() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, configured(fs_store_dir=f"{folder}/store"):
        assert store_line()[0].endswith("free in memory")
