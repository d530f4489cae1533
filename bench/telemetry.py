"""The cost of telemetry, and the time of its answers: on this machine, in one run.

    python bench/telemetry.py [--rounds N] [PART...]

| part | content |
|---|---|
| price | calls, casts and spawns with telemetry off, on, and with every message |
| ingest | rows per second of one processor |
| merge | the steps of GROUP BY over 64 hosts of 100,000 rows each, one after the other |
| answers | the first answer after a start, point queries, stacks of 64 procs |
| reference | GROUP BY over 64 collectors beside torchmonarch 0.7.0 and beside one DataFusion session |
| scale | GROUP BY over 4,096 simulated hosts |
| dashboard | the first page, and 10,000 actors that scroll, in chromium |
| stalls | the longest stop of the script during statements whose planning takes minutes |
| idle | memory of a collector, and its processor while the job is idle |

All by default. Telemetry off and on alternate in each round, as the machine is shared; ratios are those of medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from requirement import packages, program, require

import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host

CALLS, CASTS, SPAWNS, PROCS = 2000, 500, 50, 8
SETTLE_S = 1.0
HOSTS, ROWS = 64, 100_000


class Echo(Actor):
    """Returns its argument."""

    @endpoint
    def echo(self, value: bytes) -> int:
        return len(value)


def timed(work: Callable[[], Any], times: int) -> float:
    """Microseconds of one call, on average over `times`."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times * 1e6


def price(rounds: int) -> None:
    """The cost for programs."""
    procs = this_host().spawn_procs({"procs": PROCS}, name="procs")
    echo = procs.spawn("echo", Echo)
    one = echo.slice(procs=0)
    large = bytes(1 << 20)
    more: list[Any] = []

    def spawn() -> None:
        more.append(procs.slice(procs=0).spawn("more", Echo))
        more[-1].echo.call_one(b"").get()

    works: dict[str, tuple[Callable[[], Any], int]] = {
        "sync call": (lambda: one.echo.call_one(b"").get(), CALLS),
        f"call on {PROCS} procs": (lambda: echo.echo.call(b"").get(), CASTS),
        "1 MiB argument": (lambda: one.echo.call_one(large).get(), CASTS),
        "spawn of an actor and a call": (spawn, SPAWNS),
    }
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for level in ("off", "normal", "messages"):
            running = None if level == "off" else telemetry.start(level=level)
            # The work of a start is no cost of calls.
            time.sleep(SETTLE_S)  # sleeps: a start ends with a first snapshot, which no event follows
            for name, (work, times) in works.items():
                took = timed(work, times)
                if number:  # the first round is the first for everything
                    found.setdefault((name, level), []).append(took)
            if running is not None:
                running.stop().get()
            # The next start introduces all actors.
            for mesh in more:
                mesh.stop().get()
            more.clear()
    for name in works:
        medians = {level: statistics.median(found[name, level]) for level in ("off", "normal", "messages")}
        shown = ", ".join(f"{level} {median:.1f} us ({median / medians['off']:.3f})" for level, median in medians.items())
        print(f"price | {name} | {shown}", flush=True)
    procs.stop().get()


def ingest(rounds: int) -> None:
    """The number of events of which one processor makes rows: events of real calls, recorded once and taken again and again."""
    from monarch.extension import events, member
    from monarch.telemetry._collector.keeping import Keeping

    procs = this_host().spawn_procs(name="busy")
    echo = procs.spawn("echo", Echo)
    batches: list[events.Batch] = []
    observation = events.observe(batches.append)
    for _ in range(20_000):
        echo.echo.call_one(b"").get()
    observation.stop()
    procs.stop().get()
    rates: list[float] = []
    me = member()
    for _ in range(rounds):
        keeping = Keeping(me.job, me.host, me.hostname, me.proc, dict)
        began = time.process_time()
        for batch in batches:
            batch.__dict__.pop("columns", None)
            keeping.ingest.take(batch)
        keeping.ingest.flush()
        rates.append(sum(map(len, batches)) / (time.process_time() - began))
    count = sum(map(len, batches))
    print(
        f"ingest | {count:,} events in {len(batches)} batches | {statistics.median(rates):,.0f} events a second of one processor",
        flush=True,
    )


def merge(rounds: int) -> None:
    """GROUP BY over many hosts: the part of one host, the merge of a group by its leader, and the end at the entry node."""
    from importlib import import_module

    from monarch.telemetry._collector.keeping import schemas
    from monarch.telemetry._engine.questions import GROUP
    from monarch.telemetry._sql import plan, wire

    pa: Any = import_module("pyarrow")
    sql = "SELECT endpoint, count(*) AS n, min(timestamp_us) AS first FROM messages GROUP BY endpoint ORDER BY n DESC LIMIT 20"
    schema = schemas()["messages"]
    rows = {
        "id": pa.array(range(ROWS), pa.uint64()),
        "timestamp_us": pa.array(range(ROWS), pa.int64()),
        "from_actor_id": pa.array([1] * ROWS, pa.uint64()),
        "to_actor_id": pa.array([2] * ROWS, pa.uint64()),
        "endpoint": pa.array([f"endpoint_{n % 40}" for n in range(ROWS)]),
        "port_index": pa.nulls(ROWS, pa.uint64()),
    }
    batch = pa.RecordBatch.from_arrays(list(rows.values()), schema=schema)
    parts: list[float] = []
    leaders: list[float] = []
    ends: list[float] = []
    size = 0
    groups = HOSTS // GROUP
    for _ in range(rounds):
        made = plan.make(sql, schemas())
        began = time.perf_counter()
        shipped = wire.encode(plan.part(made, {"messages": (schema, [batch])}))
        parts.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        merged = wire.encode(plan.merge(made, [wire.decode(shipped, 1 << 26) for _ in range(GROUP)]))
        leaders.append((time.perf_counter() - began) * 1e3)
        size = len(merged) * groups
        began = time.perf_counter()
        table = plan.finish(made, [wire.decode(merged, 1 << 26) for _ in range(groups)])
        ends.append((time.perf_counter() - began) * 1e3)
        assert table.num_rows == 20 and table.column("n")[0].as_py() == HOSTS * ROWS // 40
    times = (("part of a host", parts), (f"merge of {GROUP} parts", leaders), ("end", ends))
    shown = ", ".join(f"{name} {statistics.median(found):.1f} ms" for name, found in times)
    print(f"merge | GROUP BY over {HOSTS} hosts of {ROWS:,} rows | {shown}, {size / 1024:.0f} KiB into the entry node", flush=True)


def answers(rounds: int) -> None:
    """The times for which a person waits."""
    procs = this_host().spawn_procs({"procs": 64}, name="many")
    echo = procs.spawn("echo", Echo)
    echo.echo.call(b"").get()
    began = time.perf_counter()
    running = telemetry.start()
    started = time.perf_counter()
    running.engine.query("SELECT count(*) FROM procs")
    first = time.perf_counter()
    print(f"answers | start of telemetry | {(started - began) * 1e3:.0f} ms; the first answer after it {(first - started) * 1e3:.0f} ms")
    for name, sql in (
        ("point query", "SELECT display_name FROM actors WHERE rank = 7 LIMIT 1"),
        ("GROUP BY", "SELECT endpoint, count(*) FROM messages GROUP BY endpoint"),
        ("live_actors()", "SELECT count(*) FROM live_actors('echo')"),
    ):
        again = statistics.median(timed(lambda sql=sql: running.engine.query(sql), 20) for _ in range(rounds))
        # Another text of the same statement has no cached plan.
        texts = iter(f"{sql} -- {number}" for number in range(20 * rounds))
        new = statistics.median(timed(lambda texts=texts: running.engine.query(next(texts)), 20) for _ in range(rounds))
        print(f"answers | {name}, one host | {new / 1e3:.1f} ms, a statement that was asked before {again / 1e3:.1f} ms", flush=True)
    took = statistics.median(timed(lambda: telemetry.stacks(procs), 1) for _ in range(rounds))
    print(f"answers | stacks of 64 procs, merged | {took / 1e3:.0f} ms", flush=True)
    running.stop().get()
    procs.stop().get()


def lines(module: str, part: str) -> Callable[[int], None]:
    """A part of another module, which returns its lines. Loaded when it runs."""

    def run(rounds: int) -> None:
        from importlib import import_module

        for line in getattr(import_module(module), part)(rounds):
            print(f"{part} | {line}", flush=True)

    return run


PARTS: dict[str, Callable[[int], None]] = {
    "price": price,
    "ingest": ingest,
    "merge": merge,
    "answers": answers,
    **{part: lines(f"telemetry_{part}", part) for part in ("reference", "scale", "dashboard", "stalls", "idle")},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    given = parser.parse_args()
    require(*([program("chromium", packages("browser"))] if "dashboard" in (given.parts or PARTS) else []))
    for name in given.parts or PARTS:
        PARTS[name](given.rounds)


if __name__ == "__main__":
    main()
