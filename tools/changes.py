"""The wheels that a change concerns: those with changed files, and those that depend on them.

The dependencies are the requirements of `packages/*/pyproject.toml`, extras included, and the imports of the tests: tests of one wheel may
use another one that the wheel itself does not need.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tools.project import PACKAGES, ROOT

# Changes here concern pages and measurements, which are checked after every change, but no wheel.
_NO_WHEEL = ("bench", "docs", "examples")
_NAME = re.compile(r"[\w.-]+")
_IMPORT = re.compile(r"\b(?:from|import) monarch\.(\w+)")


class BaseError(RuntimeError):
    """git cannot compare with the base; the text has its reason."""


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """The files that differ from the common ancestor with `base`: of commits, of the work tree, and untracked ones. `BaseError`."""
    ancestor = _git(root, "merge-base", base, "HEAD").strip()
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", ancestor)
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted(set(filter(None, (differing + untracked).split("\0"))))


def concerned(files: Iterable[str], packages: Path = PACKAGES) -> set[str] | None:
    """The wheels that changes of these files concern; None if that cannot be limited, as after a change of the tools."""
    users = _users(packages)
    found: set[str] = set()
    for file in map(PurePosixPath, files):
        top, *below = file.parts
        if top == packages.name and below and below[0] in users:
            found.add(below[0])
        elif top not in _NO_WHEEL and not (file.suffix == ".md" and not below):
            return None
    waiting = list(found)
    while waiting:
        new = users[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _users(packages: Path) -> dict[str, set[str]]:
    """The wheels that use each wheel directly."""
    portions = {portion.name: portion.parts[-4] for portion in packages.glob("*/python/monarch/*")}
    users: dict[str, set[str]] = {project.parent.name: set() for project in packages.glob("*/pyproject.toml")}
    for name in users:
        for used in {*_required(packages / name), *_imported(packages / name / "tests", portions)} & set(users) - {name}:
            users[used].add(name)
    return users


def _required(folder: Path) -> set[str]:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project.get("optional-dependencies", {})
    requirements: list[str] = [*project.get("dependencies", ()), *(word for words in extras.values() for word in words)]
    return {found.group() for word in requirements if (found := _NAME.match(word))}


def _imported(tests: Path, portions: dict[str, str]) -> set[str]:
    names = {name for file in tests.rglob("*.py") for name in _IMPORT.findall(file.read_text(encoding="utf-8"))}
    return {portions[name] for name in names if name in portions}


def _git(root: Path, *argv: str) -> str:
    done = subprocess.run(("git", *argv), cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BaseError(done.stderr.strip() or f"git {argv[0]} ended with exit code {done.returncode}")
    return done.stdout
