"""Two commands at once in one directory: one submits the job, the other finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monarch.job._files import credentials

APPLY = [sys.executable, "-c", "from monarch.extension.cli import main; main()"]


@pytest.mark.timeout(90)  # three commands that start the runtime
def test_two_commands_at_once_share_a_job(folder: Path) -> None:
    (folder / "mine.py").write_text("from monarch.job import ProcessJob\njob = ProcessJob({'a': 2})\n")
    commands = [
        subprocess.Popen([*APPLY, "apply", "mine.job"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        ended = [(*command.communicate(), command.returncode) for command in commands]
        (one,) = Path(credentials.home(), "jobs").iterdir()
    finally:
        subprocess.run([*APPLY, "kill"], check=True, capture_output=True)
    assert [code for _, _, code in ended] == [0, 0], ended
    assert all(out.startswith(f"process job {one.name[:8]}: a (2) ready") for out, _, _ in ended), ended
