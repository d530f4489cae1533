"""Runs a program of a test in a fresh process; what it prints behind `= ` is what the test looks at."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Seconds; a program that hangs is a failure, and its output shows its progress.
_MOST = 100
_LEAVE = """
sys.stdout.flush()
os._exit(0)
"""


def shown(text: str, within: float = _MOST) -> list[str]:
    """The marked lines of a program that ends with exit code 0, within so many seconds and without warnings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        shutil.copy(Path(__file__).with_name("observed_job.py"), folder)
        # Processes of the job write to the same pipe: a marked line starts with a new line, which ends any text before it.
        path.write_text(text.replace('print("=",', 'print("\\n=",') + _LEAVE, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within,
            cwd=folder,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    return [line.removeprefix("= ") for line in done.stdout.splitlines() if line.startswith("= ")]
