"""Launches of a job with a mount: each run has the files as they are then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
from monarch.job.spmd import job_load, serve

source, target = Path(sys.argv[1]), sys.argv[2]
job = serve(["torchrun", "--nproc-per-node=2", "--standalone", f"{target}/train.py"])
try:
    job.remote_mount(str(source), target, python_exe=None)
    job.run_spmd()
    (source / "part.py").write_text("WORD = 'two'")
    job.run_spmd()
    (source / "part.py").write_text("WORD = 'three'")
    job_load(".monarch/job_state.json").run_spmd()
finally:
    job.kill()
"""
PROGRAM = """
import os
from part import WORD
print(WORD, __file__, os.path.ismount(os.path.dirname(__file__)))
"""


@pytest.mark.timeout(90)
def test_edited_files_are_those_of_the_next_run(tmp_path: Path) -> None:
    source, target, work = tmp_path / "source", tmp_path / "target", tmp_path / "work"
    source.mkdir()
    work.mkdir()
    (source / "train.py").write_text(PROGRAM)
    (source / "part.py").write_text("WORD = 'one'")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MONARCH_")},
        "MONARCH_HOME": f"{tmp_path}/home",
    }
    argv = [sys.executable, "-c", SCRIPT, str(source), str(target)]
    done = subprocess.run(argv, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for word in ("one", "two", "three") for line in [f"{word} {target}/train.py True"] * 2]
    assert [line.partition("] ")[2] for line in done.stdout.splitlines()] == lines
    assert not os.path.ismount(target)
