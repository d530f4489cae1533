"""The folders that pytest collects for `-m`."""

from __future__ import annotations

import subprocess
import sys

from tools.project import ROOT

JOBS = "packages/monarch-jobs/tests"


def collected(*arguments: str) -> list[str]:
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_other_folders_are_left_out():
    lines = collected("-m", "ssh or k8s", JOBS)
    tests = [line for line in lines if "::" in line]
    assert {line.split("/")[3] for line in tests} == {"ssh", "k8s"}
    # A test that was collected and not chosen is counted in the last line.
    assert "deselected" not in lines[-1]
    assert tests == [line for line in collected(f"{JOBS}/k8s", f"{JOBS}/ssh") if "::" in line]


def test_words_that_are_no_categories_exclude_nothing():
    lines = collected("-m", "ssh or asyncio", f"{JOBS}/ssh", f"{JOBS}/slurm")
    assert "deselected" in lines[-1]
