"""Memory of a real GPU, with torch, between real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpu_scenarios
import pytest

from monarch.rdma.drivers.loaded import obstacle

SCENARIOS = (
    "every_pair_of_ends",
    "own_memory",
    "handles",
    "the_owner_keeps_what_is_shared",
    "batches_and_sets",
    "killed_owner",
    "killed_reader",
    "probed",
    "expandable_segments",
    "another_host",
)


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    reason = obstacle()
    if reason:
        pytest.skip(f"no GPU: {reason}")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")


@pytest.mark.timeout(180)  # the first use of a device takes seconds in each process
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    code = f"import sys; sys.path.insert(0, sys.argv[1]); from gpu_scenarios import {name}; {name}()"
    folder = str(Path(gpu_scenarios.__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
