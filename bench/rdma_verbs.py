"""Reads and writes by verbs beside perftest, in one run, as ratios: `python -m tools.vm run python bench/rdma_verbs.py`.

Two processes, one wire, two soft-RoCE devices. Rounds of all take turns, because the speed of an emulated machine depends on its host's
load. `rails` is a transfer by `monarch.rdma.verbs` alone; `buffer` is `RDMABuffer.read_into` and `write_from` of as many bytes, between
actors of two hosts. The output is JSON lines: MiB/s of each, and ratios of medians to perftest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "packages" / "monarch-rdma" / "tests"), str(ROOT / "packages" / "monarch-rdma" / "python")]

from other_hosts import other_hosts  # noqa: E402
from requirement import packages, program, require  # noqa: E402
from verbs_far import Far  # noqa: E402
from verbs_reader import Reader  # noqa: E402

from monarch.actor import Actor, endpoint  # noqa: E402
from monarch.rdma import RDMABuffer, allocate  # noqa: E402

_AVERAGE = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s", re.MULTILINE)
MIB = 1 << 20


class Side(Actor):
    """Owns memory, or copies from and to that of the other one."""

    @endpoint
    def share(self, nbytes: int) -> RDMABuffer:
        self.memory = memoryview(bytearray(nbytes))
        return RDMABuffer(self.memory)

    @endpoint
    def open(self, buffer: RDMABuffer) -> str:
        self.buffer, self.memory = buffer, allocate(buffer.size())
        self.buffer.read_into(self.memory).get()
        return buffer.path

    @endpoint
    def copy(self, write: bool) -> float:
        """MiB/s."""
        start = time.perf_counter()
        (self.buffer.write_from if write else self.buffer.read_into)(self.memory, timeout=300).get()
        return self.buffer.size() / MIB / (time.perf_counter() - start)


def perftest(program: str, nbytes: int, count: int) -> float:
    """MiB/s, as reported by perftest."""
    flags = ["-x", "1", "-s", str(nbytes), "-n", str(count), "-F"]
    server = subprocess.Popen(["stdbuf", "-oL", program, "-d", "rxe1", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    # perftest prints this when it listens.
    for line in server.stdout:
        if "Waiting for client" in line:
            break
    client = subprocess.run([program, "-d", "rxe0", *flags, "10.99.0.2"], capture_output=True, text=True, check=True)
    server.communicate()
    found = _AVERAGE.search(client.stdout)
    assert found is not None, client.stdout
    return float(found[1])


def ours(reader: Reader, write: bool, nbytes: int, count: int) -> float:
    """MiB/s of `count` pieces in one transfer."""
    room = len(reader.memory) // nbytes
    ranges = [(i % room * nbytes, nbytes) for i in range(count)]
    start = time.perf_counter()
    transfer = reader.move(write, *ranges, timeout=300.0)
    took = time.perf_counter() - start
    assert transfer.state == "complete", transfer.attempts
    return count * nbytes / MIB / took


def main() -> None:
    with contextlib.ExitStack() as stack:
        run(stack)


def run(stack: contextlib.ExitStack) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--sizes", type=int, nargs="+", default=[MIB])
    options = parser.parse_args()
    require(program("ib_write_bw", packages("vm")))
    near, far = [stack.enter_context(other_hosts(MONARCH_RDMA_IBVERBS_TARGET=f"nic:{name}")) for name in ("rxe0", "rxe1")]
    buffers = near.spawn_procs(name="near").spawn("near", Side)
    memory = far.spawn_procs(name="far").spawn("far", Side).share.call_one(options.count * MIB).get()
    assert buffers.open.call_one(memory).get() == "verbs:rxe0"
    owner = Far("rxe1")
    reader = Reader(owner.ask, ("rxe0",), 8 * MIB)
    ours(reader, False, MIB, 8)
    for nbytes in options.sizes:
        for name, write in (("read", False), ("write", True)):
            seen: dict[str, list[float]] = {"perftest": [], "rails": [], "buffer": []}
            for _ in range(options.rounds):
                seen["perftest"].append(perftest(f"ib_{name}_bw", nbytes, options.count))
                seen["rails"].append(ours(reader, write, nbytes, options.count))
                seen["buffer"].append(buffers.copy.call_one(write).get())
            medians = {key: statistics.median(values) for key, values in seen.items()}
            ratios = {key: round(medians[key] / medians["perftest"], 3) for key in ("rails", "buffer")}
            rounded = {key: [round(one, 2) for one in values] for key, values in seen.items()}
            print(json.dumps({"what": name, "bytes": nbytes, **rounded, "ratios": ratios}), flush=True)
    reader.close()
    owner.end()


if __name__ == "__main__":
    main()
