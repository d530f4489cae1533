"""Runs the code of the documentation: Python blocks of README.md, of docs/**/*.md and of docstrings, and every example in one file.

    python -m tools.check_docs [FILE...]

The blocks of a page, or of a docstring of a wheel, run in order, as one script in a process of its own; a block marked ```python no-run is
left out. An example runs with `--quick` if it has that option, and must define `main()`. Each runs in an empty folder, with warnings as
errors, and must end with exit code 0 and an empty stderr. Code that imports PyTorch or monarch-tensor runs with both
(`tools/with_torch.py`), and is left out if they are missing.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools import docstrings, with_torch
from tools.code_blocks import script
from tools.project import PACKAGES, ROOT

TIMEOUT_S = 120  # seconds for one file; only a hang takes longer
_TORCH = re.compile(r"^\s*(?:import|from)\s+(?:torch|monarch\.tensor)\b|^\s*from monarch import .*\btensor\b", re.MULTILINE)


def documents() -> list[Path]:
    """Every file with code to run, in a fixed order."""
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(PACKAGES.glob("*/README.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    folder = ROOT / "examples"
    examples = [path for path in (*sorted(folder.glob("*.py")), *sorted(folder.glob("tensors/*.py"))) if not path.name.startswith("_")]
    return [path for path in (*pages, *examples, *docstrings.sources()) if path.exists()]


def check(path: Path) -> str | None:
    """The problem of the code of the file; None if there is none, or no code."""
    if path.is_relative_to(PACKAGES) and path.suffix == ".py":
        for example in docstrings.examples(path):
            if (wrong := _program(path, example.code)) is not None:
                return f"the example of {example.name}, line {example.line}: {wrong}"
        return None
    text = path.read_text(encoding="utf-8")
    is_page = path.suffix == ".md"
    code = script(text) if is_page else text
    if not code:
        return None
    if not is_page and not any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in ast.parse(text).body):
        return "an example must define main()"
    if is_page:
        return _program(path, code)
    return _program(path, code, [str(path), *(["--quick"] if "--quick" in text else [])])


def _program(path: Path, code: str, argv: list[str] | None = None) -> str | None:
    """The problem of a program; without `argv`, it is the code alone, in a file of the name of its page."""
    environment = with_torch.variables() if _TORCH.search(code) else dict(os.environ)
    if environment is None:
        print(f"{path.name} is left out: {with_torch.MISSING.format('torch')}", flush=True)
        return None
    with tempfile.TemporaryDirectory(prefix="docs-") as scratch:
        if argv is None:
            program = Path(scratch) / f"code_of_{path.stem}.py"  # no name of a module
            program.write_text(code, encoding="utf-8")
            argv = [str(program)]
        return _run(argv, Path(scratch), environment)


def _run(argv: list[str], folder: Path, environment: dict[str, str]) -> str | None:
    # Output goes to files: a process left behind would hold a pipe open, and the wait would not end.
    with (folder / "stdout").open("w+") as out, (folder / "stderr").open("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *argv],
            cwd=folder,
            env={**environment, "MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"still running after {TIMEOUT_S} s"
        out.seek(0)
        err.seek(0)
        printed, complained = out.read(), err.read()
    if code:
        return f"exit code {code}\n{printed[-2000:]}{complained}"
    return f"not silent on stderr:\n{complained}" if complained else None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="check_docs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all of them")
    paths = [path.resolve() for path in parser.parse_args(arguments).files] or documents()
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    failed = 0
    for path in paths:
        start = time.monotonic()
        wrong = check(path)
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        print(f"{'ok  ' if wrong is None else 'FAIL'} {time.monotonic() - start:5.1f} s  {name}", flush=True)
        if wrong is not None:
            failed += 1
            print(wrong)
    print(f"docs: {len(paths)} files, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
