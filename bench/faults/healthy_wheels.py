"""Healthy jobs that use other wheels: telemetry, memory of other processes, weights, mounts, SPMD, hosts of a job, PyTorch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from bench.faults.actors import Trainer
from bench.faults.program import Fault, forever, ready, rest, until_closed
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.actor.testing import local_hosts

_MIB = 1 << 20
_STEPS = """
import time
for step in range(10_000):
    print('step', step)
    time.sleep(0.05)
"""


class Owner(Actor):
    """Has memory that others read."""

    @endpoint
    def publish(self) -> Any:
        from monarch.rdma import RDMABuffer

        self.memory = bytearray(16 * _MIB)
        return RDMABuffer(memoryview(self.memory), readonly=True)


class Reader(Actor):
    @endpoint
    def read(self, buffer: Any) -> None:
        buffer.read_into(memoryview(bytearray(buffer.size()))).get()


class Source(Actor):
    """Publishes weights."""

    @endpoint
    def publish(self) -> None:
        import numpy as np

        from monarch.rdma.weights import Weights

        self.bias = np.zeros(_MIB, np.float32)
        self.source = Weights.publish("policy", {"bias": self.bias})

    @endpoint
    def step(self) -> None:
        with self.source.update():
            self.bias += 1


class Generator(Actor):
    """Pulls weights."""

    @endpoint
    def attach(self, sources: Any) -> None:
        import numpy as np

        from monarch.rdma.weights import Weights

        self.bias = np.zeros(_MIB, np.float32)
        self.target = Weights.attach("policy", of=sources, into={"bias": self.bias})

    @endpoint
    def pull(self) -> None:
        self.target.pull().get()


class Collective(Actor):
    """A rank of `torch.distributed`."""

    @endpoint
    def begin(self, folder: str, ranks: int) -> None:
        import torch.distributed

        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=current_rank().rank, world_size=ranks)

    @endpoint
    def steps(self, count: int) -> None:
        import torch

        for _ in range(count):
            gradient = torch.randn(64, 64) @ torch.randn(64, 64)
            torch.distributed.all_reduce(gradient)


def telemetry() -> None:
    """Queries beside training."""
    import monarch.telemetry

    running = monarch.telemetry.start()
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    forever(lambda: (trainers.step.call(0.02).get(), monarch.telemetry.query("SELECT count(*) FROM messages"), running))


def memory() -> None:
    """Ranks that copy the memory of another one."""
    owner = this_host().spawn_procs(name="owners").spawn("owner", Owner)
    readers = this_host().spawn_procs({"gpus": 2}, name="readers").spawn("reader", Reader)
    buffer = owner.publish.call_one().get()
    forever(lambda: readers.read.call(buffer).get())


def weights() -> None:
    """Training and generation with shared weights."""
    sources = this_host().spawn_procs(name="trainers").spawn("source", Source)
    generators = this_host().spawn_procs({"gpus": 2}, name="generators").spawn("generator", Generator)
    sources.publish.call().get()
    generators.attach.call(sources).get()
    forever(lambda: (sources.step.call().get(), generators.pull.call().get()))


def mounted() -> None:
    """Files that are read from a mount."""
    from monarch.fs import mount

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "project")
        source.mkdir()
        for index in range(20):
            Path(source, f"file{index}").write_bytes(os.urandom(100_000))
        with mount(this_host(), source, f"{folder}/mounted"):
            trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
            until_closed()
            ready()
            while True:
                for index in range(20):
                    Path(folder, "mounted", f"file{index}").read_bytes()
                trainers.step.call(0.01).get()


def spmd() -> None:
    """Four ranks of a script."""
    from monarch.spmd import run

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(_STEPS)
        running = run(this_host(), ["torchrun", "--nproc-per-node=4", str(script)])
        rest(running.result)


def hosts() -> None:
    """Training on three hosts, which end with the program."""
    with local_hosts(3) as three:
        trainers = three.spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
        forever(lambda: trainers.step.call(0.02).get())


def processes_of_client() -> None:
    """A client that waits for a program of its own, such as a build."""
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    trainers.pid.call().get()
    threading.Thread(target=subprocess.run, args=(["sleep", "60"],), daemon=True).start()
    rest()


def collectives() -> None:
    """Data-parallel training with PyTorch."""
    ranks = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("rank", Collective)
    folder = tempfile.mkdtemp()
    ranks.begin.call(folder, 2).get()
    forever(lambda: ranks.steps.call(50).get())


HEALTHY = (
    Fault("telemetry", telemetry, "", 1.0),
    Fault("memory", memory, "", 1.0),
    Fault("weights", weights, "", 1.0),
    *([Fault("mounted", mounted, "", 1.0)] if os.path.exists("/dev/fuse") else []),
    Fault("spmd", spmd, "", 2.0),
    Fault("hosts", hosts, "", 1.0),
    Fault("processes_of_client", processes_of_client, "", 1.0),
    # `python -m tools.with_torch` has PyTorch.
    *([Fault("collectives", collectives, "", 2.0)] if importlib.util.find_spec("torch") else []),
)
