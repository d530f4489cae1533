"""What a change concerns, by the requirements of the wheels and the imports of their tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.changes import BaseError, changed_files, concerned
from tools.project import PACKAGES

ALL = {project.parent.name for project in PACKAGES.glob("*/pyproject.toml")}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """`high` requires `middle`, which requires `low` by an extra; a test of `aside` imports the module of `middle`."""
    folder = tmp_path / "packages"
    for name, line in {
        "low": "",
        "middle": 'optional-dependencies.more = ["low>=1,<2"]',
        "high": 'dependencies = ["click>=8", "middle"]',
        "aside": "",
    }.items():
        (folder / name / "python" / "monarch" / f"{name}_module").mkdir(parents=True)
        (folder / name / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n{line}\n')
    tests = folder / "aside" / "tests"
    tests.mkdir()
    (tests / "test_it.py").write_text("def test():\n    from monarch.middle_module import a\n    import monarch.other\n")
    return folder


def test_dependents_are_concerned_too(packages: Path) -> None:
    assert concerned(["packages/low/python/a.py"], packages) == {"low", "middle", "high", "aside"}
    assert concerned(["packages/high/a.py", "packages/aside/b.py"], packages) == {"high", "aside"}
    assert concerned([], packages) == set()


def test_pages_concern_no_wheel(packages: Path) -> None:
    assert concerned(["docs/a.md", "README.md", "bench/a.py", "examples/a.py"], packages) == set()


@pytest.mark.parametrize("file", ["tools/a.md", "conftest.py", "hatch.toml", "packages/unknown/a.py", "packages/a.py", ".ci/run"])
def test_other_files_concern_everything(file: str, packages: Path) -> None:
    assert concerned(["packages/low/a.py", file], packages) is None


def test_wheels_of_this_repository() -> None:
    assert concerned(["packages/monarch-core/python/a.py"]) == ALL
    assert concerned(["packages/monarch-tensor/python/a.py"]) == {"monarch-tensor", "monarch-suite"}
    found = concerned(["packages/monarch-rdma/tests/unit/a.py"])
    assert found is not None and {"monarch-fs", "monarch-tensor"} <= found and not {"monarch-core", "monarch-jobs"} & found


def test_changed_files_since_common_ancestor(tmp_path: Path) -> None:
    def git(*argv: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(("git", *identity, *argv), cwd=tmp_path, check=True, capture_output=True)

    def commit(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(name)
        git("add", ".")
        git("commit", "--quiet", "--message", "a")

    git("init", "--quiet", "--initial-branch", "base")
    commit("old", "moved")
    git("switch", "--quiet", "--create", "work")
    commit("new")
    git("mv", "moved", "there")
    (tmp_path / "old").write_text("edited")
    (tmp_path / "untracked").touch()
    git("stash", "--quiet", "--include-untracked")
    git("switch", "--quiet", "base")
    commit("of_others")
    git("switch", "--quiet", "work")
    git("stash", "pop", "--quiet")
    assert changed_files("base", tmp_path) == ["moved", "new", "old", "there", "untracked"]
    with pytest.raises(BaseError, match="nothing"):
        changed_files("nothing", tmp_path)
