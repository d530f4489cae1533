"""The declarations of the other wheels of this repository for pages of docs/: the values of their entry points, from the sources."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

from tools import bare_package
from tools.project import PACKAGES


def of_wheels(group: str) -> Iterator[tuple[str, list[Any]]]:
    """The name of each wheel and the declarations of its entry points in the group, by name; nothing needs to be built or installed."""
    for path in sorted(PACKAGES.glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        entries: dict[str, str] = project.get("entry-points", {}).get(group, {})
        declared = [one for _, target in sorted(entries.items()) for one in _load(target)]
        if declared:
            yield project["name"], declared


def _load(target: str) -> Any:
    before = list(sys.path)
    sys.path[:0] = [str(path) for path in sorted(PACKAGES.glob("*/python"))]
    try:
        module, _, name = target.partition(":")
        if module.startswith(f"{bare_package.NAME}."):
            bare_package.bare_tensor_package()
        return getattr(importlib.import_module(module), name)
    finally:
        sys.path[:] = before
