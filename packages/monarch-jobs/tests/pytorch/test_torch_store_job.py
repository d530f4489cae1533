"""`StoreJob.from_store` in ranks of a real torchrun, which meet in the TCPStore of PyTorch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tools import side_venv

# PyTorch takes seconds to import, in torchrun and in each rank.
pytestmark = pytest.mark.timeout(120)
# Rank 0 calls an actor on each host; the other ranks, which keep the agents, wait for it.
PROGRAM = """
import json, os, sys
from datetime import timedelta
import torch.distributed as dist
from monarch.actor import Actor, endpoint
from monarch.job.spmd import StoreJob

class Host(Actor):
    @endpoint
    def process(self):
        return os.getpid()

if __name__ == "__main__":
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # As `init_process_group` makes it: that of the agent, where torchrun has one.
    master = rank == 0 and os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, world_size, master, timeout=timedelta(seconds=90))
    job = StoreJob.from_store(store, transport=sys.argv[1])
    assert (job is None) == (rank != 0)
    if job is not None:
        mesh = job.state(cached_path=None).monarch_worker
        pids = set(mesh.spawn_procs().spawn("host", Host).process.call().get(60).values())
        secret = "kept" if store.check(["monarch/monarch_worker/secret"]) else "deleted"
        with open("found.json", "w") as file:
            json.dump({"hosts": len(mesh), "procs": len(pids), "secret": secret}, file)
        job.kill()
    store.set(f"done/{rank}", "1")
    for other in range(world_size):
        store.get(f"done/{other}")
    # The process that has the store ends last.
    store.set(f"left/{rank}", "1")
    if master:
        for other in range(world_size):
            store.get(f"left/{other}")
"""


@pytest.mark.parametrize(("transport", "hosts", "ranks"), [("ipc", 1, 2), ("tcp", 2, 1)])
def test_ranks_of_torchrun_are_hosts(torch_python: Path, folder: Path, transport: str, hosts: int, ranks: int) -> None:
    (folder / "program.py").write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    # torchrun runs ranks with the interpreter of the tests, which has Monarch.
    path = os.pathsep.join([str(side_venv.site_packages(torch_python)), *filter(None, sys.path)])
    env = {**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": path}
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=r", "--local-addr=localhost"]
    argv = [str(torch_python.with_name("torchrun")), *meeting, f"--nnodes={hosts}", f"--nproc-per-node={ranks}", "program.py", transport]
    agents = [subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(hosts)]
    for agent in agents:
        _, said = agent.communicate()
        assert agent.returncode == 0, said
    assert json.loads((folder / "found.json").read_text()) == {"hosts": hosts, "procs": hosts, "secret": "deleted"}
