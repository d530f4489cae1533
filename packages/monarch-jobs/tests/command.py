"""Runs the command `monarch` as a process of its own."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
ARGV = [sys.executable, "-P", "-W", "error", "-c", "from monarch.extension.cli import main; main()"]


def start(*arguments: str, argv: list[str] = ARGV, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), *_metadata())))}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([*argv, *arguments], env={**variables, **(env or {})}, text=True, **streams)


def monarch(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with start(*arguments, env=env) as process:
        out, err = process.communicate(timeout=25)
    return process.returncode, out, err


@functools.cache
def _metadata() -> list[str]:
    """A folder with the wheel's entry points, where a checkout is tested that is not installed."""
    try:
        importlib.metadata.distribution("monarch-jobs")
        return []
    except importlib.metadata.PackageNotFoundError:
        pass
    made = _folder()
    groups = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    lines = [
        line for group, entries in groups.items() for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    info = Path(made.name, "monarch_jobs-0.1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: monarch-jobs\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return [made.name]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    import atexit

    made = tempfile.TemporaryDirectory(prefix="monarch-jobs-metadata-")
    atexit.register(made.cleanup)
    return made
