"""Memory of GPUs, over a driver and a torch that stand for the real ones; those are asked in tests/gpu."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gpu_scenarios
import pytest

FOLDER = Path(gpu_scenarios.__file__).parent
FAKE = FOLDER / "fake_gpu"
SCENARIOS = [
    name
    for name, value in vars(gpu_scenarios).items()
    if getattr(value, "__module__", "") == "gpu_scenarios" and name != "pair" and name[0] != "_"
]


class Stand(NamedTuple):
    """What stands for the driver of a maker's GPUs, built."""

    maker: str
    folder: Path


def built(maker: str, folder: Path) -> Stand:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for what stands for the driver")
    source, names = {
        "NVIDIA": ("driver.c", ["libcuda.so.1"]),
        "AMD": ("hip.c", ["libamdhip64.so.6", "libhsa-runtime64.so.1"]),
    }[maker]
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / names[0]), str(FAKE / source), "-lpthread"], check=True)
    for name in names[1:]:
        (folder / name).symlink_to(names[0])
    return Stand(maker, folder)


@pytest.fixture(scope="module", params=["NVIDIA", "AMD"])
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stand:
    return built(request.param, tmp_path_factory.mktemp("driver"))


def run(code: str, stand: Stand | None, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(FAKE), str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    places = {"PYTHONPATH": path, "MONARCH_FAKE_GPU": str(folder)}
    if stand is not None:
        places |= {"LD_LIBRARY_PATH": str(stand.folder), "MONARCH_FAKE_MAKER": stand.maker}
    argv = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(argv, env={**os.environ, **places, **variables}, capture_output=True, text=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name, stand, tmp_path):
    done = run(f"from gpu_scenarios import {name}; {name}()", stand, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


PROBE = """
from monarch.rdma import RDMABuffer, RDMAUnsupportedError, probe
import torch
print(next(row.reason for row in probe() if row.name == "cuda-ipc"))
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


REASON = """
from monarch.rdma import probe
print(next(row.reason for row in probe() if row.name == "cuda-ipc"))
"""


def test_no_driver_of_any_maker(tmp_path):
    done = run(REASON, None, tmp_path)
    if "NVIDIA" not in done.stdout or "AMD" not in done.stdout:
        pytest.skip("this machine has a driver")
    amd = "libamdhip64.so.7 cannot be loaded: no AMD driver"
    assert done.stdout == f"libcuda.so.1 cannot be loaded: no NVIDIA driver; {amd}\n"


def test_existing_driver_is_used_without_torch(stand, tmp_path):
    assert run(REASON, stand, tmp_path).stdout == "\n"


def test_no_device(stand, tmp_path):
    done = run(PROBE, stand, tmp_path, MONARCH_FAKE_GPUS="0")
    expected = {"NVIDIA": "cuInit: CUDA_ERROR_NO_DEVICE (100)", "AMD": "hipInit: hipErrorNoDevice (100)"}
    assert done.stdout.splitlines()[0] == expected[stand.maker]


def test_indistinguishable_devices_are_named(tmp_path):
    code = "from gpu_scenarios import every_pair_of_ends; every_pair_of_ends()"
    done = run(code, built("AMD", tmp_path), tmp_path, MONARCH_FAKE_NO_UUID="1")
    assert "the GPUs 0, 1 cannot be told apart" in done.stderr


def test_outdated_driver_is_named(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for what stands for the driver")
    argv = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(tmp_path / "libcuda.so.1"), "-"]
    subprocess.run(argv, input="int cuInit(unsigned flags) { return 0; }", text=True, check=True)
    done = run(PROBE, Stand("NVIDIA", tmp_path), tmp_path)
    assert done.stdout.splitlines()[0] == "libcuda.so.1 has no cuDeviceGetCount: the driver is too old"
