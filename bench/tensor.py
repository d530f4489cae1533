"""The cost of the tensors of a mesh on the controller, beside eager torch and beside torch.distributed.

    python -m tools.with_torch python bench/tensor.py [--rounds N] [--device cpu] [--json FILE] [PART...]

| part | content |
|---|---|
| operations | a chain of `torch.mul` on 4 elements, 1 worker: issued in bursts within the window, and in a long run; wall and thread time |
| over_eager | the same chain with its final `check()`, beside eager torch |
| step | a training step whose mean kernel takes 50 and 20 us, 1 worker, beside eager torch |
| transformer | a step of a small transformer: eager, 1 worker, 2 data-parallel workers, DDP of torch.distributed on 2 processes |
| replay | that step recorded by `compile`, and replayed |
| activation | 8 procs that have imported torch: from `activate()` to the first data of a tensor; and the import by the first operator |
| fetch | one element, and 64 MiB |
| reduce | 4 bytes and 4 MiB on 2 workers, beside `all_reduce` of torch.distributed with gloo |
| death | from the SIGKILL of a worker to the exception of a fetch that waits for it |
| memory | resident memory of the controller and a worker over 1,000,000 operations |

All but `memory` by default. Each part runs in a process of its own. Peers alternate in each round, since the machine is shared, and a
ratio is that of one round. A line has the median and the quartiles of the rounds. Processor times are given beside the wall times, which
include the load of other programs: `thread` is the thread that issues operations, or that executes them on a worker, and `process` is
the process with all its threads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensor_environment  # noqa: F401  it ends the bench without PyTorch
import torch
import torch.distributed as dist
from tensor_models import Step, all_reduced, each_reduced, perceptron, transformer_step
from tensor_numbers import Watch, WorkerWatch, put, ratio, text
from tensor_peers import Peers
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from monarch.actor import Actor, endpoint, this_host

BURST, LONG, EAGER = 2_000, 20_000, 10_000
STEPS = 40
PROCS = 8
# Seconds after which a part is given up.
LIMIT = 900
_KERNELS_US = (50, 20)

device = "cpu"


def settled() -> None:
    """Waits for the device of this process."""
    if device == "cuda":
        torch.cuda.synchronize()


# Meshes


@contextlib.contextmanager
def workers(count: int) -> Iterator[Any]:
    """An active mesh of `count` procs, each with one thread for torch, and with all of its workers at work."""
    from monarch import tensor

    procs = this_host().spawn_procs({"gpus": count})
    with procs.activate() as mesh:
        tensor.remote(_one_thread).call().get()
        mesh.check()
        yield mesh
    procs.stop().get()


def _one_thread() -> int:
    torch.set_num_threads(1)
    return os.getpid()


def fenced(mesh: Any) -> Callable[[], None]:
    """A function that returns when all workers have executed the issued commands, including those on their devices."""
    from monarch import tensor

    wait = tensor.remote(settled)

    def fence() -> None:
        if device == "cuda":
            wait.call().get()
        mesh.check()

    return fence


# Parts


def chain(count: int, value: Any, by: Any) -> Any:
    for _ in range(count):
        value = torch.mul(value, by)
    return value


def operations(rounds: int) -> None:
    found: dict[str, list[float]] = {}
    with workers(1) as mesh:
        value, by = torch.ones(4, device=device), torch.ones(4, device=device)
        chain(BURST, value, by)
        mesh.check()
        for _ in range(rounds):
            # A burst fits into the window.
            for what, count in (("burst", BURST), ("long run", LONG)):
                executing = WorkerWatch()
                watch = Watch()
                last = chain(count, value, by)
                times = {"wall": watch.wall(), "controller, thread": watch.thread()}
                mesh.check()
                times |= {"wall with the final check": watch.wall(), "controller, process": watch.process()}
                times |= dict(zip(("worker, thread", "worker, process"), executing.spent(), strict=True))
                for name, seconds in times.items():
                    found.setdefault(f"{what}, {name}", []).append(seconds / count * 1e6)
                del last
    goals = {"burst, wall": "<= 10", "burst, controller, thread": "<= 10", "long run, controller, thread": "<= 10"}
    for what, values in found.items():
        put("operations", f"one operation, {what}", values, "us", goals.get(what, ""))
    for what in ("burst, wall", "burst, controller, thread", "long run, wall with the final check"):
        put("operations", f"operations, {what}", [1e6 / v for v in found[what]], "/s", ">= 100,000")


def over_eager(rounds: int) -> None:
    ours: list[float] = []
    eager: list[float] = []
    with workers(1) as mesh:
        fence = fenced(mesh)
        value, by = torch.ones(4, device=device), torch.ones(4, device=device)
        with _outside():
            local, local_by = torch.ones(4, device=device), torch.ones(4, device=device)
        chain(BURST, value, by)
        fence()
        for _ in range(rounds):
            watch = Watch()
            chain(EAGER, value, by)
            fence()
            ours.append(watch.wall() / EAGER * 1e6)
            with _outside():
                watch = Watch()
                chain(EAGER, local, local_by)
                settled()
                eager.append(watch.wall() / EAGER * 1e6)
    put("over_eager", "one operation, eager", eager, "us")
    put("over_eager", "one operation, 1 worker, with the final check", ours, "us")
    put("over_eager", "one operation, over eager", [a - b for a, b in zip(ours, eager, strict=True)], "us", "<= 15")


@contextlib.contextmanager
def _outside() -> Iterator[None]:
    """Torch without a mesh: the modes of the active mesh are off the stack."""
    with _disable_current_modes():
        yield


class _Count(TorchDispatchMode):
    """Counts operators that compute, and those that make views."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view or func._overloadpacket.__name__ == "detach":
            self.views += 1
        else:
            self.kernels += 1
        return func(*args, **(kwargs or {}))


def repeated(step: Step, count: int, end: Callable[[], None] = settled) -> tuple[float, float]:
    """Wall and thread time of one step, over `count` steps."""
    watch = Watch()
    for _ in range(count):
        step()
    thread = watch.thread()
    end()
    return watch.wall() / count, thread / count


def mean_kernel(step: Step) -> tuple[float, int, int]:
    """For an eager step: the time of an operator that computes, and the numbers of these and of views."""
    step()
    count = _Count()
    with count:
        step()
    seconds = statistics.median(repeated(step, 5)[1] for _ in range(7))
    return seconds / count.kernels * 1e6, count.kernels, count.views


def sized(target_us: float) -> tuple[int, int, float]:
    """Width and batch of the perceptron whose mean kernel is nearest to `target_us`, and its time."""
    found: list[tuple[float, int, int, float]] = []
    for width in (*range(64, 513, 32), 640, 768, 1024, 2048, 4096):
        batch = width // 2
        mean, _, _ = mean_kernel(perceptron(width, batch, device))
        found.append((abs(mean - target_us), width, batch, mean))
        if mean > 2 * target_us:
            break
    _, width, batch, mean = min(found)
    return width, batch, mean


def step(rounds: int) -> None:
    sizes = [(us, *sized(us)) for us in _KERNELS_US]
    with workers(1) as mesh:
        fence = fenced(mesh)
        for us, width, batch, _ in sizes:
            ours = perceptron(width, batch, device)
            with _outside():
                eager = perceptron(width, batch, device)
                _, kernels, views = mean_kernel(eager)
            repeated(ours, 5, fence)
            found: dict[str, list[float]] = {}

            def keep(found: dict[str, list[float]] = found, **values: float) -> None:
                for name, value in values.items():
                    found.setdefault(name, []).append(value * 1e3)

            for _ in range(rounds):
                with _outside():
                    wall, thread = repeated(eager, STEPS)
                keep(eager=wall, eager_thread=thread)
                executing = WorkerWatch()
                wall, thread = repeated(ours, STEPS, fence)
                keep(ours=wall, controller_thread=thread, worker_thread=executing.spent()[0] / STEPS)
            name = f"step of {us} us"
            more = {"width": width, "batch": batch, "kernels": kernels, "views": views}
            put("step", f"{name}: mean kernel, thread", [t / kernels * 1e3 for t in found["eager_thread"]], "us", **more)
            put("step", f"{name}: eager", found["eager"], "ms")
            put("step", f"{name}: 1 worker", found["ours"], "ms")
            ratio("step", f"{name}: 1 worker to eager", found["ours"], found["eager"], "<= 1.05" if us >= 50 else "<= 1.10")
            put("step", f"{name}: thread of the controller", found["controller_thread"], "ms")
            each = [t / (kernels + views) * 1e3 for t in found["controller_thread"]]
            put("step", f"{name}: thread of the controller, each operator", each, "us", "<= 10")
            put("step", f"{name}: thread of the worker", found["worker_thread"], "ms")
            ratio("step", f"{name}: thread of the worker to that of eager", found["worker_thread"], found["eager_thread"])


def transformer(rounds: int) -> None:
    from monarch import tensor

    found: dict[str, list[float]] = {}
    threads: dict[str, list[float]] = {}

    def measured(name: str, step: Step, end: Callable[[], None]) -> None:
        wall, thread = repeated(step, STEPS, end)
        found.setdefault(name, []).append(wall * 1e3)
        threads.setdefault(name, []).append(thread * 1e3)

    with workers(2) as both, Peers(__file__, device, "ddp") as peers:
        one = both.slice(gpus=0)
        with _outside():
            eager = transformer_step(device)
            counted = mean_kernel(eager)
        steps = {
            "2 workers, a reduction for each gradient": (both, transformer_step(device, reduced=each_reduced)),
            "2 workers, one reduction": (both, transformer_step(device, reduced=all_reduced)),
            "2 workers, one reduction, recorded": (both, tensor.compile(transformer_step(device, reduced=all_reduced))),
            "2 workers, no reduction": (both, transformer_step(device)),
        }
        with one.activate():
            steps["1 worker"] = (one, transformer_step(device))
            steps["1 worker, recorded"] = (one, tensor.compile(transformer_step(device)))
        for mesh, body in steps.values():
            with mesh.activate():
                repeated(body, 5, fenced(mesh))
        for _ in range(rounds):
            with _outside():
                measured("eager", eager, settled)
            for name, (mesh, body) in steps.items():
                with mesh.activate():
                    measured(name, body, fenced(mesh))
            found.setdefault("DDP on 2 processes", []).append(1e3 * peers.measure())
    more = {"kernels": counted[1], "views": counted[2]}
    for name, values in found.items():
        put("transformer", f"step of a transformer, {name}", values, "ms", **(more if name == "eager" else {}))
    for name in steps:
        put("transformer", f"thread of the controller, {name}", threads[name], "ms")
    ratio("transformer", "1 worker to eager", found["1 worker"], found["eager"])
    ratio("transformer", "1 worker, recorded, to eager", found["1 worker, recorded"], found["eager"])
    for name in steps:
        if name.startswith("2 workers"):
            ratio("transformer", f"{name}, to DDP", found[name], found["DDP on 2 processes"])


def replay(rounds: int) -> None:
    from monarch import tensor

    with workers(1) as mesh:
        recorded = tensor.compile(transformer_step(device))
        for _ in range(5):
            recorded()
        mesh.check()
        walls, threads, ends = [], [], []
        for _ in range(rounds):
            watch = Watch()
            for _ in range(STEPS):
                recorded()
            wall, thread = watch.wall(), watch.thread()
            mesh.check()
            walls.append(wall / STEPS * 1e6)
            threads.append(thread / STEPS * 1e6)
            ends.append(watch.wall() / STEPS * 1e3)
    put("replay", "recorded step of the transformer replayed, controller, wall", walls, "us", "<= 100")
    put("replay", "recorded step of the transformer replayed, controller, thread", threads, "us", "<= 100")
    put("replay", "recorded step of the transformer replayed, until it is done", ends, "ms")


class Importer(Actor):
    """Imports torch in its proc."""

    @endpoint
    def load(self) -> str:
        return torch.__version__


def activation(rounds: int) -> None:
    from monarch import tensor

    host = this_host()
    with host.spawn_procs({"gpus": 1}).activate() as mesh:
        tensor.remote(_one_thread).call().get()
        watch = Watch()
        torch.ones(4, device=device)
        put("activation", "first operator of a process, with the imports of torch that it needs", [watch.wall()], "s")
        mesh.check()
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for what in ("with torch", "without torch"):
            # Eight imports of torch take long on two cores: three rounds are enough.
            if what == "without torch" and number >= 3:
                continue
            procs = host.spawn_procs({"gpus": PROCS})
            if what == "with torch":
                procs.spawn("importer", Importer).load.call().get()
            watch = Watch()
            with procs.activate() as mesh:
                tensor.inspect(torch.ones(4, device=device))
                found.setdefault(f"{what}, until the first data", []).append(watch.wall())
                mesh.check()
                found.setdefault(f"{what}, until all ranks are at work", []).append(watch.wall())
            procs.stop().get()
    for what, values in found.items():
        put("activation", f"{PROCS} procs {what}", values, "s", "<= 0.3" if what.startswith("with torch") else "")


def fetch(rounds: int) -> None:
    from monarch import tensor

    with workers(1) as mesh:
        small, large = torch.ones(1, device=device), torch.ones(16 << 20, device=device)
        mesh.check()
        latencies: list[float] = []
        for _ in range(20 * rounds):
            watch = Watch()
            tensor.inspect(small)
            latencies.append(watch.wall() * 1e6)
        rates: list[float] = []
        copies: list[float] = []
        with _outside():
            local = torch.ones(16 << 20)
        for _ in range(rounds):
            watch = Watch()
            got = tensor.inspect(large)
            rates.append(64 / watch.wall() * 1.048576)
            del got
            with _outside():
                watch = Watch()
                local.clone()
                copies.append(64 / watch.wall() * 1.048576)
    put("fetch", "inspect of one element", latencies, "us")
    put("fetch", "inspect of 64 MiB", rates, "MB/s")
    put("fetch", "copy of 64 MiB into new memory by torch, within a process", copies, "MB/s")


def reduce(rounds: int) -> None:
    from monarch import tensor

    sizes = {"4 bytes": (1, 200), "4 MiB": (1 << 20, 10)}
    found: dict[str, list[float]] = {}
    with workers(2) as mesh:
        for name, (count, times) in sizes.items():
            value = torch.ones(count, device=device)
            peers = Peers(__file__, device, "reduce", count, times)
            for _ in range(3):
                tensor.inspect(value.reduce("gpus", "max")[:1])
            mesh.check()
            for _ in range(rounds):
                watch = Watch()
                for _ in range(times):
                    value.reduce("gpus", "max")
                mesh.check()
                found.setdefault(f"{name}, one of many", []).append(watch.wall() / times * 1e6)
                watch = Watch()
                for _ in range(times):
                    value.reduce_("gpus", "max")
                mesh.check()
                found.setdefault(f"{name}, in place, one of many", []).append(watch.wall() / times * 1e6)
                watch = Watch()
                for _ in range(max(5, times // 10)):
                    tensor.inspect(value.reduce("gpus", "max")[:1])
                found.setdefault(f"{name}, each fetched", []).append(watch.wall() / max(5, times // 10) * 1e6)
                found.setdefault(f"{name}, torch.distributed", []).append(1e6 * peers.measure())
            peers.end()
    for name, values in found.items():
        put("reduce", f"reduce of {name}", values, "us")
    for name in sizes:
        ratio(
            "reduce",
            f"reduce of {name} in place, to torch.distributed",
            found[f"{name}, in place, one of many"],
            found[f"{name}, torch.distributed"],
        )


def _asleep() -> None:
    time.sleep(60)  # sleeps: a worker that is busy until it is killed


def death(rounds: int) -> None:
    import monarch.actor
    from monarch import tensor
    from monarch.actor import SupervisionError

    monarch.actor.unhandled_fault_hook = lambda failure: None
    found: list[float] = []
    for _ in range(rounds):
        procs = this_host().spawn_procs({"gpus": 2})
        at: list[float] = []
        with procs.activate() as mesh:
            pids = [pid for _, pid in tensor.remote(_one_thread).call().get().items()]
            value = torch.ones(4, device=device)
            mesh.check()
            tensor.remote(_asleep)()
            waiting = tensor.fetch_shard(value * 2)

            def kill(pid: int = pids[0], at: list[float] = at) -> None:
                at.append(time.perf_counter())
                os.kill(pid, signal.SIGKILL)

            threading.Timer(0.3, kill).start()
            try:
                waiting.get(timeout=20)
                raise AssertionError("a fetch from a dead worker was answered")
            except SupervisionError:
                found.append((time.perf_counter() - at[0]) * 1e3)
        with contextlib.suppress(Exception):
            procs.stop().get()
    put("death", "SIGKILL of a worker to the exception of a pending fetch", found, "ms", "<= 100")


def resident(pid: int) -> float:
    """Resident memory in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def memory(rounds: int) -> None:
    from monarch import tensor

    with workers(1) as mesh:
        value, by = torch.ones(4, device=device), torch.ones(4, device=device)
        (pid,) = (pid for _, pid in tensor.remote(_one_thread).call().get().items())
        seen: list[tuple[float, float]] = []
        # The lines of the last 65,536 operations are kept: the first 100,000 fill that.
        for count in (100_000, *[250_000] * 4):
            chain(count, value, by)
            mesh.check()
            seen.append((resident(os.getpid()), resident(pid)))
        entries = mesh.controller.workers.size_of_table.call().get()
    for place, name in enumerate(("controller", "worker")):
        values = [s[place] for s in seen]
        put("memory", f"resident memory, {name}: after 100,000 operations", values[:1], "MiB")
        put("memory", f"resident memory, {name}: 1,000,000 operations later", values[-1:], "MiB", points=[round(v, 1) for v in values])
        put("memory", f"resident memory, {name}: growth, each operation", [(values[-1] - values[0]) * (1 << 20) / 1e6], "bytes")
    put("memory", "entries of the worker's table", [n for _, n in entries.items()], "")


# Torch without Monarch, in processes of their own


def peer(what: str, rank: int, numbers: list[int], store: str) -> None:
    """One of the two processes of torch.distributed. Prints the seconds of one step or reduction for each line that it reads."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    if what == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        times, body = STEPS, transformer_step(device, DistributedDataParallel)
    else:
        count, times = numbers
        value = torch.ones(count, device=device)
        body: Step = lambda: dist.all_reduce(value, dist.ReduceOp.MAX)  # noqa: E731
    repeated(body, 5)
    for _ in sys.stdin:
        dist.barrier()
        print(repeated(body, times)[0], flush=True)
    dist.barrier()
    dist.destroy_process_group()


PARTS: dict[str, Callable[[int], None]] = {
    f.__name__: f for f in (operations, over_eager, step, transformer, replay, activation, fetch, reduce, death, memory)
}


def main() -> None:
    global device
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", metavar="FILE", help="the lines are appended to it")
    parser.add_argument("--one", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    given = parser.parse_args()
    device = given.device
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}")
    torch.set_num_threads(1)
    if given.peer:
        what, rank, *numbers = given.peer
        peer(what, int(rank), list(map(int, numbers)), given.store)
        return
    if given.one:
        PARTS[given.one](given.rounds)
        return
    for part in given.parts or [p for p in PARTS if p != "memory"]:
        argv = [sys.executable, __file__, "--one", part, "--rounds", str(given.rounds), "--device", device]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
        for line in done.stdout.splitlines():
            if not line.startswith("{"):
                continue
            print(text(json.loads(line)), flush=True)
            if given.json:
                with Path(given.json).open("a") as out:
                    out.write(line + "\n")
        if done.returncode:
            print(f"# {part}: exit code {done.returncode}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
