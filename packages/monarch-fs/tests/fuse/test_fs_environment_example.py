"""The example that mounts an environment on three hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "remote_environment.py"


@pytest.mark.timeout(120)  # most of which the package index may take
def test_three_hosts_import_numpy_from_the_mount(tmp_path: Path) -> None:
    argv = [sys.executable, "-W", "error", str(EXAMPLE)]
    ran = subprocess.run(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    row = r"^(\d) +No module named 'numpy' +[\d.]+ +environment-\d/lib/\S+/site-packages/numpy +\d+ ms$"
    assert re.findall(row, ran.stdout, re.MULTILINE) == ["0", "1", "2"], ran.stdout
    assert ran.stdout.count("a better answer: 6") == 6 and ran.stdout.count("a first answer: 6") == 3
