"""The versions of CPython with which the wheels are checked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tools.project import ROOT
from tools.pythons import interpreter, versions


def test_workflow_has_the_versions_of_hatch() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["pythons"]["strategy"]["matrix"]["python"] == versions()


def test_interpreter_that_only_fails_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter("3.99") is None
    program = tmp_path / "python3.99"
    program.write_text("#!/bin/sh\nexit 127\n")
    program.chmod(0o755)
    assert interpreter("3.99") is None
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert interpreter("3.99") == Path(sys.executable)
