"""Runs a script in an interpreter of its own, where exit codes, output and process-wide state are under test."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

_OPTIONS = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "check": False, "timeout": 25}

HERE = os.path.dirname(os.path.abspath(__file__))


def run(source, *arguments, env=None, check=True, folder=None, **options):
    """Runs the source as a script in a file of its own; gives the completed process with text output."""
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        path = os.path.join(folder or made, "script.py")
        with open(path, "w") as f:
            f.write(textwrap.dedent(source))
        paths = [HERE, *(os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **(env or {})}
        command = [sys.executable, "-W", "error", path, *arguments]
        done = subprocess.run(command, env=variables, **{**_OPTIONS, **options})
    if check:
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done


def lines(text):
    return text.split("\n")[:-1]
