"""Separate environments: made once, made again if they are incomplete, and removed after a failed installation."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import side_venv

# A processor second or two, at a low priority.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pins of no package: the test needs no index."""
    folder = tmp_path / "pins"
    folder.mkdir()
    monkeypatch.setattr(side_venv, "PINS", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder / "nothing.txt").write_text("# no package\n")
    return folder / "nothing.txt"


def test_environment_is_made_once(pins: Path) -> None:
    assert side_venv.existing("nothing") is None
    python = side_venv.made("nothing")
    assert side_venv.existing("nothing") == python
    shown = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert Path(shown.stdout.strip()) == side_venv.folder("nothing")
    kept = side_venv.folder("nothing") / "kept"
    kept.touch()
    assert side_venv.made("nothing") == python and kept.exists()
    pins.write_text("# other pins\n")
    assert side_venv.existing("nothing") is None and side_venv.folder("nothing") != kept.parent


def test_incomplete_environment_is_made_again(pins: Path) -> None:
    folder = side_venv.folder("nothing")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "rest").touch()
    assert side_venv.existing("nothing") is None
    side_venv.made("nothing")
    assert not (folder / "rest").exists()
    (folder / "bin" / "python").unlink()  # as after the removal of the interpreter that it was made with
    assert side_venv.existing("nothing") is None
    assert side_venv.made("nothing").exists()


def test_nothing_is_left_of_one_that_failed(pins: Path, tmp_path: Path) -> None:
    pins.write_text(f"{tmp_path}/nowhere.whl\n")
    with pytest.raises(side_venv.SideVenvError, match=r"-m pip ended with exit code 1\n.*nowhere\.whl"):
        side_venv.made("nothing")
    assert side_venv.existing("nothing") is None and not side_venv.folder("nothing").exists()


def test_environment_needs_a_list_of_pins(pins: Path) -> None:
    with pytest.raises(ValueError, match="no environment 'other'; there is nothing"):
        side_venv.folder("other")


def test_script_finishes_the_environment(pins: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without = side_venv.folder("nothing")
    finish = tmp_path / "finish.py"
    finish.write_text(
        "import pathlib, sys, sysconfig\npathlib.Path(sysconfig.get_path('purelib'), 'made.py').write_text(repr(sys.prefix))\n"
    )
    monkeypatch.setattr(side_venv, "FINISHED_BY", {"nothing": finish})
    # Another script makes another environment.
    assert side_venv.folder("nothing") != without
    python = side_venv.made("nothing")
    assert (side_venv.site_packages(python) / "made.py").read_text() == repr(str(side_venv.folder("nothing")))


def test_nothing_is_left_where_the_script_fails(pins: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    finish = tmp_path / "finish.py"
    finish.write_text("raise SystemExit('no compiler')\n")
    monkeypatch.setattr(side_venv, "FINISHED_BY", {"nothing": finish})
    with pytest.raises(side_venv.SideVenvError, match=r"finish\.py ended with exit code 1\nno compiler"):
        side_venv.made("nothing")
    assert not side_venv.folder("nothing").exists()
