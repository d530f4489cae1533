"""Each test works in a directory of its own; modules that tests share are found."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import monarch.actor

HERE = Path(__file__).parent
# The second folder has the module that runs scripts.
sys.path += [str(HERE), str(HERE.parents[1] / "monarch-core" / "tests" / "process")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def program(folder: Path) -> Callable[[str], str]:
    """Writes a program; its path."""

    def written(text: str, name: str = "program.py") -> str:
        path = folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return written


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
        yield
