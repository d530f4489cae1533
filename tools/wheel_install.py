"""Installs wheels into an empty virtual environment and imports them with an empty process environment."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

MAX_OWN_MODULES = 15
# `import monarch.actor` may load none of these.
HEAVY = ("torch", "numpy", "IPython", "opentelemetry", "asyncio")

_PROBE = """
import sys, time
start = time.perf_counter()
import monarch.actor
spent = time.perf_counter() - start
import json, threading
own = sorted(name for name in sys.modules if name.split(".")[0] == "monarch" and getattr(sys.modules[name], "__file__", None))
print(json.dumps({"seconds": spent, "own": own, "all": sorted(sys.modules), "threads": threading.active_count(),
                  "tasks": len(__import__("os").listdir("/proc/self/task"))}))
"""
_SCRIPTS = """
import importlib.metadata
for entry in (entry for wheel in importlib.metadata.distributions() for entry in wheel.entry_points):
    if entry.dist.name.startswith("monarch") and (entry.group == "console_scripts" or entry.group.startswith("monarch.")):
        try:
            entry.load()
        except ImportError as error:
            # What an extra installs is not here: a BackendMissingError.
            assert "pip install 'monarch-jobs[" in str(error), error
"""

# The lowest version of PyTorch that fits.
_RANGE = re.compile(r"\b2\.\d+\b")


class Probe(NamedTuple):
    """The effects of `import monarch.actor` in a fresh interpreter."""

    milliseconds: float
    own: list[str]
    problems: list[str]


def create(folder: Path) -> Path:
    """Makes an empty virtual environment; returns its interpreter. Needs no ensurepip, which Debian packages separately."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, wheels: list[Path], *, dependencies: bool = True) -> None:
    """Installs the wheels. Their dependencies come from the list or from the configured index, or are not installed."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "--quiet"]
    subprocess.run([*argv, "--only-binary", ":all:", *([] if dependencies else ["--no-deps"]), *map(str, wheels)], check=True)


def probe(python: Path, folder: Path, times: int = 7) -> Probe:
    """Imports `monarch.actor` several times, each in a fresh interpreter without any environment variable, from `folder`."""
    runs = [json.loads(_run(python, folder, _PROBE)) for _ in range(times)]
    _run(python, folder, _SCRIPTS)
    last = runs[-1]
    problems: list[str] = []
    if len(last["own"]) > MAX_OWN_MODULES:
        problems.append(
            f"import monarch.actor loads {len(last['own'])} own modules, the limit is {MAX_OWN_MODULES}: {' '.join(last['own'])}"
        )
    if loaded := [name for name in HEAVY if name in last["all"]]:
        problems.append(f"import monarch.actor loads {', '.join(loaded)}")
    if last["threads"] > 1 or last["tasks"] > 1:
        problems.append("import monarch.actor starts a thread")
    return Probe(1000 * statistics.median(run["seconds"] for run in runs[1:]), last["own"], problems)


def without_torch(python: Path, folder: Path) -> list[str]:
    """The problem of `import monarch.tensor` without PyTorch: an `ImportError` has to name PyTorch and the versions that fit."""
    argv = [str(python), "-W", "error", "-c", "import monarch.tensor"]
    done = subprocess.run(argv, cwd=folder, env={}, check=False, capture_output=True, text=True)
    text = done.stderr.partition("ImportError: ")[2]
    if done.returncode and "torch" in text and _RANGE.search(text):
        return []
    end = f"ends with exit code {done.returncode}\n{done.stderr}".rstrip()
    return [f"import monarch.tensor without PyTorch has to raise an ImportError that names torch and the versions that fit, and {end}"]


def _run(python: Path, folder: Path, code: str) -> str:
    argv = [str(python), "-W", "error", "-c", code]
    done = subprocess.run(argv, cwd=folder, env={}, check=False, capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise RuntimeError(f"exit code {done.returncode} with an empty environment:\n{done.stderr}")
    return done.stdout
