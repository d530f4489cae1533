"""Memory that a program shares with its proc."""

from __future__ import annotations

import errno
import gc
import os

import pytest

from monarch.rdma.weights import shared_file
from monarch.rdma.weights.shared_file import SharedFile


def test_both_ends_see_the_same_bytes():
    made = SharedFile.of(16)
    opened = SharedFile.at(made.path)
    made.memory[3] = 7
    assert opened.memory[3] == 7 and len(opened.memory) == 16


@pytest.mark.parametrize("make", [lambda path: SharedFile.of(16), SharedFile.at])
def test_failed_mapping_closes_its_descriptor_once(monkeypatch, make):
    path = SharedFile.of(16)
    closed = []

    def fail(*_):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(shared_file.mmap, "mmap", fail)
    monkeypatch.setattr(shared_file.os, "close", closed.append)
    with pytest.raises(MemoryError, match="shared memory.*Cannot allocate memory"):
        make(path.path)
    gc.collect()
    monkeypatch.undo()
    assert len(closed) == 1
    os.close(closed[0])


@pytest.mark.parametrize("make", [lambda path: SharedFile.of(16), SharedFile.at])
def test_no_free_descriptor(monkeypatch, make):
    path = SharedFile.of(16)

    def fail(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(shared_file.os, "memfd_create", fail)
    monkeypatch.setattr(shared_file.os, "open", fail)
    with pytest.raises(MemoryError, match="shared memory.*Too many open files"):
        make(path.path)
