"""Programs of an interpreter that finds no package by itself, as launchers and notebooks start them."""

from __future__ import annotations

import os
import subprocess
import sys

# The interpreter that a virtual environment was made from.
_BARE = os.path.realpath(sys.executable)


def run_bare(code: str, *arguments: str) -> str:
    """What the program prints; its packages are where they are here, by its `sys.path` alone."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    begin = f"import sys; sys.path[:] = {[os.path.abspath(entry) for entry in sys.path]!a}\n"
    argv = [_BARE, "-I", "-c", begin + code, *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=28)
    assert done.returncode == 0, done.stderr
    return done.stdout
