"""The job of `monarch init`: reserved by the command, used twice, given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_project_runs_on_the_hosts_of_its_job(tmp_path: Path) -> None:
    def run(*argv: str) -> str:
        done = subprocess.run([sys.executable, *argv], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    monarch = ("-c", "from monarch.extension.cli import main; main()")
    run(*monarch, "init")
    assert "trainers (2) ready" in run(*monarch, "apply", "job.job")
    try:
        first = run("on_hosts.py")
        assert "x = 2: the mean of 4 workers is 5.5" in first
        # The actors are new ones, the hosts are the same.
        assert run("on_hosts.py") == first
    finally:
        assert "killed" in run(*monarch, "kill")
