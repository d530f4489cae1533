"""The directories of a mount point: made where they are missing, also by several hosts at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch.fs._daemon.served_mount import _make_directories
from monarch.fs.errors import FsError


def test_directories_that_another_host_makes_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def raced(path: str, mode: int) -> None:
        if path.endswith("/b"):
            mkdir(path, mode)
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", raced)
    assert _make_directories(f"{tmp_path}/a/b/c") == [f"{tmp_path}/a", f"{tmp_path}/a/b/c"]


def test_file_at_a_mount_point_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def raced(path: str, mode: int) -> None:
        if path.endswith("/b"):
            Path(path).touch()
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", raced)
    with pytest.raises(FsError, match="cannot be made: File exists") as caught:
        _make_directories(f"{tmp_path}/a/b/c")
    assert caught.value.path == f"{tmp_path}/a/b/c"
    assert (tmp_path / "a" / "b").is_file()
