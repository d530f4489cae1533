"""Weights go from a trainer to generators after every step: through a buffer set, and, to compare, by messages.

    python weights.py [--size 1GiB] [--steps 5] [--generators 1] [--quick]
    python weights.py --workers ADDRESS ADDRESS... --secret FILE      the trainer on the first host, a generator on each of the others

The trainer holds its weights in memory that others can copy from, and sends one handle of all of them, once. After a step each
generator fetches them into the arrays that it computes with: no process pickles them, and the trainer's Python takes no part. By messages
the trainer answers a call with its weights, as any endpoint returns arrays, and the generator copies them to their place.

Prints the time of both for every step. Exits with 1 if a generator has other weights than the trainer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from monarch.actor import Actor, ProcMesh, ValueMesh, attach_to_workers, endpoint, this_host
from monarch.rdma import RDMABuffer, RDMABufferSet, allocate

LAYERS = 32
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

Array = NDArray[np.float32]
Weights = dict[str, Array]


def checksum(weights: Weights) -> int:
    """A number that differs between any two models that differ in one weight."""
    return sum(int(layer.view(np.uint32).sum(dtype=np.uint64)) for layer in weights.values()) % (1 << 64)


class Published(NamedTuple):
    """The handle with which generators fetch the weights: small, and valid for the life of the trainer."""

    weights: RDMABufferSet
    step: RDMABuffer


class Trainer(Actor):
    def __init__(self, nbytes: int) -> None:
        self.step = np.frombuffer(allocate(8), np.int64)
        self.weights: Weights = {f"layer{i}": np.frombuffer(allocate(nbytes // LAYERS), np.float32) for i in range(LAYERS)}
        for i, layer in enumerate(self.weights.values()):
            layer[:] = np.linspace(-1, 1, len(layer), dtype=np.float32) * (i + 1)

    @endpoint
    def publish(self) -> Published:
        """For reading only. Arrays are shared as flat memory."""
        weights = RDMABufferSet({name: memoryview(layer) for name, layer in self.weights.items()}, readonly=True)
        return Published(weights, RDMABuffer(memoryview(self.step), readonly=True))

    @endpoint
    def train(self) -> tuple[int, int]:
        """Trains a step; returns its number, and the checksum of the weights after it."""
        self.step += 1
        for layer in self.weights.values():
            layer *= np.float32(0.5)
            layer += np.float32(self.step[0])
        return int(self.step[0]), checksum(self.weights)

    @endpoint
    def current(self) -> tuple[int, Weights]:
        """The weights, and their step, as a message."""
        return int(self.step[0]), self.weights


class Handover(NamedTuple):
    seconds: float
    step: int
    checksum: int


class Generator(Actor):
    def __init__(self, trainer: Trainer, published: Published) -> None:
        self.trainer = trainer
        self.published = published
        self.step = np.zeros(1, np.int64)
        # The arrays that this actor computes with: the weights arrive there.
        self.weights: Weights = {}
        for name in published.weights.keys():
            _, (count,) = published.weights.spec(name)
            self.weights[name] = np.full(count, np.nan, np.float32)
        self.plan = published.weights.plan_read({name: memoryview(layer) for name, layer in self.weights.items()})

    @endpoint
    def path(self) -> str:
        return self.published.step.path

    @endpoint
    def fetch(self) -> Handover:
        """Fetches the weights through the buffer set."""
        start = time.perf_counter()
        self.plan.submit().get()
        self.published.step.read_into(memoryview(self.step)).get()
        return Handover(time.perf_counter() - start, int(self.step[0]), checksum(self.weights))

    @endpoint
    def ask(self) -> Handover:
        """Gets the weights by messages; the arrays of the answer are copied to their place."""
        start = time.perf_counter()
        step, weights = self.trainer.current.call_one().get()
        for name, layer in weights.items():
            self.weights[name][:] = layer
        return Handover(time.perf_counter() - start, step, checksum(self.weights))


def hand_over(trainers: ProcMesh, procs: ProcMesh, nbytes: int, steps: int) -> bool:
    trainer = trainers.spawn("trainer", Trainer, nbytes)
    generators = procs.spawn("generators", Generator, trainer, trainer.publish.call_one().get())
    paths = sorted(set(generators.path.call().get().values()))
    print(f"{nbytes / 1e6:,.1f} MB in {LAYERS} layers, {len(generators)} generator(s), path {', '.join(paths)}")
    good, by_set, by_message = True, list[float](), list[float]()

    for step in range(1, steps + 1):
        for name, seen, fetch in (("buffer set", by_set, generators.fetch), ("messages", by_message, generators.ask)):
            # Each handover has weights that the generators have not seen.
            number, expected = trainer.train.call_one().get()
            handovers = fetch.call().get()
            good = good and all(found[1:] == (number, expected) for found in handovers.values())
            seen.append(slowest(handovers))
            print(f"step {step}: {name:<10} {seen[-1] * 1e3:8.1f} ms  {nbytes / seen[-1] / 1e9:6.2f} GB/s", flush=True)

    # The first step of each kind is slower: memory is touched, or shared, for the first time.
    warm_set, warm_message = (statistics.median(seen[1:] or seen) for seen in (by_set, by_message))
    print(f"per step: {warm_set * 1e3:.1f} ms through the buffer set, {warm_message * 1e3:.1f} ms by messages")
    print("passed" if good else "FAILED: a generator has other weights than the trainer")
    return good


def slowest(handovers: ValueMesh[Handover]) -> float:
    return max(found.seconds for found in handovers.values())


def size(text: str) -> int:
    """`1GiB`, as whole layers."""
    number, unit = text[:-3], UNITS.get(text[-3:])
    if unit is None or not number.isdecimal() or int(number) * unit < 4 * LAYERS:
        raise argparse.ArgumentTypeError(f"'{text}': write 64KiB, 16MiB or 1GiB")
    return int(number) * unit // (4 * LAYERS) * (4 * LAYERS)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hand weights over from a trainer to generators, through a buffer set and by messages.")
    parser.add_argument("--size", type=size, help="of all weights (default: 1GiB)")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--generators", type=int, default=1, help="processes on this host (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller steps")
    parser.add_argument("--workers", nargs="+", metavar="ADDRESS", help="hosts: one for the trainer, then one for each generator")
    parser.add_argument("--secret", metavar="FILE", help="what their workers were started with")
    options = parser.parse_args()
    nbytes, steps = options.size or size("8MiB" if options.quick else "1GiB"), 2 if options.quick else options.steps
    if options.workers and len(options.workers) < 2:
        parser.error("--workers: one for the trainer, and at least one for a generator")

    if not options.workers:
        generators = this_host().spawn_procs(per_host={"generators": options.generators})
        return 0 if hand_over(this_host().spawn_procs(), generators, nbytes, steps) else 1
    with attach_to_workers(workers=options.workers, secret=options.secret) as hosts:
        trainers, generators = hosts.slice(hosts=0).spawn_procs(), hosts.slice(hosts=slice(1, None)).spawn_procs()
        return 0 if hand_over(trainers, generators, nbytes, steps) else 1


if __name__ == "__main__":
    sys.exit(main())
