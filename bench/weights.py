"""Weights across layouts (`monarch.rdma.weights`), beside raw reads of the same bytes in the same round.

    python bench/weights.py [--mib 256] [--rounds 7] [--pulls 100000] [PART...]

| part | what |
|---|---|
| plan | 37,000 tensors of 8 trainers (rows) for one of 4 generators (rows and columns): the plan, in processor time; `attach`; pulls |
| shm, tcp | `--mib` of weights of 8 trainers for 4 generators, all at once, on one host or two; bytes moved; ratio to raw reads |
| verbs | the same on two hosts with an RDMA device: `python -m tools.vm run python bench/weights.py --mib 8 verbs` |
| gloo | the same on one host, beside a broadcast of the rows and a gather and scatter of the tensors with gloo, by PyTorch |
| torchstore | the same on one host, updates and pulls, beside puts and gets of TorchStore on the actors of this project |
| fan | `--mib` of weights of one trainer for 8 generators that need all of them, all at once: what the source sends |
| mixture | `--pulls` pulls of two generators while the trainer updates without a pause |
| kills | the same from two trainers that step together; in each of 20 rounds a trainer or a generator is killed in the midst of it |
| memory | the memory of trainer and generator over 1,000 versions |

A raw read is one batch of 8 reads of `RDMABuffer` for each generator, with as many bytes as its pull moves, in memory that was used before.
No two generators read the same bytes, and the bytes were written just before, like those of a pull. The hosts of `tcp` are network
namespaces with a veth pair and TLS (`tools/netns`; needs root). `gloo` and `torchstore` need PyTorch:
`python -m tools.with_torch python bench/weights.py gloo`. `torchstore` needs TorchStore, too. These and `verbs` are no defaults.
A ratio is that of one round; a line has the medians. The last line of `shm`, `tcp` and `verbs` is with `publish(columns=4)`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from requirement import module, namespaces, require
from weights_hosts import client_of_two_hosts, hosts_with_devices

import monarch.actor
from monarch.actor import Actor, MonarchError, attach_to_workers, current_rank, endpoint, this_host
from monarch.rdma import RDMAAction, RDMABuffer, RDMAPeerLostError, allocate
from monarch.rdma.weights import Box, Weights
from monarch.rdma.weights.local_tensor import local_tensors
from monarch.rdma.weights.planner import Source, find_pieces, find_runs, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from weights_gloo import Gloo

    from monarch.actor import HostMesh

PARTS = ("plan", "shm", "tcp", "fan", "mixture", "kills", "memory")
WITH_TORCH = ("gloo", "torchstore")
WITH_STORE = (
    "python -m pip install --no-deps --target FOLDER torchstore==0.1.2 pygtrie, "
    "then PYTHONPATH=FOLDER python -m tools.with_torch python bench/weights.py torchstore"
)
TENSORS = 37_000
TRAINERS, GENERATORS = 8, 4
MIB = 1 << 20
# Seven tensors of a layer: norms, projections, and what a feed-forward network has.
FORMS = ((1, 0), (1, 1), (1, 2), (1, 0), (2, 1), (2, 1), (1, 2))


def shapes(count: int, width: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for i in range(count):
        rows, columns = FORMS[i % len(FORMS)]
        found[f"model.layers.{i // len(FORMS)}.{i % len(FORMS)}.weight"] = (rows * width, columns * width) if columns else (rows * width,)
    return found


def boxes(count: int, width: int, ranks: int, rank: int, turning: bool) -> dict[str, Box]:
    """The rows of a rank; or rows and columns in turn, and the tensors of one dimension as a whole."""
    found: dict[str, Box] = {}
    for i, (name, shape) in enumerate(shapes(count, width).items()):
        low, size = [0] * len(shape), list(shape)
        if not turning or len(shape) > 1:
            dim = i % 2 if turning else 0
            low[dim], size[dim] = shape[dim] // ranks * rank, shape[dim] // ranks
        found[name] = Box(low, size, shape)
    return found


def of_rank(count: int, width: int, ranks: int, rank: int, turning: bool) -> dict[str, Any]:
    return {name: (np.zeros(box.shape, np.float32), box) for name, box in boxes(count, width, ranks, rank, turning).items()}


def group(store: str, count: int, width: int, rank: int, state: Mapping[str, Any]) -> Gloo:
    from weights_gloo import Gloo

    rows = [boxes(count, width, TRAINERS, i, False) for i in range(TRAINERS)]
    return Gloo(store, rows, [boxes(count, width, GENERATORS, i, True) for i in range(GENERATORS)], rank, state)


class Member(Actor):
    """A rank of the group with gloo, or of one of the two groups with TorchStore."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    state: dict[str, Any]

    @endpoint
    def join(self, store: str, count: int, width: int, first: int) -> None:
        self.gloo = group(store, count, width, first + current_rank()["gpus"], self.state)

    @endpoint
    def broadcast(self) -> float:
        start = time.perf_counter()
        self.gloo.broadcast()
        return time.perf_counter() - start

    @endpoint
    def gather_and_scatter(self) -> float:
        start = time.perf_counter()
        self.gloo.gather_and_scatter()
        return time.perf_counter() - start

    @endpoint
    def join_store(self, file: str) -> None:
        from weights_torchstore import Store

        self.store = Store(file, current_rank().size("gpus"), current_rank()["gpus"], self.state)

    @endpoint
    def put(self) -> float:
        start = time.perf_counter()
        self.store.put()
        return time.perf_counter() - start

    @endpoint
    def get(self) -> float:
        start = time.perf_counter()
        self.store.get()
        return time.perf_counter() - start


class Trainer(Member):
    shared: NDArray[np.uint8] | None = None

    @endpoint
    def publish(self, count: int, width: int, columns: int = 1) -> None:
        self.state = of_rank(count, width, current_rank().size("gpus"), current_rank()["gpus"], False)
        for array, _ in self.state.values():
            array.fill(current_rank()["gpus"] + 1)
        self.source = Weights.publish("policy", self.state, columns=columns)

    @endpoint
    def close(self) -> None:
        self.source.close()

    @endpoint
    def update(self) -> float:
        start = time.perf_counter()
        with self.source.update():
            pass
        seconds = time.perf_counter() - start
        if self.shared is not None:
            self.rewrite()
        return seconds

    @endpoint
    def share(self, nbytes: int) -> RDMABuffer:
        memory = allocate(nbytes)
        self.shared = np.frombuffer(memory, np.uint8)
        self.rewrite()
        return RDMABuffer(memory, readonly=True)

    def rewrite(self) -> None:
        """Writes what raw reads copy, as an update writes what pulls copy: bytes that are in a cache would be read faster."""
        self.shared[:] = self.source.version % 256

    @endpoint
    def publish_number(self, count: int) -> None:
        """The part of this rank of so many numbers, which all are the version."""
        size = count // current_rank().size("gpus")
        self.number = np.zeros(size, np.int64)
        box = Box((size * current_rank()["gpus"],), (size,), (count,))
        self.source = Weights.publish("policy", {"number": (self.number, box)})
        self.go_on = True

    @endpoint
    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        with self.source.update():
            self.number[:] = self.source.version + 1

    @endpoint
    def start(self) -> None:
        def run() -> None:
            while self.go_on:
                self._step()

        self.thread = threading.Thread(target=run)
        self.thread.start()

    @endpoint
    def stop_training(self) -> int:
        self.go_on = False
        self.thread.join()
        return self.source.version

    @endpoint
    def memory_used(self) -> int:
        return used()


class Generator(Member):
    @endpoint
    def attach(self, trainers: Any, count: int, width: int, ranks: int, buffers: int) -> tuple[float, int, int]:
        self.state = of_rank(count, width, ranks, current_rank()["gpus"], True)
        start = time.perf_counter()
        self.target = Weights.attach("policy", of=trainers, into=self.state, buffers=buffers)
        return time.perf_counter() - start, self.target.nbytes, sum(array.nbytes for array, _ in self.state.values())

    @endpoint
    def pull(self) -> float:
        start = time.perf_counter()
        self.target.pull().get()
        return time.perf_counter() - start

    @endpoint
    def sum(self) -> float:
        """The sum of all tensors, with each row times its number. They are zeros afterwards."""
        total = 0.0
        for array, _ in self.state.values():
            total += float(np.arange(1, len(array) + 1) @ array.reshape(len(array), -1).sum(1, dtype=np.float64))
            array.fill(0)
        return total

    @endpoint
    def prepare(self, buffers: list[RDMABuffer]) -> None:
        rank, count = current_rank()["gpus"], current_rank().size("gpus")
        size = buffers[0].size() // count
        self.memory = allocate(size * len(buffers))
        action = RDMAAction()
        for i, buffer in enumerate(buffers):
            action.read_remote(self.memory[i * size : (i + 1) * size], buffer.restrict(offset=rank * size, length=size))
        self.plan = action.prepare()

    @endpoint
    def raw(self) -> float:
        start = time.perf_counter()
        self.plan.submit().get()
        return time.perf_counter() - start

    @endpoint
    def attach_number(self, trainers: Any, count: int, fan_out: int = 2) -> None:
        self.number = np.zeros(count, np.int64)
        self.target = Weights.attach("policy", of=trainers, into={"number": self.number}, fan_out=fan_out)

    @endpoint
    def moved(self) -> int:
        return self.target.from_sources

    @endpoint
    def pull_numbers(self, times: int) -> tuple[int, int, int]:
        """Mixtures, different versions, and versions that had gone before they were read."""
        wrong, seen = 0, set[int]()
        for _ in range(times):
            version = self.target.pull().get()
            wrong += not (self.number == version).all()
            seen.add(version)
        return wrong, len(seen), self.target.__core__.retries

    @endpoint
    def pull_until_lost(self, times: int) -> tuple[int, int]:
        """Mixtures, and new versions until so many have come or a trainer has ended. An error leaves the tensors as they were."""
        wrong, done, last = 0, 0, -1
        with contextlib.suppress(RDMAPeerLostError):
            while done < times:
                version = self.target.pull().get()
                wrong += not (self.number == version).all()
                done, last = done + (version != last), version
        wrong += not (self.number == self.number[0]).all()
        return wrong, done

    @endpoint
    def memory_used(self) -> int:
        return used()


def used() -> int:
    """KiB of this process, shared memory by its part."""
    with open("/proc/self/smaps_rollup") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Pss:"))


def milliseconds(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.1f} ms"


def plan(rounds: int) -> None:
    width = 64
    sources = [Source(local_tensors(of_rank(TENSORS, width, TRAINERS, rank, False)).table, 1, f"rank {rank}") for rank in range(TRAINERS)]
    state = of_rank(TENSORS, width, GENERATORS, 1, True)
    times: dict[str, list[float]] = {"describe": [], "pieces": [], "runs": []}
    pieces = runs = None
    for _ in range(rounds):
        moments = [time.process_time()]
        table = local_tensors(state).table
        moments.append(time.process_time())
        pieces = find_pieces(table, sources, rank=1)
        moments.append(time.process_time())
        runs = merged(
            find_runs(pieces.extent, pieces.itemsize, (pieces.start, pieces.strides), (pieces.dense, pieces.dense_strides)), pieces.source
        )
        moments.append(time.process_time())
        for name, start, end in zip(times, moments, moments[1:], strict=False):
            times[name].append(end - start)
    assert pieces is not None and runs is not None
    total = [sum(parts) for parts in zip(*times.values(), strict=True)]
    parts = ", ".join(f"{name} {milliseconds(found)}" for name, found in times.items())
    print(f"plan of {TENSORS:,} tensors, {len(pieces.source):,} pieces, {len(runs.piece):,} runs: {milliseconds(total)} of CPU ({parts})")
    with this_host().spawn_procs({"gpus": TRAINERS}) as near, this_host().spawn_procs({"gpus": 1}) as far:
        trainers, generator = near.spawn("trainers", Trainer), far.spawn("generator", Generator)
        trainers.publish.call(TENSORS, width).get()
        seconds, nbytes, _ = generator.attach.call_one(trainers, TENSORS, width, GENERATORS, 2).get()
        print(f"attach: {seconds * 1e3:.0f} ms; pulls of {nbytes / 1e6:.0f} MB:", end=" ")
        print(f"first {generator.pull.call_one().get() * 1e3:.0f} ms, further", end=" ")
        pulls: list[float] = []
        for _ in range(rounds):
            trainers.update.call().get()
            pulls.append(generator.pull.call_one().get())
        print(milliseconds(pulls))


def layers(mib: int) -> tuple[int, int]:
    """The number of tensors of about that many bytes, and their width."""
    count, width = 7, 2048
    while width > 64 and sum(4 * int(np.prod(shape)) for shape in shapes(count, width).values()) > mib * MIB:
        width //= 2
    scale = mib * MIB // sum(4 * int(np.prod(shape)) for shape in shapes(count, width).values())
    return count * max(scale, 1), width


def layouts(path: str, mib: int, rounds: int, hosts: HostMesh) -> None:
    count, width = layers(mib)
    with contextlib.ExitStack() as stack:
        trainers = stack.enter_context(hosts.spawn_procs({"gpus": TRAINERS})).spawn("trainers", Trainer)
        for columns, buffers in ((1, 2), (1, 1), (GENERATORS, 2)):
            trainers.publish.call(count, width, columns).get()
            generators = stack.enter_context(this_host().spawn_procs({"gpus": GENERATORS})).spawn("generators", Generator)
            found = generators.attach.call(trainers, count, width, GENERATORS, buffers).get().values()
            moved, needed = (sum(row[i] for row in found) for i in (1, 2))
            generators.prepare.call(trainers.share.call(found[0][1] // TRAINERS * GENERATORS).get().values()).get()
            times: dict[str, list[float]] = {"raw": [], "pull": [], "update": []}
            for turn in range(rounds + 2):
                update = max(trainers.update.call().get().values())
                cases = [("raw", generators.raw), ("pull", generators.pull)]
                for name, call in cases[:: 1 if turn % 2 else -1]:
                    seconds = max(call.call().get().values())
                    if turn > 1:
                        times[name].append(seconds)
                if turn > 1:
                    times["update"].append(update)
            trainers.close.call().get()
            ratios = sorted(raw / pull for raw, pull in zip(times["raw"], times["pull"], strict=True))
            print(
                f"{path}, publish(columns={columns}), attach(buffers={buffers}): {moved / 1e6:.0f} MB moved, "
                f"{moved / needed:.3f} of what targets need; pull {milliseconds(times['pull'])}, raw {milliseconds(times['raw'])}, "
                f"share {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); update {milliseconds(times['update'])}"
            )


def gloo(mib: int, rounds: int) -> None:
    count, width = layers(mib)
    with (
        tempfile.TemporaryDirectory() as folder,
        this_host().spawn_procs({"gpus": TRAINERS}) as near,
        this_host().spawn_procs({"gpus": GENERATORS}) as far,
    ):
        trainers, generators = near.spawn("trainers", Trainer), far.spawn("generators", Generator)
        trainers.publish.call(count, width).get()
        found = generators.attach.call(trainers, count, width, GENERATORS, 2).get().values()
        generators.prepare.call(trainers.share.call(found[0][1] // TRAINERS * GENERATORS).get().values()).get()
        store = f"{folder}/store"
        joining = [trainers.join.call(store, count, width, 0), generators.join.call(store, count, width, TRAINERS)]
        for future in joining:
            future.get()

        def both(name: str) -> float:
            calls = [getattr(mesh, name).call() for mesh in (trainers, generators)]
            return max(max(call.get().values()) for call in calls)

        times: dict[str, list[float]] = {"raw": [], "pull": [], "broadcast": [], "gather_and_scatter": []}
        expected = None
        for turn in range(rounds + 1):
            trainers.update.call().get()
            cases: list[tuple[str, Callable[[], float]]] = [
                ("pull", lambda: max(generators.pull.call().get().values())),
                ("raw", lambda: max(generators.raw.call().get().values())),
                ("broadcast", lambda: both("broadcast")),
                ("gather_and_scatter", lambda: both("gather_and_scatter")),
            ]
            for name, run in cases[:: -1 if turn % 2 else 1]:
                seconds = run()
                if not turn and name != "raw":  # all give the same weights
                    sums = generators.sum.call().get().values()
                    expected = expected or sums
                    assert sums == expected and all(sums), name
                if turn:
                    times[name].append(seconds)
    print(f"gloo, {sum(row[1] for row in found) / 1e6:.0f} MB:", end=" ")
    for name, seconds in times.items():
        ratios = sorted(other / pull for other, pull in zip(seconds, times["pull"], strict=True))
        beside = "" if name == "pull" else f", {statistics.median(ratios):.2f} of the pull's ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name} {milliseconds(seconds)}{beside}", end="\n" if name == "gather_and_scatter" else "; ")


def torchstore(mib: int, rounds: int) -> None:
    from weights_torchstore import start

    count, width = layers(mib)
    with (
        tempfile.TemporaryDirectory() as folder,
        this_host().spawn_procs({"gpus": TRAINERS}) as near,
        this_host().spawn_procs({"gpus": GENERATORS}) as far,
    ):
        start(TRAINERS)
        trainers, generators = near.spawn("trainers", Trainer), far.spawn("generators", Generator)
        trainers.publish.call(count, width).get()
        found = generators.attach.call(trainers, count, width, GENERATORS, 2).get().values()
        for name, mesh in (("trainers", trainers), ("generators", generators)):
            mesh.join_store.call(f"{folder}/{name}").get()
        ways = {"update": trainers.update, "pull": generators.pull}, {"put": trainers.put, "get": generators.get}
        times: dict[str, list[float]] = {name: [] for way in ways for name in way}
        expected = None
        for turn in range(rounds + 1):
            for way in ways[:: -1 if turn % 2 else 1]:
                for name, step in way.items():
                    seconds = max(step.call().get().values())
                    if turn:
                        times[name].append(seconds)
                if not turn:  # both give the same weights
                    sums = generators.sum.call().get().values()
                    expected = expected or sums
                    assert sums == expected and all(sums), way
    print(f"torchstore, {sum(row[1] for row in found) / 1e6:.0f} MB:", ", ".join(f"{name} {milliseconds(times[name])}" for name in times))
    both = zip(*times.values(), strict=True)
    ratios = [((put + get) / (update + pull), get / pull) for update, pull, put, get in both]
    for name, values in zip(("put and get: {} of update and pull", "get: {} of pull"), zip(*ratios, strict=True), strict=True):
        print(name.format(f"{statistics.median(values):.2f}"), f"({min(values):.2f} to {max(values):.2f})")


def fan(mib: int, rounds: int) -> None:
    count, readers = mib * MIB // 8, 8
    with this_host().spawn_procs({"gpus": 1}) as near, this_host().spawn_procs({"gpus": readers}) as far:
        trainer, generators = near.spawn("trainer", Trainer), far.spawn("generators", Generator)
        trainer.publish_number.call_one(count).get()
        for fan_out in (0, 2, 1):
            generators.attach_number.call(trainer, count, fan_out).get()
            generators.pull.call().get()
            before = sum(generators.moved.call().get().values())
            seconds: list[float] = []
            for _ in range(rounds):
                trainer.train.call_one(1).get()
                seconds.append(max(generators.pull.call().get().values()))
            sent = (sum(generators.moved.call().get().values()) - before) / rounds / (8 * count)
            print(f"fan_out={fan_out}: the source sends {sent:.1f} times {mib} MiB to {readers} generators; pull {milliseconds(seconds)}")


def mixture(pulls: int) -> None:
    count = 1 << 15
    with this_host().spawn_procs({"gpus": 1}) as near, this_host().spawn_procs({"gpus": 2}) as far:
        trainer, generators = near.spawn("trainer", Trainer), far.spawn("generators", Generator)
        trainer.publish_number.call_one(count).get()
        generators.attach_number.call(trainer, count).get()
        trainer.start.call_one().get()
        found = generators.pull_numbers.call(pulls // 2).get().values()
        version = trainer.stop_training.call_one().get()
    wrong, seen, again = (sum(row[i] for row in found) for i in range(3))
    print(f"{pulls:,} pulls of {8 * count >> 10} KiB: {wrong} mixtures, {seen:,} versions pulled of {version:,}, {again:,} read again")


def kills(pulls: int, rounds: int = 20) -> None:
    """A killed trainer ends both trainers, as a group of ranks does; then all that have ended are replaced, and attach again."""
    count, chance = 1 << 15, random.Random(1)
    killed, monarch.actor.unhandled_fault_hook = {"trainer": 0, "generator": 0}, lambda _: None
    over = threading.Event()
    trainers: Any = None
    generators: list[Any] = [None, None]
    wrong = done = 0

    def step(trainers: Any, pid: int, until: int) -> None:
        with contextlib.suppress(MonarchError):
            while not over.is_set():
                trainers.train.call(1).get()
                until -= 1
                if until == 0:
                    os.kill(pid, signal.SIGKILL)

    while done < pulls:
        if trainers is None:
            trainers = this_host().spawn_procs({"gpus": 2}, name="trainers").spawn("trainer", Trainer)
            trainers.publish_number.call(count).get()
        for i in range(2):
            generators[i] = generators[i] or this_host().spawn_procs({"gpus": 1}, name=f"generators{i}").spawn("generator", Generator)
            generators[i].attach_number.call_one(trainers, count).get()
        kind = ("trainer", "generator")[sum(killed.values()) % 2]
        pid = (trainers.slice(gpus=0) if kind == "trainer" else generators[0]).pid.call_one().get()
        pulling = [generator.pull_until_lost.call_one(pulls // rounds).start() for generator in generators]
        training = threading.Thread(target=step, args=(trainers, pid, chance.randrange(50, 1000)))
        over.clear()
        training.start()
        for future in pulling:
            with contextlib.suppress(MonarchError):  # the generator was killed
                bad, more = future.get()
                wrong, done = wrong + bad, done + more
        over.set()
        training.join()
        killed[kind] += 1
        if kind == "trainer":
            trainers = None
        else:
            generators[0] = None
    print(f"{done:,} pulls of new versions of {8 * count >> 10} KiB, {json.dumps(killed)} killed: {wrong} mixtures")


def memory(versions: int = 1000) -> None:
    count = 1 << 20
    with this_host().spawn_procs({"gpus": 1}) as near, this_host().spawn_procs({"gpus": 1}) as far:
        trainer, generator = near.spawn("trainer", Trainer), far.spawn("generator", Generator)
        trainer.publish_number.call_one(count).get()
        generator.attach_number.call_one(trainer, count).get()
        before = None
        for step in range(versions + 20):
            trainer.train.call_one(1).get()
            assert generator.pull_numbers.call_one(1).get()[0] == 0
            if step == 19:
                before = [actor.memory_used.call_one().get() for actor in (trainer, generator)]
        after = [actor.memory_used.call_one().get() for actor in (trainer, generator)]
    assert before is not None
    print(f"{versions:,} versions of 8 MiB: KiB of trainer and generator {json.dumps(before)}, then {json.dumps(after)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pulls", type=int, default=100_000)
    parser.add_argument("--worker", nargs=2, metavar=("ADDRESS", "SECRET"), help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "verbs", *WITH_TORCH, []], metavar="PART")
    options = parser.parse_args()
    if options.worker:
        address, secret = options.worker
        layouts("tcp", options.mib, options.rounds, attach_to_workers(workers=[address], secret=secret))
        return
    parts = options.parts or PARTS
    with_torch = module("torch", "python -m tools.side_venv torch, then python -m tools.with_torch python bench/weights.py gloo")
    needs = [namespaces()] if "tcp" in parts else []
    needs += [with_torch] if set(parts) & set(WITH_TORCH) else []
    needs += [module(name, WITH_STORE) for name in ("torchstore", "pygtrie")] if "torchstore" in parts else []
    require(*needs)
    for part in parts:
        if part == "plan":
            plan(options.rounds)
        elif part == "gloo":
            gloo(options.mib, options.rounds)
        elif part == "torchstore":
            torchstore(options.mib, options.rounds)
        elif part == "fan":
            fan(options.mib, options.rounds)
        elif part == "mixture":
            mixture(options.pulls)
        elif part == "kills":
            kills(options.pulls)
        elif part == "memory":
            memory()
        elif part == "tcp":
            client_of_two_hosts(__file__, f"--mib={options.mib}", f"--rounds={options.rounds}")
        elif part == "verbs":
            with hosts_with_devices() as hosts:
                layouts(part, options.mib, options.rounds, hosts)
        else:
            layouts(part, options.mib, options.rounds, this_host())


if __name__ == "__main__":
    main()
