"""The output of ranks: much of it, in lines and in one line that has no end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import eventually
import pytest

from monarch.spmd import RestartPolicy, SPMDRun

Start = Callable[..., SPMDRun]
Program = Callable[..., str]

# Bytes of each rank; a block has 8192 lines, or a part of the one line.
SIZE, BLOCK, LINE = 512 << 20, 1 << 20, 128
# Memory of a process beyond that at its start, whatever the program writes: buffers, queues, the last lines of each rank.
GROWTH_KB = 48 << 10
WRITES = f"""
import json, os, sys
def peaks():
    # Of this process and of those above it: the processes of the host, and in the end the client.
    found, pid = {{}}, os.getppid()
    while pid > 1:
        with open(f"/proc/{{pid}}/status") as file:
            lines = dict(line.split(":\\t", 1) for line in file if ":\\t" in line)
        found[pid], pid = int(lines["VmHWM"].split()[0]), int(lines["PPid"])
    return found
rank, out = os.environ["RANK"], sys.stdout.buffer
block = (b"x" * {LINE - 1} + b"\\n") * ({BLOCK} // {LINE}) if rank == "0" else b"y" * {BLOCK}
before = peaks()
for _ in range({SIZE} // {BLOCK}):
    out.write(block)
if rank == "1":
    out.write(b"\\n")
for number in range(30):
    out.write(b"end %d of %s\\n" % (number, rank.encode()))
out.flush()
with open(f"draft.{{rank}}", "w") as file:
    json.dump([before, peaks()], file)
os.rename(f"draft.{{rank}}", f"peaks.{{rank}}")
# It is opened when the client opens the other end.
open("go." + rank).close()
sys.exit(3 if rank == "1" else 0)
"""
CLIENT = f"""
import os, sys
import monarch.actor
from monarch.actor import this_host
from monarch.spmd import SPMDFailure, run
monarch.actor.unhandled_fault_hook = lambda failure: None
{eventually.SOURCE}
running = run(this_host(), ["torchrun", "--nproc-per-node=2", "writes.py"], workdir=os.getcwd(), log_dir="logs", run_id="r")
ends = [[f"end {{number}} of {{rank}}" for number in range(30)] for rank in (0, 1)]
def has_written(rank):
    assert repr(running).endswith("active)")
    return os.path.exists(f"peaks.{{rank}}")
for rank in (0, 1):
    eventually("the end of its output", lambda: has_written(rank))
for rank in (0, 1):
    log = eventually("the last lines", lambda: running.log(rank, tail=31).get().splitlines(), lambda log: log[-1] == ends[rank][-1])
    assert log[1:] == ends[rank] and set(log[0]) <= set("xy.") and len(log[0]) <= 2003, log
for rank in (0, 1):
    open(f"go.{{rank}}", "w").close()
try:
    running.result.get()
except SPMDFailure as failure:
    assert (failure.rank, failure.exitcode) == (1, 3), failure
    assert list(failure.failures[0].output) == ends[1][10:], failure
    sys.exit(7)
"""


@pytest.mark.timeout(90)
def test_gigabyte_of_output_needs_little_memory(folder: Path) -> None:
    (folder / "writes.py").write_text(WRITES)
    (folder / "client.py").write_text(CLIENT)
    for name in ("go.0", "go.1"):
        os.mkfifo(folder / name)
    client = subprocess.Popen([sys.executable, "client.py"], stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None
        size, lines = _read(client.stdout.fileno())
        assert client.wait() == 7
        written = SIZE + len("".join(f"end {number} of 0\n" for number in range(30)))
        # The line without an end appears in parts, each of them as a line of its own.
        assert lines["0"] == SIZE // LINE + 30 and SIZE // (192 << 10) < lines["1"] <= SIZE // (64 << 10) + 30
        assert size == 2 * written + len("[0] ") * (lines["0"] + lines["1"]) + lines["1"] - 30
        for rank, block in (("0", (b"x" * (LINE - 1) + b"\n") * (BLOCK // LINE)), ("1", b"y" * BLOCK)):
            _check_file(folder / "logs" / "r" / "attempt_0" / rank / "stdout.log", block, rank)
            before, after = json.loads((folder / f"peaks.{rank}").read_text())
            # The program's guard and its watchdog, its proc, the process that started that, the client.
            assert len(before) >= 5
            grown = {pid: after[pid] - kilobytes for pid, kilobytes in before.items()}
            assert max(grown.values()) < GROWTH_KB, grown
    finally:
        client.kill()
        client.communicate()
        shutil.rmtree(folder / "logs", ignore_errors=True)


def _read(fd: int) -> tuple[int, dict[str, int]]:
    """The size of all that comes, and its lines by rank."""
    size, lines, rest = 0, {"0": 0, "1": 0}, b""
    while data := os.read(fd, 1 << 20):
        size += len(data)
        data = rest + data
        for rank in lines:
            lines[rank] += data.count(b"[%s] " % rank.encode())
        # A prefix may be divided.
        rest = data[-3:]
    return size, lines


def _check_file(path: Path, block: bytes, rank: str) -> None:
    with path.open("rb") as file:
        for _ in range(SIZE // BLOCK):
            assert file.read(BLOCK) == block
        end = "".join(f"end {number} of {rank}\n" for number in range(30))
        assert file.read().decode().lstrip("\n") == end


def test_concurrent_runs_have_names_before_ranks(program: Program, start: Start, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = program(
        """
        import os, sys
        fifo = sys.argv[1] + os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("begun", flush=True)
        open(fifo).read()
        sys.exit(3 if fifo == "b0" else 0)
        """
    )

    def go(name: str) -> None:
        (folder / name).write_text("")

    for name in ("a0", "b0", "b1", "c0", "d0"):
        os.mkfifo(folder / name)
    again = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))
    first, second = start(script, "a", run_id="run-a"), start(script, "b", run_id="run-b", policy=again)
    go("a0")
    first.result.get()
    # Another run is still active.
    third = start(script, "c", run_id="run-c")
    for name in ("b0", "b1", "c0"):
        go(name)
    second.result.get()
    third.result.get()
    fourth = start(script, "d", run_id="run-d")
    go("d0")
    fourth.result.get()
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == ["[0] begun"] * 2 + ["[run-b 0] begun"] * 2 + ["[run-c 0] begun"]
    assert "monarch: run-b: rank 0 (" in shown.err
