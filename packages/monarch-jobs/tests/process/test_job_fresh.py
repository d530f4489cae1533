"""What needs interpreters of its own: what the facade imports, and writers of one file at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from monarch.job import LocalJob, job_load

HEAVY = ("pydantic", "asyncio", "click", "subprocess", "monarch.actor", "monarch._core._native")
WRITER = """
import sys
from monarch.job import LocalJob
job = LocalJob((sys.argv[1] * 1000,))
for _ in range(50):
    job.dump("x.json")
"""


def test_importing_the_facade_loads_nothing_else() -> None:
    # The run is without `site`, which may load any installed package.
    code = f"import sys\nsys.path[:] = {sys.path!r}\nimport monarch.job\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-S", "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_concurrent_writers_leave_a_whole_file(folder: Path) -> None:
    LocalJob(("d" * 1000,)).dump("x.json")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in "abc"]
    while any(writer.poll() is None for writer in writers):
        (name,) = job_load("x.json")._sizes()
        assert name in {letter * 1000 for letter in "abcd"}
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert os.listdir(folder) == ["x.json"]
