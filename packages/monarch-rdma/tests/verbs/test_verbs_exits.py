"""Ends of processes that hold objects of devices.

It takes a minute, and CI leaves it out. A change of what procs do at their end needs it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "verbs_program.py"


def test_ends_print_nothing(tmp_path):
    # Hosts, and their procs, write to the same file. Procs that are left write to it until their end.
    with (tmp_path / "stderr").open("w+") as stderr:
        done = subprocess.run([sys.executable, "-W", "error", str(PROGRAM)], stderr=stderr, timeout=300, check=False)
        stderr.seek(0)
        assert (done.returncode, stderr.read()) == (0, "")
