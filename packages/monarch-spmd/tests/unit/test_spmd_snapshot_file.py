"""States in files: what is read is what was written, and no change of it reaches the file."""

from __future__ import annotations

import array
import os
from typing import Any

import pytest

from monarch.spmd import SPMDError, snapshot_file
from monarch.spmd.snapshot_file import SnapshotFile, check_memory, pack

STATE: dict[str, Any] = {
    "step": 3,
    "text": "ä" * 100_000,
    "frozen": bytes(200_000),
    "memory": bytearray(range(256)) * 1000,
    "empty": bytearray(),
    "nested": [{"a": (1, 2.5, None)}],
    "numbers": array.array("d", [1.5, -2.0]),
}


def test_state_comes_back() -> None:
    file = SnapshotFile()
    file.write(pack(STATE))
    assert file.read() == STATE


def test_another_process_of_the_user_reads_it_by_its_path() -> None:
    file = SnapshotFile()
    file.write(pack(STATE))
    other = SnapshotFile.at(file.path)
    file.close()
    assert other.read() == STATE
    with pytest.raises(OSError):
        SnapshotFile.at(f"/proc/{os.getpid()}/fd/1000000")


def test_changes_of_a_state_do_not_reach_the_file() -> None:
    file = SnapshotFile()
    file.write(pack(STATE))
    first = file.read()
    first["memory"][:3] = b"new"
    assert file.read()["memory"][:3] == b"\0\1\2"


def test_file_is_written_again() -> None:
    file = SnapshotFile()
    for size in (1_000_000, 10, 2_000_000):
        file.write(pack({"data": bytearray(b"x" * size)}))
        assert len(file.read()["data"]) == size and file.nbytes < size + 1000


def test_what_is_no_snapshot() -> None:
    for content in (b"", b"short", bytes(1000)):
        file = SnapshotFile()
        os.write(file.fd, content)
        with pytest.raises(SPMDError, match="not one of this version"):
            file.read()


def test_value_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(TypeError) as caught:
        pack({"lock": __import__("threading").Lock()})
    assert any("lock" in note for note in caught.value.__notes__)


def test_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "available_memory", lambda: 100 << 20)
    check_memory(10 << 20, "the snapshot of step 1", "the memory of this host")
    with pytest.raises(
        SPMDError, match=r"^the snapshot of step 1 is too large for the memory of h: 104,857,600 bytes, and 104,857,600 bytes"
    ):
        check_memory(100 << 20, "the snapshot of step 1", "the memory of h")
