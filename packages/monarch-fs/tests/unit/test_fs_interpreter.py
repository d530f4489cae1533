"""Which path runs as the interpreter of a tree, and what hosts need besides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch.fs._push.interpreter import interpreter_of


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "bin").mkdir(parents=True)
    (tmp_path / "tree" / "bin" / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "tree" / "bin" / "python3").chmod(0o755)
    (tmp_path / "tree" / "bin" / "python").symlink_to("python3")
    return tmp_path / "tree"


def test_interpreter_in_the_tree_is_found(tree: Path) -> None:
    place = str(tree / "bin" / "python3")
    (tree / "again").symlink_to(tree / "bin")
    for exe in ("bin/python", str(tree / "bin" / "python"), "bin/../bin/python3", "again/python"):
        assert interpreter_of(str(tree), exe) == place


def test_link_out_of_the_tree_gives_its_target(tree: Path) -> None:
    (tree / "bin" / "venv").symlink_to("python-link")
    (tree / "bin" / "python-link").symlink_to("/nowhere/bin/python3.11")
    assert interpreter_of(str(tree), "bin/venv") == "/nowhere/bin/python3.11"
    (tree / "up").symlink_to("../../beside")
    assert interpreter_of(str(tree), "up/python") == os.path.normpath(tree / "../../beside/python")


@pytest.mark.parametrize(
    ("exe", "text"),
    [
        ("", "empty"),
        ("bin/none", "not found below"),
        ("../x", "is not below"),
        ("/bin/sh", "is not below"),
        ("bin", "no file"),
    ],
)
def test_wrong_interpreter_is_named(tree: Path, exe: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        interpreter_of(str(tree), exe)


def test_unusable_interpreter_is_named(tree: Path) -> None:
    (tree / "loop").symlink_to("loop")
    with pytest.raises(ValueError, match="too many symbolic links"):
        interpreter_of(str(tree), "loop")
    (tree / "bin" / "python3").chmod(0o644)
    with pytest.raises(ValueError, match="may not be executed"):
        interpreter_of(str(tree), "bin/python")
