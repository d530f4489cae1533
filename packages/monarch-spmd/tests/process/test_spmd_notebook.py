"""Runs from a notebook, with a real kernel: output in the cell, an interrupt that keeps the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from notebook_kernel import TIMEOUT, Kernel

pytestmark = pytest.mark.timeout(TIMEOUT + 20)

PROGRAM = """
import os, signal, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if len(sys.argv) > 1:
    open("waits." + os.environ["RANK"], "w").close()
    signal.pause()
"""


@pytest.fixture
def kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(folder))
    (folder / "train.py").write_text(PROGRAM)
    made = Kernel(folder)
    yield made
    made.close()


def test_interrupted_cell_keeps_its_output_and_hosts(kernel: Kernel, folder: Path) -> None:
    start = "from monarch.job.spmd import serve; job = serve(['torchrun', '--nproc-per-node=2', '--standalone', 'train.py'])"
    assert "error" not in kernel.cell(start)
    shown = kernel.cell("result = job.run_spmd(); where = job._where()")
    assert sorted(shown["stdout"].split("\n")) == ["", "[0] rank 0 of 2", "[1] rank 1 of 2"]
    waiting = kernel.begin("job.original_roles[0]['args'].append('wait'); job.run_spmd()")
    eventually("both ranks", lambda: len(list(folder.glob("waits.?"))) == 2)
    kernel.manager.interrupt_kernel()
    shown = dict(kernel.events(waiting))
    assert shown["error"].startswith("KeyboardInterrupt")
    # The hosts are the same as before, and run again.
    shown = kernel.cell("job.original_roles[0]['args'].pop(); job.run_spmd(); print(job._where() == where); job.kill()")
    assert sorted(shown["stdout"].split("\n")) == ["", "True", "[0] rank 0 of 2", "[1] rank 1 of 2"], shown


def test_awaited_run(kernel: Kernel) -> None:
    """A cell has a running loop."""
    assert "error" not in kernel.cell("from monarch.actor import this_host; from monarch.spmd import run")
    shown = kernel.cell("(await run(this_host(), ['torchrun', '--nproc-per-node=2', 'train.py']).result).world_size")
    assert shown["result"] == "2" and sorted(shown["stdout"].split("\n")) == ["", "[0] rank 0 of 2", "[1] rank 1 of 2"]
