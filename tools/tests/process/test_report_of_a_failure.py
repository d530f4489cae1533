"""The report of a failed test is made outside of the test's time limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.project import ROOT

TESTS = """
import signal
import pytest

class Slow(Exception):
    def __str__(self):
        # The limit of the test ends meanwhile, if it has not been stopped.
        signal.sigtimedwait([], 0.6)
        return "text of the failure"

@pytest.mark.timeout(0.5)
def test_first():
    raise Slow

def test_second():
    pass

@pytest.mark.timeout(0.5)
def test_third():
    signal.sigtimedwait([], 20)
"""


@pytest.mark.timeout(90)
def test_slow_report_neither_ends_nor_lifts_limits(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_slow_report.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(folder)]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=80, check=False)
    assert "text of the failure" in ran.stdout and "INTERNALERROR" not in ran.stdout, ran.stdout + ran.stderr
    assert "2 failed, 1 passed" in ran.stdout and "Timeout (>0.5s)" in ran.stdout, ran.stdout
