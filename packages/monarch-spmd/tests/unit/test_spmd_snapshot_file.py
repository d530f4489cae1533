"""States in files: what is read is what was written, and no change of it reaches the file."""

from __future__ import annotations

import array
import mmap
import os
from threading import Thread
from typing import Any

import numpy
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


def test_file_is_readable_by_path_in_another_process() -> None:
    file = SnapshotFile()
    file.write(pack(STATE))
    other = SnapshotFile.at(file.path)
    file.close()
    assert other.read() == STATE
    with pytest.raises(OSError):
        SnapshotFile.at(f"/proc/{os.getpid()}/fd/1000000")


def test_changes_of_a_state_do_not_change_file() -> None:
    file = SnapshotFile()
    file.write(pack(STATE))
    first = file.read()
    first["memory"][:3] = b"new"
    assert file.read()["memory"][:3] == b"\0\1\2"


def test_file_is_written_again() -> None:
    file = SnapshotFile()
    for size in (1_000_000, 10, 2_000_000, 1_900_000, 3_000_000):
        data = os.urandom(size)
        file.write(pack({"data": bytearray(data)}))
        assert file.read()["data"] == data and file.nbytes < 1.2 * size + (300 << 10)


def test_file_keeps_its_size_when_texts_change_theirs() -> None:
    file = SnapshotFile()
    memory = bytearray(1 << 20)
    file.write(pack({"loss": "0.5", "memory": memory}))
    nbytes = file.nbytes
    for loss in ("0.25", "1", "0.125" * 100):
        file.write(pack({"loss": loss, "memory": memory}))
        assert file.read() == {"loss": loss, "memory": memory} and file.nbytes == nbytes


@pytest.mark.parametrize("shift", [0, 1, 64, 100, 4095])
def test_large_parts_keep_their_place_in_the_page(shift: int) -> None:
    memory = numpy.frombuffer(os.urandom(1 << 20), numpy.uint8)[shift:]
    packed = pack({"memory": memory})
    (begin, nbytes, _), part = packed.rows[1], packed.parts[1]
    assert nbytes == len(memory) and begin % mmap.PAGESIZE == part.address % mmap.PAGESIZE
    file = SnapshotFile()
    for _ in range(2):
        file.write(packed)
        assert (file.read()["memory"] == memory).all()


def test_arrays_of_each_order() -> None:
    square = numpy.arange(250_000.0).reshape(500, 500)
    state = {
        "C": square,
        "Fortran": numpy.asfortranarray(square),
        "transposed": square.T,
        "every other": square[::2, ::2],
        "none": square[:0],
    }
    file = SnapshotFile()
    for _ in range(2):
        file.write(pack(state))
        found = file.read()
        assert all((found[name] == value).all() for name, value in state.items()), found


@pytest.mark.parametrize("threads", [1, 2, 100])
def test_threads_copy_every_piece(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "_WRITE", 1000)
    file = SnapshotFile()
    for _ in range(3):
        data = bytearray(os.urandom(1 << 20))
        file.write(pack({"data": data}), threads)
        assert file.read()["data"] == data


def test_copy_without_further_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", start)
    test_threads_copy_every_piece(4, monkeypatch)


def test_malformed_snapshot_is_refused() -> None:
    for content in (b"", b"short", bytes(1000)):
        file = SnapshotFile()
        os.write(file.fd, content)
        with pytest.raises(SPMDError, match="not one of this version"):
            file.read()


def test_value_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(TypeError) as caught:
        pack({"lock": __import__("threading").Lock()})
    assert any("lock" in note for note in caught.value.__notes__)


def test_snapshot_too_large_for_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "available_memory", lambda: 100 << 20)
    check_memory(10 << 20, "the snapshot of step 1", "the memory of this host")
    with pytest.raises(
        SPMDError, match=r"^the snapshot of step 1 is too large for the memory of h: 104,857,600 bytes, and 104,857,600 bytes"
    ):
        check_memory(100 << 20, "the snapshot of step 1", "the memory of h")
