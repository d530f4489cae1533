"""The names that the benchmarks import from this checkout exist. No step runs most benchmarks, and no type checker reads them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from tools.project import ROOT

_BENCH = ROOT / "bench"


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


def report() -> dict[str, list[str]]:
    """The names that do not exist, by the file that imports them."""
    files = [file for file in sorted(_BENCH.glob("*.py")) if not file.name.startswith("telemetry_reference")]
    return {file.name: [f"{module}.{name}" for module, name in imported(file) if missing(module, name)] for file in files}


def test_imported_names_exist() -> None:
    # Other tests of this process have put modules of their own in place of some.
    code = "import json; from tools.tests.unit.test_bench_imports import report; print(json.dumps(report()))"
    # The environment of the tests has no torch, and so no monarch-tensor.
    env = {**os.environ, "PYTHONPATH": str(ROOT / "packages" / "monarch-tensor" / "python")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert len(found) > 50
    assert {file: names for file, names in found.items() if names} == {}
