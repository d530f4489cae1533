"""GROUP BY over thousands of hosts on simulated time: the real plan, parts, merges and end, with the costs of links of a real run.

Every step of every host is carried out, and its processor time moves the clock of that host: the plan and the end at the entry node, the
part of each host over its 1,000 rows, the merge of each leader. Other times come from files and from this machine:

| step | cost |
|---|---|
| a frame between two hosts | `send`, `hop`, `jitter`, `receive` and `byte` of `bench/link_costs.py` |
| agent to collector and back | `local_hop` and `local_send` of the same |
| a call of a process | processor time of the caller and of the receiver, measured here: with the handles of a group, and without |

A host has one processor for sending, receiving and computing: its steps follow each other. `--costs FILE` has the costs of links, else
those of the run that RESULTS.md names.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from monarch.actor import Actor, endpoint, this_host

HOSTS, ROWS, ENDPOINTS, CALLS = 4096, 1000, 40, 200
SQL = "SELECT endpoint, count(*) AS n, min(timestamp_us) AS first FROM messages GROUP BY endpoint ORDER BY n DESC LIMIT 20"
# Microseconds of a real run with TLS, see "With costs of a real run" in RESULTS.md; 40 us for the wire.
MEASURED = {"hop": 40.0, "jitter": 10.4, "send": 10.5, "receive": 10.5, "byte": 0.00033, "local_hop": 18.8, "local_send": 9.6}


class Calls(NamedTuple):
    """Processor time in microseconds: of the caller and of the receiver for a question to a leader, and for one to a host."""

    leader_asks: float
    leader_asked: float
    host_asks: float
    host_asked: float


class Receiver(Actor):
    """Replaces a collector: takes the same arguments."""

    @endpoint
    async def processor(self) -> float:
        return time.process_time()

    @endpoint
    async def part(self, plan: str, limits: tuple[Any, ...], seconds: float) -> tuple[bytes, int]:
        return _STATE, 0

    @endpoint
    async def gather(self, plan: str, limits: tuple[Any, ...], seconds: float, others: list[Any]) -> tuple[bytes, int, list[int]]:
        return _STATE, len(others), []


# About the size of the states of a host.
_STATE = os.urandom(2048)


def calls(plan: str, limits: tuple[Any, ...], group: int) -> Calls:
    """The cost of the questions on both sides, without the work of the answer."""
    procs = this_host().spawn_procs(name="calls")
    receivers = [procs.spawn(f"receiver{n}", Receiver) for n in range(group)]
    one, others = receivers[0], receivers[1:]

    def each(ask: Callable[[], Any]) -> tuple[float, float]:
        for future in [ask() for _ in range(CALLS)]:
            future.get()
        there, here = one.processor.call_one().get(), time.process_time()
        for future in [ask() for _ in range(CALLS)]:
            future.get()
        here = time.process_time() - here
        return here / CALLS * 1e6, (one.processor.call_one().get() - there) / CALLS * 1e6

    found = Calls(
        *each(lambda: one.gather.call_one(plan, limits, 1.0, others)),
        *each(lambda: one.part.call_one(plan, limits, 1.0)),
    )
    procs.stop().get()
    return found


class Simulation:
    """Hosts with a processor each, and frames between them. Times in microseconds."""

    def __init__(self, costs: dict[str, float], seed: int) -> None:
        self.costs, self._dice = costs, random.Random(seed)
        self._free: dict[int, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.now = 0.0

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, action))

    def work(self, host: int, cost: float, then: Callable[[], None]) -> None:
        """Occupies the processor of a host for `cost`, after its earlier work."""
        self._free[host] = end = max(self.now, self._free.get(host, 0.0)) + cost
        self.at(end, then)

    def frame(self, host: int, to: int, size: int, then: Callable[[], None]) -> None:
        """Sends a frame from a process of one host to one of another, by the agents of both."""
        costs = self.costs
        bytes_ = size * costs["byte"]
        way = 2 * costs["local_hop"] + costs["hop"] + self._dice.expovariate(1 / costs["jitter"])

        def arrived() -> None:
            self.work(to, costs["receive"] + costs["local_send"] + bytes_, then)

        def sent() -> None:
            self.at(self.now + way, arrived)

        self.work(host, costs["send"] + costs["local_send"] + bytes_, sent)

    def run(self) -> None:
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()


def took(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the microseconds of one processor."""
    began = time.process_time()
    return work(), (time.process_time() - began) * 1e6


def batches() -> Callable[[int], Any]:
    """Rows of a host, different ones on each."""
    from importlib import import_module

    from monarch.telemetry._collector.keeping import schemas

    pa: Any = import_module("pyarrow")
    schema = schemas()["messages"]

    def of(host: int) -> Any:
        numbers = range(host * ROWS, (host + 1) * ROWS)
        columns = [
            pa.array(numbers, pa.uint64()),
            pa.array(numbers, pa.int64()),
            pa.array([1] * ROWS, pa.uint64()),
            pa.array([2] * ROWS, pa.uint64()),
            pa.array([f"endpoint_{(n + host) % ENDPOINTS}" for n in numbers]),
            pa.nulls(ROWS, pa.uint64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return of


def question(costs: dict[str, float], cost: Calls, rows: Callable[[int], Any], hosts: int, group: int, seed: int) -> dict[str, float]:
    """One question; milliseconds until its answer, and the work of the entry node in it."""
    from monarch.telemetry._collector.keeping import schemas
    from monarch.telemetry._sql import plan, wire

    table = schemas()
    simulation, entry = Simulation(costs, seed), -1
    made, planning = took(lambda: plan.make(SQL, table))
    text = made.to_json()
    parts: list[bytes] = []
    answers: list[list[Any]] = []
    busy = {"plan": planning / 1e3, "ask": 0.0, "take": 0.0, "end": 0.0}
    answer: list[float] = []

    def own(host: int) -> tuple[bytes, float]:
        given = {"messages": (table["messages"], [rows(host)])}
        return took(lambda: wire.encode(plan.part(plan.Plan.from_json(text, table), given)))

    def lead(leader: int, members: list[int]) -> None:
        found: list[bytes] = []

        def came(data: bytes) -> None:
            found.append(data)
            if len(found) == len(members) + 1:
                merged, time = took(lambda: wire.encode(plan.merge(made, [wire.decode(one, 1 << 26) for one in found])))
                simulation.work(leader, time, lambda: simulation.frame(leader, entry, len(merged), lambda: take(merged)))

        for member in members:

            def ask(member: int = member) -> None:
                def part() -> None:
                    data, time = own(member)
                    back = lambda: simulation.work(leader, 0.0, lambda: came(data))  # noqa: E731
                    simulation.work(member, time + cost.host_asked, lambda: simulation.frame(member, leader, len(data), back))

                simulation.frame(leader, member, len(text), part)

            simulation.work(leader, cost.host_asks, ask)
        data, time = own(leader)
        simulation.work(leader, time, lambda: came(data))

    def take(data: bytes) -> None:
        parts.append(data)
        decoded, time = took(lambda: wire.decode(data, 1 << 26))
        answers.append(decoded)
        busy["take"] += time / 1e3

        def done() -> None:
            if len(answers) == len(groups):
                result, time = took(lambda: plan.finish(made, answers))
                assert result.num_rows == 20 and result.column("n")[0].as_py() == hosts * ROWS // ENDPOINTS
                busy["end"] = time / 1e3
                answer.append(simulation.now + time)

        simulation.work(entry, time, done)

    groups = [list(range(at, min(at + group, hosts))) for at in range(0, hosts, group)]

    def start() -> None:
        for members in groups:
            busy["ask"] += cost.leader_asks / 1e3

            def ask(members: list[int] = members) -> None:
                def asked() -> None:
                    simulation.work(members[0], cost.leader_asked, lambda: lead(members[0], members[1:]))

                simulation.frame(entry, members[0], len(text) + 200 * len(members), asked)

            simulation.work(entry, cost.leader_asks, ask)

    simulation.work(entry, planning, start)
    simulation.run()
    return {"all": answer[0] / 1e3, **busy, "KiB": sum(map(len, parts)) / 1024}


def scale(rounds: int, hosts: int = HOSTS, group: int | None = None, file: str | None = None) -> Iterator[str]:
    """The lines of the part."""
    from monarch.telemetry._collector.keeping import schemas
    from monarch.telemetry._engine.questions import GROUP
    from monarch.telemetry._sql import plan
    from monarch.telemetry._sql.limits import DEFAULT

    group = group or GROUP
    costs: dict[str, float] = {**MEASURED, **(json.loads(Path(file).read_text()) if file else {})}
    cost = calls(plan.make(SQL, schemas()).to_json(), tuple(DEFAULT), group)
    rows = batches()
    question(costs, cost, rows, 4 * group, group, 0)  # the first one loads modules that are loaded on first use
    found = [question(costs, cost, rows, hosts, group, seed) for seed in range(rounds)]
    median = {name: statistics.median(one[name] for one in found) for name in found[0]}
    shown = ", ".join(f"{name} {median[name]:.1f}" for name in ("plan", "ask", "take", "end"))
    yield (
        f"{hosts:,} simulated hosts, groups of {group} | GROUP BY {median['all']:.0f} ms; busy at the entry node, ms: {shown};"
        f" {median['KiB']:.0f} KiB into it; calls, us: {', '.join(f'{name} {value:.0f}' for name, value in cost._asdict().items())}"
    )
