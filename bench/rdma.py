"""Copies between the memories of two processes of one host, by every transport, beside the reference and a memcpy.

    python bench/rdma.py [--rounds 3] [--reference PYTHON] [--ray PYTHON] [--largest 1GiB]

`--reference` is an interpreter with torchmonarch 0.7.0 (bench/make_venvs.sh makes one), `--ray` one with Ray and numpy, whose object store
takes the place of memory; without them only Monarch is measured. Peers run in
turn, so that ratios are of the same minutes. A round measures copies of warm memory, 4 KiB to 1 GiB; a memcpy of one thread inside one
process; the hand-over of a mapping; a plan of 1,000 operations; a set of 300 tensors; and the time from the end of an owner to the error.
Prints a table: the median of the rounds, and the best one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIZES = {"4KiB": 4 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20, "1GiB": 1 << 30}
SMALL = 64 << 10
# Bytes moved for one number, and the least and most repetitions.
VOLUME, LEAST, MOST = 4 << 30, 3, 2000
PATHS = ("shm", "cma", "shm-staged")


def repetitions(nbytes: int) -> int:
    return max(LEAST, min(MOST, VOLUME // nbytes))


def spent(body: Any, times: int) -> float:
    """The median of `times` runs, in seconds; the first is not counted."""
    body()
    seen: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        body()
        seen.append(time.perf_counter() - start)
    return statistics.median(seen)


def ours(largest: int) -> None:
    """Prints one JSON object: name of a number, in seconds or bytes a second."""
    import monarch.actor
    from monarch.actor import Actor, endpoint, this_host
    from monarch.rdma import RDMAAction, RDMABuffer, RDMABufferSet, allocate

    class Owner(Actor):
        @endpoint
        def share(self, nbytes: int, arena: bool) -> RDMABuffer:
            self.memory = allocate(nbytes) if arena else memoryview(bytearray(nbytes))
            self.memory[:] = b"\x01" * nbytes
            return RDMABuffer(self.memory)

        @endpoint
        def share_set(self, count: int, nbytes: int) -> RDMABufferSet:
            self.tensors = {str(i): memoryview(bytearray(nbytes)) for i in range(count)}
            return RDMABufferSet(self.tensors)

        @endpoint
        def drop(self, buffer: RDMABuffer) -> None:
            buffer.drop().get()
            del self.memory

    monarch.actor.unhandled_fault_hook = lambda failure: None
    found: dict[str, float] = {}
    owner = this_host().spawn_procs().spawn("owner", Owner)
    local = {name: bytearray(b"\x02" * nbytes) for name, nbytes in SIZES.items() if nbytes <= largest}
    for name, memory in local.items():
        nbytes = len(memory)
        other = bytearray(b"\x01" * nbytes)
        target, source = ((ctypes.c_char * nbytes).from_buffer(m) for m in (memory, other))
        found[f"memcpy {name}"] = nbytes / spent(lambda t=target, s=source, n=nbytes: ctypes.memmove(t, s, n), repetitions(nbytes))
        del target, source, other
        for path in [p for p in PATHS if (p == "shm-staged") == ("MONARCH_RDMA_FORCE_STAGED" in os.environ)]:
            buffer = owner.share.call_one(nbytes, path == "shm").get()
            view = memoryview(memory)
            assert buffer.path == path, buffer.path
            for what, call in (("read", buffer.read_into), ("write", buffer.write_from)):
                seconds = spent(lambda c=call, v=view: c(v).get(), repetitions(nbytes))
                found[f"{path} {what} {name}"] = seconds if nbytes < SMALL else nbytes / seconds
                assert memory[0] == memory[-1] == 1
            if path == "shm" and nbytes == largest:
                fresh = owner.share.call_one(nbytes, True).get()
                start = time.perf_counter()
                mapped = fresh.map()
                found[f"map {name}"] = time.perf_counter() - start
                assert mapped[0] == 1
                mapped.release()
                owner.drop.call_one(fresh).get()
            else:
                owner.drop.call_one(buffer).get()
    if "MONARCH_RDMA_FORCE_STAGED" not in os.environ:
        buffers = owner.share_set.call_one(300, 4096).get()
        tensors = {key: memoryview(bytearray(4096)) for key in buffers.keys()}
        start = time.perf_counter()
        plan = buffers.plan_read(tensors)
        future = plan.submit()
        found["set of 300 tensors, planned and posted"] = time.perf_counter() - start
        future.get()
        one = owner.share.call_one(4096, False).get()
        action, memory = RDMAAction(), memoryview(bytearray(4096))
        for _ in range(1000):
            action.read_remote(memory, one)
        plan = action.prepare()
        found["plan of 1,000 operations of 4 KiB, each"] = spent(lambda: plan.submit().get(), 20) / 1000
        found["owner killed, until a read of 64 MiB fails"] = killed(owner)
    print(json.dumps(found))


def killed(owner: Any) -> float:
    """Seconds from the signal to the error of the reader."""
    from monarch.rdma import RDMAPeerLostError

    buffer = owner.share.call_one(64 << 20, False).get()
    memory = memoryview(bytearray(64 << 20))
    buffer.read_into(memory).get()
    at: list[float] = []

    def kill() -> None:
        at.append(time.perf_counter())
        os.kill(buffer._pid, signal.SIGKILL)

    threading.Timer(0.2, kill).start()
    try:
        while True:
            buffer.read_into(memory).get()
    except RDMAPeerLostError:
        return time.perf_counter() - at[0]


def run_ours(largest: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for staged in (False, True):
        env = {**os.environ, **({"MONARCH_RDMA_FORCE_STAGED": "1"} if staged else {})}
        argv = [sys.executable, __file__, "--ours", str(largest)]
        done = subprocess.run(argv, env=env, check=True, capture_output=True, text=True)
        found |= {name: value for name, value in json.loads(done.stdout).items() if not (staged and name.startswith("memcpy"))}
    return found


def run_peer(name: str, python: str, script: str) -> dict[str, float]:
    """The output of a peer's script for the group `bulk`."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HOME": home}
        env.pop("PYTHONPATH", None)
        argv = [python, str(HERE / "peers" / script), "--bench", "bulk"]
        done = subprocess.run(argv, cwd=HERE / "peers", env=env, check=True, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, float] = {}
    for row in rows:
        what, _, size = row["bench"].partition("/")
        if size in SIZES and what.startswith("bulk_"):
            found[f"{name} {what[5:]} {size}"] = row["value"] * 1e9
    return found


def text(value: float) -> str:
    return f"{value / 1e9:.2f} GB/s" if value > 1e3 else f"{value * 1e6:.1f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reference", metavar="PYTHON")
    parser.add_argument("--ray", metavar="PYTHON")
    parser.add_argument("--largest", choices=list(SIZES), default="1GiB")
    parser.add_argument("--ours", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ours:
        ours(given.ours)
        return
    rounds: list[dict[str, float]] = []
    for number in range(given.rounds):
        found = run_ours(SIZES[given.largest])
        if given.reference:
            found |= run_peer("torchmonarch", given.reference, "monarch_bench.py")
        if given.ray:
            found |= run_peer("ray", given.ray, "ray_store.py")
        rounds.append(found)
        print(f"# round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
    print(f"{'':<42} {'median':>12} {'best':>12}   of memcpy in the same round, median")
    for name in rounds[0]:
        values = [r[name] for r in rounds if name in r]
        best = max(values) if values[0] > 1e3 else min(values)
        floor = f"memcpy {name.rpartition(' ')[2]}"
        ratio = ""
        if values[0] > 1e3 and floor in rounds[0] and name != floor:
            ratio = f"{statistics.median(r[name] / r[floor] for r in rounds if name in r):.2f}"
        print(f"{name:<42} {text(statistics.median(values)):>12} {text(best):>12}   {ratio}")


if __name__ == "__main__":
    main()
