"""The names that the benchmarks import from this checkout exist. No step runs most benchmarks, and no type checker reads them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

from tools.project import ROOT

_BENCH = ROOT / "bench"
_FILES = sorted(_BENCH.glob("*.py"))


def imported(file: Path) -> list[tuple[str, str]]:
    """The modules of this checkout that a file imports, with a name of each or an empty text."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
    return [(module, name) for module, name in found if module.partition(".")[0] in ("monarch", "tools")]


def missing(module: str, name: str) -> bool:
    """If no such name exists. A module that needs torch is only looked for."""
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        return (error.name or "").partition(".")[0] in ("monarch", "tools")
    if not name or hasattr(loaded, name):
        return False
    return not hasattr(loaded, "__path__") or importlib.util.find_spec(f"{module}.{name}") is None


@pytest.mark.parametrize("file", [f for f in _FILES if not f.name.startswith("telemetry_reference")], ids=lambda file: file.name)
def test_imported_names_exist(file: Path) -> None:
    assert [f"{module}.{name}" for module, name in imported(file) if missing(module, name)] == []
