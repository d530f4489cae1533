"""Programs of an interpreter that finds no package by itself, like those that launchers and notebooks start."""

from __future__ import annotations

import os
import subprocess
import sys

# The interpreter from which a virtual environment was made.
_BARE = os.path.realpath(sys.executable)


def run_bare(code: str, *arguments: str) -> str:
    """The output of the program, which finds the packages of this process by its `sys.path` alone."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    begin = f"import sys; sys.path[:] = {[os.path.abspath(entry) for entry in sys.path]!a}\n"
    argv = [_BARE, "-I", "-c", begin + code, *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=28)
    assert done.returncode == 0, done.stderr
    return done.stdout
