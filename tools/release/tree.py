"""The sources of a release.

A final release is built from the checkout. A nightly release is built from a copy, in which each package has the version `X.devN`, and
requires its siblings in exactly this version: by PEP 440, `X.devN` is before `X`, so that no range of the final versions has it.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

from tools import build_dashboard
from tools.project import ROOT, files

_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
# A requirement of a sibling: the name, extras, and the range of versions.
_SIBLING = re.compile(r'"(monarch-[a-z]+)(\[[a-z,-]+\])?>=[^"]*"')


def packages(root: Path) -> list[Path]:
    """The folders of the packages of a tree."""
    return sorted(path.parent for path in (root / "packages").glob("*/pyproject.toml"))


def version(package: Path) -> str:
    """The version of the package in this folder."""
    found = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert isinstance(found, str)
    return found


def nightly(number: int, root: Path) -> Path:
    """Copies the sources of the checkout to the folder `root`, with the version of the nightly build of this number; returns the folder."""
    static = build_dashboard.OUT.relative_to(ROOT)
    made = [path.relative_to(ROOT) for path in (ROOT / static).rglob("*") if path.is_file()]
    for path in [*(path for path in files() if path.parts[0] == "packages"), *made]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, root / path)
    # The build backends leave out what git ignores.
    shutil.copy2(ROOT / ".gitignore", root)
    for package in packages(root):
        project = package / "pyproject.toml"
        project.write_text(stamped(project.read_text(encoding="utf-8"), number), encoding="utf-8")
    return root


def stamped(project: str, number: int) -> str:
    """The text of a `pyproject.toml` with the version of a nightly build.

    >>> print(stamped('version = "0.1.0"\\ndependencies = ["click>=8.1", "monarch-core>=0.1,<0.2"]', 7))
    version = "0.1.0.dev7"
    dependencies = ["click>=8.1", "monarch-core==0.1.0.dev7"]
    """
    found = _VERSION.search(project)
    if found is None:
        raise ValueError("a pyproject.toml has no line with its version")
    text = f"{found[1]}.dev{number}"
    project = _VERSION.sub(f'version = "{text}"', project, count=1)
    return _SIBLING.sub(lambda sibling: f'"{sibling[1]}{sibling[2] or ""}=={text}"', project)
