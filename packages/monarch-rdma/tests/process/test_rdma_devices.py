"""Memory of GPUs, over a driver and a torch that stand for the real ones; those are asked in tests/gpu."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gpu_scenarios
import pytest

FOLDER = Path(gpu_scenarios.__file__).parent
FAKE = FOLDER / "fake_gpu"
SCENARIOS = [
    name
    for name, value in vars(gpu_scenarios).items()
    if getattr(value, "__module__", "") == "gpu_scenarios" and name != "pair" and name[0] != "_"
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for what stands for the driver")
    folder = tmp_path_factory.mktemp("driver")
    built = folder / "libcuda.so.1"
    argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(FAKE / "driver.c"), "-lpthread"]
    subprocess.run(argv, check=True)
    return folder


def run(code: str, driver: Path | None, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(FAKE), str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    places = {"PYTHONPATH": path, "LD_LIBRARY_PATH": str(driver or ""), "MONARCH_FAKE_GPU": str(folder)}
    argv = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(argv, env={**os.environ, **places, **variables}, capture_output=True, text=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name, driver, tmp_path):
    done = run(f"from gpu_scenarios import {name}; {name}()", driver, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


PROBE = """
from monarch.rdma import RDMABuffer, RDMAUnsupportedError, probe
print(next(row.reason for row in probe() if row.name == "cuda-ipc"))
import torch
made = torch.zeros(5)
made.device = torch.device("cuda", 0)
try:
    RDMABuffer(made)
except RDMAUnsupportedError as e:
    print(e)
"""


def test_no_driver(tmp_path):
    done = run(PROBE, None, tmp_path)
    if "cannot be loaded" not in done.stdout:
        pytest.skip("this machine has a driver")
    reason, first, hint = done.stdout.splitlines()
    assert reason == "libcuda.so.1 cannot be loaded: no NVIDIA driver"
    assert first == f"memory of device 'cuda:0' cannot be shared: the path cuda-ipc is not usable: {reason}"
    assert hint == "hint: copy it to the host first: tensor.cpu()"


def test_no_device(driver, tmp_path):
    done = run(PROBE, driver, tmp_path, MONARCH_FAKE_GPUS="0")
    assert done.stdout.splitlines()[0] == "cuInit: CUDA_ERROR_NO_DEVICE (100)"


def test_a_driver_that_is_too_old(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for what stands for the driver")
    argv = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(tmp_path / "libcuda.so.1"), "-"]
    subprocess.run(argv, input="int cuInit(unsigned flags) { return 0; }", text=True, check=True)
    done = run(PROBE, tmp_path, tmp_path)
    assert done.stdout.splitlines()[0] == "libcuda.so.1 has no cuGetErrorName: the driver is too old"
