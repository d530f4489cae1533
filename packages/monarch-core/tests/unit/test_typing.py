"""The public names for type checkers: pyright must agree with every statement of `tests/typing`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyright", reason="pyright is in the development environment only")
FOLDER = Path(__file__).parents[1] / "typing"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py"))


def check(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        pytest.fail(f"pyright gave no report, exit code {done.returncode}:\n{done.stdout}{done.stderr}")


@pytest.mark.timeout(120)  # a cold start of node reads all type stubs
def test_pyright_agrees() -> None:
    report = check(FOLDER)

    def place(found: dict[str, Any]) -> str:
        line = found["range"]["start"]["line"] + 1 if "range" in found else 0
        return f"{Path(found['file']).name}:{line}: {found['message']} ({found.get('rule', found['severity'])})"

    assert [place(found) for found in report["generalDiagnostics"]] == []
    assert report["summary"]["filesAnalyzed"] >= len(PROGRAMS) > 0


def test_wrong_types_are_found(tmp_path: Path) -> None:
    """The check can fail: for a wrong statement, and for an ignore that hides nothing."""
    settings = json.loads((FOLDER / "pyrightconfig.json").read_text(encoding="utf-8"))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "wrong.py").write_text(
        "from typing import assert_type\n\nassert_type(len(''), str)\nlen('')  # pyright: ignore[reportArgumentType]\n", encoding="utf-8"
    )
    found = {(one["range"]["start"]["line"] + 1, one["severity"]) for one in check(tmp_path)["generalDiagnostics"]}
    assert found == {(3, "error"), (4, "error")}
