"""The folders of `monarch exec` on a host: the newest stay, and the ones in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch.job._host import command


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    made = tmp_path / "temporary"
    made.mkdir()
    return made


def hold(temporary: Path, number: int) -> int:
    path = temporary / f"{command.PREFIX}{number:04}"
    held = command.hold_folder(str(path))
    (path / "stdout.txt").write_text("word\n")
    os.utime(path, (number, number))
    return held


def test_old_folders_go_and_the_newest_stay(temporary: Path) -> None:
    (temporary / "monarch_exec_file").write_text("")
    (temporary / "other").mkdir()
    for number in range(30):
        os.close(hold(temporary, number))
    os.close(hold(temporary, 30))
    found = sorted(os.listdir(temporary))
    assert found[-2:] == ["monarch_exec_file", "other"]
    assert found[-3] == "monarch_exec_0030"
    # One more than the limit may exist: the last one was not as old when it was made.
    assert len(found) - 2 in (command.KEPT, command.KEPT + 1)


def test_folder_in_use_stays(temporary: Path) -> None:
    held = hold(temporary, 0)
    for number in range(1, 30):
        os.close(hold(temporary, number))
    assert (temporary / "monarch_exec_0000/stdout.txt").read_text() == "word\n"
    os.close(held)
    os.close(hold(temporary, 31))
    assert not (temporary / "monarch_exec_0000").exists()
