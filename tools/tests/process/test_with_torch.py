"""Packages of another environment come last on the path of modules, in a command and in the interpreters that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_docs, side_venv, with_torch

_CHILD = "import sys; print(sys.path[-1], __import__('extra').__file__)"
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_CHILD!r}], check=True)"


def test_folders_come_last_in_commands_and_their_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extra.py").write_text("")
    (tmp_path / "json.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "kept"))
    environment = with_torch.environment([tmp_path])
    assert environment["PYTHONPATH"].endswith(f":{tmp_path / 'kept'}")
    done = subprocess.run([sys.executable, "-c", f"import json; {_PARENT}"], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path), str(tmp_path / "extra.py")]


def test_metadata_of_the_wheel_is_made_once() -> None:
    place = with_torch.installed()
    assert with_torch.installed() == place
    (entries,) = place.glob("monarch_tensor-*.dist-info/entry_points.txt")
    assert "activate = monarch.tensor._mesh_methods:activate" in entries.read_text()


def test_missing_environment_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(side_venv, "existing", lambda name: None)
    assert with_torch.main(["true"]) == 1
    assert "python -m tools.side_venv torch" in capsys.readouterr().err
    assert with_torch.main(["--if-made", "true"]) == 0
    assert with_torch.main([]) == 2


def test_page_with_torch_is_left_out_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side_venv, "existing", lambda name: None)
    page = tmp_path / "page.md"
    for line in ("import torch", "from monarch.tensor import inspect", "from monarch import tensor as monarch"):
        page.write_text(f"```python\n{line}\n```\n")
        assert check_docs.check(page) is None
        assert "page.md is left out" in capsys.readouterr().out
    page.write_text("```python\nimport torchx_of_nobody\n```\n")
    assert "torchx_of_nobody" in str(check_docs.check(page))


def test_modules_load_without_their_packages_init() -> None:
    code = "from tools import bare_package as b; b.bare_tensor_package(); import monarch.tensor.errors as e; print(e.__name__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=with_torch.ROOT)
    assert done.stdout == "monarch.tensor.errors\n"
