"""How programs leave mounts and views: forked children, and ends of scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monarch.actor import this_host
from monarch.fs import gather

FORKED = """
import os, sys
from monarch.actor import this_host
from monarch.fs import gather, mount
from monarch.remotemount import remotemount
kind, source, target = sys.argv[1:]
made = {"mount": lambda: mount(this_host(), source, target), "gather": lambda: gather(this_host(), source, target),
        "facade": lambda: remotemount(this_host(), source, target)}[kind]()
with made:
    child = os.fork()
    if not child:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.listdir(target) == ["file"]
print("left", os.listdir(target) if os.path.isdir(target) else [])
"""

ENDED = """
import os, sys
from monarch.actor import this_host
from monarch.fs import gather
view = gather(this_host(), *sys.argv[1:])
print(os.listdir(sys.argv[2]))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    (made / "file").write_text("text")
    return made


def _run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=25)


@pytest.mark.parametrize("kind", ["mount", "gather", "facade"])
def test_forked_child_leaves_the_mount_to_its_parent(kind: str, source: Path, tmp_path: Path) -> None:
    done = _run(FORKED, kind, source, tmp_path / "shown")
    assert (done.returncode, done.stdout, done.stderr) == (0, "left []\n", "")


def test_open_view_at_a_scripts_end_is_silent(source: Path, tmp_path: Path) -> None:
    done = _run(ENDED, source, tmp_path / "shown")
    assert (done.returncode, done.stdout, done.stderr) == (0, "['file']\n", "")


@pytest.mark.parametrize("below", ["", "here", "d/here"])
def test_view_inside_its_own_source_is_refused(below: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    before = sorted(source.iterdir())
    for local in (source / below, tmp_path / "link" / below):
        with pytest.raises(ValueError, match="is in .*which this host shows: name another directory"):
            gather(this_host(), str(source), str(local))
    assert sorted(source.iterdir()) == before
