"""Training on three hosts, one of which is cut off in the middle: the script continues without it, and the result is the same.

    python three_hosts.py [--quick]                              three workers on this machine; one is stopped
    python three_hosts.py [--quick] --namespaces                 three hosts of their own network, one port of its bridge goes down
    python three_hosts.py --workers ADDRESS... --secret FILE     hosts that have a `monarch worker` running; nothing is cut off

The images of digits.py are in four shards, shared out among the present hosts. At every step each host computes the gradients of its
shards, the trainer adds them up, and all hosts apply the mean. When a host is lost its shards go to the others, and the interrupted step
is repeated.

At the end the same training runs in this process alone. Exits with 1 if the parameters differ, if the accuracy is below 95 %, or if the
loss of the host went unnoticed. `--namespaces` needs root, and a checkout for its `tools/netns`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from digits import HELD_OUT, STEPS, WORKERS, Array, Gradient, Images, Model, average, batches, load, train_alone

from monarch.actor import Actor, Future, HostMesh, MeshFailure, SupervisionError, attach_to_workers, endpoint, this_proc

HERE = Path(__file__).resolve().parent
HOSTS = 3
MONARCH = (sys.executable, "-c", "from monarch._core.cli import main; main()")
HALF = "half way"


class Worker(Actor):
    """Holds a copy of the model, and makes the batches of any shard itself: they depend on shard and epoch only."""

    def __init__(self, train: Images) -> None:
        self.train = train
        self.model = Model()
        self.seen: dict[tuple[int, int], list[Images]] = {}

    @endpoint
    def gradients(self, step: int, shards: list[int]) -> list[Gradient]:
        epoch = step // STEPS
        self.seen = {at: images for at, images in self.seen.items() if at[0] == epoch}
        for shard in shards:
            if (epoch, shard) not in self.seen:
                self.seen[epoch, shard] = batches(self.train, shard, epoch)
        return [self.model.gradient(self.seen[epoch, shard][step % STEPS]) for shard in shards]

    @endpoint
    def apply(self, mean: list[Array]) -> None:
        self.model.apply(mean)

    @endpoint
    def parameters(self) -> list[Array]:
        return self.model.layers


class Loss(NamedTuple):
    """A host that is gone; the time is that of `time.monotonic()`."""

    host: str
    why: str
    step: int
    at: float


class Trainer(Actor):
    """Owns the workers, so it is notified of their failures."""

    def __init__(self, hosts: HostMesh, train: Images) -> None:
        workers = hosts.spawn_procs().spawn("worker", Worker, train)
        self.workers = {n: workers.slice(hosts=n) for n in range(hosts.sizes["hosts"])}
        self.step = 0
        self.losses: list[Loss] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.losses.append(Loss(failure.host, str(failure.reason.detail), self.step, time.monotonic()))
        return True

    async def ask(self, calls: dict[int, Future[list[Gradient]]] | dict[int, Future[None]]) -> dict[int, list[Gradient] | None]:
        """The answers of the present hosts; a lost host is not called again."""
        answers: dict[int, list[Gradient] | None] = {}
        for n, call in calls.items():
            try:
                answers[n] = await call
            except SupervisionError:
                del self.workers[n]
        return answers

    @endpoint
    async def train(self, steps: int) -> list[Loss]:
        """Trains for `steps` steps in spite of losses; returns the hosts lost so far."""
        end = self.step + steps
        while self.step < end:
            there = list(self.workers)
            if not there:
                raise RuntimeError("all hosts were lost, and with them what they had learned")
            shards = {n: list(range(WORKERS))[i :: len(there)] for i, n in enumerate(there)}
            answers = await self.ask({n: self.workers[n].gradients.call_one(self.step, shards[n]) for n in there})
            if len(answers) < len(there):
                continue  # the step is incomplete, and no host has applied it
            parts = {shard: part for n in there for shard, part in zip(shards[n], answers[n] or [], strict=True)}
            mean, _ = average(parts[shard] for shard in range(WORKERS))
            await self.ask({n: worker.apply.call_one(mean) for n, worker in self.workers.items()})
            self.step += 1
        return self.losses

    @endpoint
    async def parameters(self) -> list[list[Array]]:
        return [await worker.parameters.call_one() for worker in self.workers.values()]


def train_on_hosts(workers: list[str], secret: str, epochs: int, waits: bool) -> int:
    """The script, which trains on other hosts. `waits`: half way it waits for a line with the time of the cut."""
    # Only this process needs scikit-learn, the hosts receive arrays.
    train, held_out = load()
    start = time.monotonic()
    with attach_to_workers(workers=workers, secret=secret) as hosts:
        trainer = this_proc().spawn("trainer", Trainer, hosts, train)
        trainer.train.call_one(epochs // 2 * STEPS).get()
        cut = 0.0
        if waits:
            print(HALF, flush=True)
            cut = float(sys.stdin.readline())
        losses = trainer.train.call_one((epochs - epochs // 2) * STEPS).get()
        parameters = trainer.parameters.call_one().get()
        print(f"trained {epochs} epochs, {epochs * STEPS} steps on {len(workers)} hosts, {time.monotonic() - start:.1f} s with start-up")
    for loss in losses:
        after = f", detected {loss.at - cut:.1f} s after it was cut off" if waits else ""
        print(f"lost host:               {loss.host} at step {loss.step}: {loss.why}{after}")

    alone = train_alone(train, epochs)
    model = Model()
    model.layers = parameters[0]
    _, right = model.score(held_out)
    identical = all(np.array_equal(a, b) for layers in parameters for a, b in zip(layers, parameters[0], strict=True))
    difference = max(float(np.abs(a - b).max()) for a, b in zip(parameters[0], alone.layers, strict=True))
    print(f"held-out accuracy:       {right / HELD_OUT:.2%} ({HELD_OUT} images)")
    print(f"parameters:              {'identical' if identical else 'DIFFERENT'} on all {len(parameters)} hosts that are left")
    print(f"difference to no loss:   {difference:.1e} between a parameter here and one of an undisturbed single process")
    good = right / HELD_OUT >= 0.95 and identical and difference <= 1e-10
    missed = len(losses) == int(waits) and len(parameters) == len(workers) - int(waits)
    print("passed" if good and missed else "FAILED")
    return 0 if good and missed else 1


Start = Callable[..., "subprocess.Popen[str]"]


class Places(NamedTuple):
    """The places of the workers and the script: a function that starts a process, the address of a worker, a function that cuts it off."""

    script: Start
    workers: list[Start]
    addresses: list[str]
    cut: Callable[[int, subprocess.Popen[str]], None]


@contextlib.contextmanager
def this_machine() -> Iterator[Places]:
    """All hosts are processes here; a host is cut off by stopping its agent, which then is silent."""

    def start(*argv: str, **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(argv, text=True, **options)  # type: ignore[call-overload, no-any-return]

    def cut(_: int, worker: subprocess.Popen[str]) -> None:
        worker.send_signal(signal.SIGSTOP)

    yield Places(start, [start] * HOSTS, ["tcp://127.0.0.1:0"] * HOSTS, cut)


@contextlib.contextmanager
def namespaces() -> Iterator[Places]:
    """Each host has a network of its own; a host is cut off when the bridge drops all its traffic."""
    sys.path.insert(0, str(HERE.parent))
    from tools.netns import Network

    with Network(HOSTS + 1) as network:
        client, *hosts = network.hosts

        def cut(n: int, _: subprocess.Popen[str]) -> None:
            hosts[n].cut()

        yield Places(client.popen, [host.popen for host in hosts], [f"tcp://{host.name}:22222" for host in hosts], cut)


def run(places: Places, options: list[str]) -> int:
    """Starts the workers and the script, cuts one host off when the script is half way, and ends them."""
    # Processes inherit the environment: the script's modules, and one thread for linear algebra, as they share this machine.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    modules = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, **threads, "PYTHONPATH": modules}
    workers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        secret = Path(folder) / "secret"
        secret.touch(0o600)
        secret.write_bytes(secrets.token_bytes(32))
        for start, address in zip(places.workers, places.addresses, strict=True):
            argv = (*MONARCH, "worker", "--listen", address, "--secret-file", str(secret))
            workers.append(ends.enter_context(start(*argv, stdout=subprocess.PIPE, env=env)))
            ends.callback(workers[-1].kill)
        # Each worker writes its address once it listens.
        addresses = [worker.stdout.readline().split()[-1] for worker in workers if worker.stdout is not None]
        argv = (sys.executable, __file__, *options, "--waits", "--secret", str(secret), "--workers", *addresses)
        script = ends.enter_context(places.script(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env))
        assert script.stdin is not None and script.stdout is not None
        for line in script.stdout:
            if line.strip() == HALF:
                places.cut(1, workers[1])
                print(f"{HALF}: {addresses[1]} is cut off", flush=True)
                print(time.monotonic(), file=script.stdin, flush=True)
            else:
                print(line, end="", flush=True)
        return script.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits on three hosts, one of which is cut off.")
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--namespaces", action="store_true", help="hosts with networks of their own on this machine (root)")
    parser.add_argument("--workers", nargs="+", metavar="ADDRESS", help="hosts that are there already")
    parser.add_argument("--secret", metavar="FILE", help="what their workers were started with")
    parser.add_argument("--waits", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.workers:
        return train_on_hosts(options.workers, options.secret, 15 if options.quick else 30, options.waits)
    with namespaces() if options.namespaces else this_machine() as places:
        return run(places, ["--quick"] if options.quick else [])


if __name__ == "__main__":
    sys.exit(main())
