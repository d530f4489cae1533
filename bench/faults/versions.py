"""Programs whose hosts or ranks differ: other packages, other code, other variables, no GPU.

Each host is a worker of this machine with a host name of its own, for which it needs root.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.faults.program import Fault, rest
from monarch.actor import Actor, attach_to_workers, current_rank, endpoint, this_host

_ROOT = Path(__file__).resolve().parents[2]
_NAMES = ("a", "b", "c")
# Only root makes a name space of host names.
_NEEDS = "/proc/1/ns"


class Model(Actor):
    """A rank that imports the modules of its host."""

    @endpoint
    def load(self, name: str) -> None:
        importlib.import_module(name)

    @endpoint
    def choose_device(self, without: int) -> None:
        """Sets the variable of the devices as launchers do."""
        rank = current_rank().rank
        os.environ["CUDA_VISIBLE_DEVICES"] = "" if rank == without else str(rank)


def _worker(name: str, folder: Path, variables: dict[str, str]) -> str:
    """The address of a worker with this host name, which ends with this process."""
    address = f"ipc://{folder / name}"
    paths = (str(folder / f"modules-{name}"), str(_ROOT), os.environ.get("PYTHONPATH", ""))
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
    command += [str(Path(sys.executable).parent / "monarch"), "worker", "--listen", address]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
    subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return address


def _run(module: str = "", texts: tuple[str, ...] = ("", "", ""), other: str = "", variables: dict[str, str] | None = None) -> None:
    """Ranks on three hosts that import a module with one of these texts; one host has more variables."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    for name, text in zip(_NAMES, texts, strict=True):
        (folder / f"modules-{name}").mkdir()
        if module:
            (folder / f"modules-{name}" / f"{module}.py").write_text(text)
    hosts = attach_to_workers(workers=[_worker(name, folder, variables or {} if name == other else {}) for name in _NAMES])
    models = hosts.spawn_procs({"gpus": 2}, name="workers").spawn("model", Model)
    if module:
        models.load.call(module).get()
    else:
        models.load.call("json").get()
    rest()


def package_versions() -> None:
    _run("kernels", ('__version__ = "1.4.2"\n', '__version__ = "1.4.2"\n', '__version__ = "1.3.0"\n'))


def code() -> None:
    new = "def loss(x, y):\n    return (x - y) ** 2 / 2\n"
    _run("losses", (new, new.replace(" / 2", ""), new))


def environment() -> None:
    _run(other="b", variables={"NCCL_P2P_DISABLE": "1"})


def unknown_variable() -> None:
    _run(other="c", variables={"DATA_VERSION": "2026-10"})


def same_hosts() -> None:
    """Healthy: three hosts with the same modules, and variables that belong to a host."""
    _run("losses", ("def loss(x):\n    return x\n",) * 3, "b", {"NCCL_SOCKET_IFNAME": "eth1", "SLURM_NODEID": "1"})


def missing_gpu() -> None:
    models = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("model", Model)
    models.choose_device.call(2).get()
    rest()


FAULTS = (
    Fault("package_versions", package_versions, r"host c runs kernels 1\.3\.0 where 2 hosts run 1\.4\.2", 0.5, _NEEDS),
    Fault("code", code, r"host b runs other code of losses than 2 hosts", 0.5, _NEEDS),
    Fault("environment", environment, r"host b has NCCL_P2P_DISABLE='1' where 2 hosts do not have it", 0.5, _NEEDS),
    Fault("unknown_variable", unknown_variable, r"host c has DATA_VERSION, which 2 hosts do not have", 0.5, _NEEDS),
    Fault("missing_gpu", missing_gpu, r"workers rank 2 of 4 .*has no GPU: CUDA_VISIBLE_DEVICES is empty, where 3 procs have one"),
)
HEALTHY = (Fault("same_hosts", same_hosts, "", 0.5, _NEEDS),)
