"""The version of Python that an environment records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monarch._core.sync.environment_python import environment_python


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("home = /usr/bin\nversion = 3.10.12\n", (3, 10)),
        ("home = /usr/bin\nimplementation = CPython\nuv = 0.4.1\nversion_info = 3.12.1\n", (3, 12)),
        ("version_info = 3.9.1.final.0", (3, 9)),
        ("home = /usr/bin/version 3.10", None),
    ],
)
def test_venv(tmp_path: Path, text: str, version: tuple[int, int] | None):
    (tmp_path / "pyvenv.cfg").write_text(text)
    assert environment_python(str(tmp_path)) == version


def test_venv_of_this_python(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "made")], check=True, timeout=25)
    assert environment_python(str(tmp_path / "made")) == sys.version_info[:2]


def test_conda(tmp_path: Path):
    assert environment_python(str(tmp_path)) is None
    (tmp_path / "conda-meta").mkdir()
    for name in ("history", "python-dateutil-2.9.0-py310_0.json", "python_abi-3.10-2_cp310.json"):
        (tmp_path / "conda-meta" / name).write_text("")
    assert environment_python(str(tmp_path)) is None
    (tmp_path / "conda-meta" / "python-3.10.13-h955ad1f_0.json").write_text("{}")
    assert environment_python(str(tmp_path)) == (3, 10)
