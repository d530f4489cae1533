"""The cost of a collector: memory after a start, with a full history, and after 10,000 ended actors; its processor while the job rests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host

REST_S = 30.0
BUDGET = 64 << 20
ACTORS, AT_ONCE = 10_000, 100
CALLS = 2000


class Echo(Actor):
    """Returns its argument."""

    @endpoint
    def echo(self, value: str) -> int:
        return len(value)

    @endpoint
    def write(self, lines: int) -> None:
        for number in range(lines):
            print(number, "x" * 200)


def memory(pid: int) -> str:
    """RSS counts the pages of libraries that other processes have too, PSS by their share, private is the collector's own."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    mib = {name: int(lines[name].split()[0]) / 1024 for name in ("Rss", "Pss", "Private_Dirty", "Private_Clean")}
    return f"RSS {mib['Rss']:.0f}, PSS {mib['Pss']:.0f}, private {mib['Private_Dirty'] + mib['Private_Clean']:.0f} MiB"


def processor(pid: int) -> float:
    """Seconds of all living threads."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def share(pid: int) -> float:
    """The share of a processor, in percent, while the job is idle."""
    before = processor(pid)
    time.sleep(REST_S)  # sleeps: what is measured is a rest
    return (processor(pid) - before) / REST_S * 100


def idle(rounds: int) -> Iterator[str]:
    """The lines of the part."""
    procs = this_host().spawn_procs({"procs": 2}, name="procs")
    echo = procs.spawn("echo", Echo)
    echo.echo.call("").get()
    running = telemetry.start(budget_bytes=BUDGET)
    collector = running.asking.hosts[-1].pid
    running.engine.query("SELECT count(*) FROM procs")
    yield f"collector | after the first query | {memory(collector)}"
    yield f"collector | {REST_S:.0f} s without work | {share(collector):.2f} % of a core"
    filled = 0
    while filled < BUDGET * 0.9:
        for future in [echo.echo.call("x" * 100) for _ in range(CALLS)]:
            future.get()
        echo.write.call(1000).get()
        filled = running.engine.query("SELECT sum(bytes) AS n FROM telemetry_status").to_pylist()[0]["n"]
    running.engine.query("SELECT endpoint, count(*) FROM messages GROUP BY endpoint")
    share(collector)
    yield f"collector | history of {filled >> 20} MiB | {memory(collector)}"
    for _ in range(ACTORS // AT_ONCE // 2):  # a mesh has an actor on each of two procs
        meshes = [procs.spawn("passing", Echo) for _ in range(AT_ONCE)]
        for future in [mesh.echo.call("") for mesh in meshes]:
            future.get()
        for future in [mesh.stop() for mesh in meshes]:
            future.get()
    running.engine.query("SELECT count(*) FROM actors WHERE rank = 0")
    share(collector)
    yield f"collector | and {ACTORS:,} ended actors | {memory(collector)}"
    yield f"collector | {REST_S:.0f} s without work after that | {share(collector):.2f} % of a core"
    running.stop().get()
    procs.stop().get()
