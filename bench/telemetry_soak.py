"""A job that is observed for hours: memory, threads and descriptors of each of its processes, which must not grow.

    python bench/telemetry_soak.py [--seconds 7200] [--warm 900] [--every 10] [--limit 3] [--rate 1] --out FILE.csv

The job has two hosts with two procs each. Every second its actors are called, get messages without an answer, print, log, open spans, count
and record events; actors are spawned and stopped; every minute a proc is killed and another one spawned. SQL is run in this process and
over HTTP every four seconds, stacks, metrics and a page of the dashboard every minute. All of it needs a tenth of a processor.

History is short, so that bounded structures reach their bounds within `--warm` seconds, which do not count; more meshes and actors are made
and end in that time than are kept, and more statements are run than are cached. With `--rate` N a second has the work of N. Then every
`--every` seconds a row for each process goes to the file. The end, or SIGINT, prints the medians of the first and the last quarter of the
time, and the slope of the medians of its twentieth parts with the half width of its interval of 95 %. Exits with 1 if the memory of a
process
(RSS, PSS and private memory) has grown by more than `--limit` MiB, if it has more threads or descriptors, or if a process has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import logging
import os
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, ActorError, SupervisionError, endpoint, get_meter, span
from monarch.job import ProcessJob

RETENTION, BUDGET, SNAPSHOTS = 120.0, 8 << 20, 10.0
# Ended entities, more than a collector keeps of each table; meshes at once; and statements, more than have cached plans.
ENDED, AT_ONCE, STATEMENTS = 10_500, 100, 300
# Killed procs, more on each host than a host keeps rings of.
DEAD = 40
# The number of medians for the line whose slope is printed.
PARTS = 20
# Student's t for 95 % with 18 degrees of freedom.
T95 = 2.101
QUERIES = (
    "SELECT endpoint, count(*) AS n FROM messages GROUP BY endpoint ORDER BY n DESC LIMIT 5",
    "SELECT level, count(*) FROM logs GROUP BY level",
    "SELECT display_name FROM actors WHERE rank = 1 LIMIT 1",
    "SELECT count(*) FROM live_actors('busy')",
    "SELECT mesh_name, endpoint, sum(count), max(latency_max_us) FROM endpoint_stats GROUP BY mesh_name, endpoint",
    "SELECT s.name, count(*) FROM spans s JOIN span_events e ON e.id = s.id AND e.process_id = s.process_id GROUP BY s.name",
    "SELECT mesh_name, message, first_cause FROM failures ORDER BY timestamp_us DESC LIMIT 5",
    "SELECT table_name, rows, bytes, dropped FROM telemetry_status WHERE rows > 0",
)


class Busy(Actor):
    """Has the observed activity."""

    def __init__(self) -> None:
        logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])
        self._rows = get_meter("soak").create_counter("rows")

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def objects(self) -> int:
        return len(gc.get_objects())

    @endpoint
    def step(self, number: int) -> int:
        with span("step", number=number), span("forward"):
            telemetry.record("stepped", number=number)
        print("loss", number)
        logging.getLogger("soak").info("step %d", number)
        self._rows.add(32, {"kind": "even" if number % 2 == 0 else "odd"})
        return number

    @endpoint
    def note(self, number: int) -> None:
        self._rows.add(1)

    @endpoint
    def fail(self) -> None:
        raise ValueError("meant")


class Passing(Actor):
    """Lives for one call."""

    @endpoint
    def answer(self) -> int:
        return 1

    @endpoint
    def note(self) -> None:
        pass


class Sample(NamedTuple):
    """One process at one time; memory in KiB. `objects` are those of Python's garbage collector, 0 if unknown."""

    rss: int
    pss: int
    private: int
    threads: int
    descriptors: int
    objects: int


def _ignored(_: object) -> None:
    pass


class Job:
    """The job, its work, and its processes by name."""

    def __init__(self) -> None:
        monarch.actor.unhandled_fault_hook = _ignored  # the deaths below are intended
        self._job = ProcessJob({"hosts": 1})
        remote = self._job.state(None).hosts
        self._running = telemetry.start(
            hosts=remote,
            serve=True,
            admin_addr="127.0.0.1:0",
            retention_secs=RETENTION,
            budget_bytes=BUDGET,
            snapshot_interval_secs=SNAPSHOTS,
        )
        assert self._running.url is not None
        self._client = telemetry.QueryEngineClient(self._running.url, token=self._running.token)
        self._hosts = (monarch.actor.this_host(), remote)
        self._meshes = [host.spawn_procs({"procs": 2}, name="procs") for host in self._hosts]
        self._busy = [procs.spawn("busy", Busy) for procs in self._meshes]
        self._turn = 0
        self._victim()
        self.processes = dict(self._named())

    def _named(self) -> Iterable[tuple[str, int]]:
        """The remaining processes: below this one are a worker and a zygote, below zygotes are procs and collectors."""
        mine = [list(busy.pid.call().get().values()) for busy in self._busy]
        tree = children()
        client = os.getpid()
        worker = next(pid for pid in tree[client] if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
        for host, agent, procs in (("local", client, mine[0]), ("remote", worker, mine[1])):
            yield ("client" if agent == client else "worker", agent)
            zygotes = [pid for pid in tree[agent] if pid != worker]
            yield from ((f"zygote {host} {n}", pid) for n, pid in enumerate(zygotes))
            yield from ((f"proc {host} {n}", pid) for n, pid in enumerate(procs))
            others = [pid for zygote in zygotes for pid in tree.get(zygote, []) if pid not in procs and pid != self._doomed]
            yield from ((f"collector {host}" if len(others) == 1 else f"other {host} {n}", pid) for n, pid in enumerate(others))

    @property
    def objects(self) -> dict[str, int]:
        """Objects of Python of the processes that can report them."""
        found = {"client": len(gc.get_objects())}
        for host, busy in zip(("local", "remote"), self._busy, strict=True):
            found.update({f"proc {host} {n}": number for n, number in enumerate(busy.objects.call().get().values())})
        return found

    def _victim(self) -> None:
        self._short = self._hosts[self._turn % 2].spawn_procs({"procs": 1}, name="short").spawn("busy", Busy)
        self._doomed = next(iter(self._short.pid.call().get().values()))

    def kill(self) -> None:
        """Ends a proc; another one takes its place."""
        os.kill(self._doomed, signal.SIGKILL)
        with contextlib.suppress(SupervisionError):
            self._short.pid.call().get()
        self._victim()

    def passing(self, count: int, *, on_each: bool = True) -> None:
        """Spawns, calls and stops actors on the procs of each host, or on one of them: `count` meshes."""
        for procs in self._meshes:
            place = procs if on_each else procs.slice(procs=0)
            meshes = [place.spawn("passing", Passing) for _ in range(count)]
            for mesh in meshes:
                mesh.note.broadcast()
            for future in [mesh.answer.call() for mesh in meshes]:
                future.get()
            for future in [mesh.stop() for mesh in meshes]:
                future.get()

    def fill(self) -> None:
        """Reaches the bounds that are numbers of things, not times."""
        for _ in range(ENDED // AT_ONCE):
            self.passing(AT_ONCE, on_each=False)
        for _ in range(DEAD):
            self.kill()
            self._turn += 1
        for number in range(STATEMENTS):
            self.ask(f"SELECT count(*) AS n FROM logs WHERE rank = {number}", over_http=False)

    def work(self) -> None:
        """The work of one second."""
        self._turn += 1
        for _ in range(5):
            for future in [busy.step.call(self._turn) for busy in self._busy]:
                future.get()
            for busy in self._busy:
                busy.note.broadcast(self._turn)
        self.passing(1)
        if self._turn % 4 == 0:
            self.ask(QUERIES[self._turn // 4 % len(QUERIES)], over_http=self._turn % 8 == 0)
        if self._turn % 30 == 0:
            with contextlib.suppress(ActorError):
                self._busy[0].fail.call().get()
        if self._turn % 60 == 0:
            self.kill()
            self.look()

    def ask(self, sql: str, *, over_http: bool) -> None:
        if over_http:
            self._client.query(sql)
        else:
            self._running.engine.query(sql)

    def look(self) -> None:
        """The queries of a person and a scraper."""
        telemetry.stacks()
        for path in ("/metrics", "/api/summary", "/api/dag"):
            asked = urllib.request.Request(f"{self._running.url}{path}", headers={"Authorization": f"Bearer {self._running.token}"})
            with urllib.request.urlopen(asked, timeout=30) as answer:
                answer.read()

    def stop(self) -> None:
        self._running.stop().get()
        for procs in self._meshes:
            procs.stop().get()
        self._job.kill()


def children() -> dict[int, list[int]]:
    """All processes of the machine by their parent."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found.setdefault(parent, []).append(int(entry.name))
    return found


def sample(pid: int, objects: int) -> Sample:
    folder = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    lines = (line.split() for line in (folder / "smaps_rollup").read_text().splitlines()[1:])
    rollup = {words[0]: int(words[1]) for words in lines}
    private = rollup["Private_Clean:"] + rollup["Private_Dirty:"]
    return Sample(int(status["VmRSS"].split()[0]), rollup["Pss:"], private, int(status["Threads"]), len(os.listdir(folder / "fd")), objects)


def slope(times: list[float], values: list[float]) -> tuple[float, float]:
    """The slope of the line through the medians of equal parts, per hour, with the half width of its interval of 95 %.

    Consecutive samples are not independent; medians of minutes nearly are.
    """
    if len(times) < PARTS * 2:
        return 0.0, float("inf")
    size = len(times) // PARTS
    points = [(statistics.median(times[at : at + size]), statistics.median(values[at : at + size])) for at in range(0, size * PARTS, size)]
    x, y = zip(*points, strict=True)
    line = statistics.linear_regression(x, y)
    left = sum((b - line.intercept - line.slope * a) ** 2 for a, b in points) / (PARTS - 2)
    spread = (left / sum((a - statistics.mean(x)) ** 2 for a in x)) ** 0.5
    return line.slope * 3600, T95 * spread * 3600


def report(name: str, times: list[float], samples: list[Sample], limit: float) -> bool:
    """Prints the medians of both quarters of one process; whether they are equal within the limit."""
    quarter = max(1, len(samples) // 4)
    first = [statistics.median(column) for column in zip(*samples[:quarter], strict=True)]
    last = [statistics.median(column) for column in zip(*samples[-quarter:], strict=True)]
    hourly = [slope(times, [float(value) for value in column]) for column in zip(*samples, strict=True)]
    rss, pss, private = (
        f"{first[n] / 1024:.1f} to {last[n] / 1024:.1f} ({hourly[n][0] / 1024:+.2f} ± {hourly[n][1] / 1024:.2f})" for n in (0, 1, 2)
    )
    threads, descriptors, objects = (f"{first[n]:g} to {last[n]:g}" for n in (3, 4, 5))
    flat = min(last[n] - first[n] for n in (0, 1, 2)) <= limit * 1024 and last[3] <= first[3] and last[4] <= first[4]
    print(f"| {name} | {rss} | {pss} | {private} | {threads} | {descriptors} | {objects} | {'flat' if flat else 'GROWS'} |", flush=True)
    return flat


def soak(options: argparse.Namespace, job: Job, is_over: Callable[[], bool]) -> bool:
    began = time.monotonic()
    processor = time.process_time()
    samples: dict[str, list[Sample]] = {name: [] for name in job.processes}
    times: list[float] = []
    job.fill()
    print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
    with Path(options.out).open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["seconds", "process", "pid", *Sample._fields])
        due = time.monotonic()
        sampled = 0.0
        while not is_over() and time.monotonic() - began < options.warm + options.seconds:
            for _ in range(options.rate):
                job.work()
            now = time.monotonic()
            if now - sampled >= options.every:
                sampled = now
                objects = job.objects
                is_counted = now - began >= options.warm
                times += [now - began] if is_counted else []
                for name, pid in job.processes.items():
                    try:
                        found = sample(pid, objects.get(name, 0))
                    except OSError:
                        print(f"{name}, process {pid}, has gone", file=sys.stderr)
                        return False
                    rows.writerow([round(now - began), name, pid, *found])
                    if is_counted:
                        samples[name].append(found)
                file.flush()
            due = max(due + 1.0, now)
            time.sleep(due - now)  # sleeps: a second's work a second
    if not times:
        print("ended while what is bounded reached its bound", file=sys.stderr)
        return False
    hours = (times[-1] - times[0]) / 3600
    print(
        f"{hours:.2f} h after {options.warm:g} s; this process used {(time.process_time() - processor) / (times[-1]) * 100:.1f} % of a core"
    )
    print("MiB of the first and the last quarter (an hour, ± 95 %)")
    print("| process | RSS | PSS | private | threads | descriptors | objects | |\n|---|---|---|---|---|---|---|---|")
    flat = [report(name, times, of, options.limit) for name, of in samples.items()]
    return all(flat)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--warm", type=float, default=900.0)
    parser.add_argument("--rate", type=int, default=1, help="work of so many seconds in one")
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--limit", type=float, default=3.0, help="MiB of growth")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: signals.append(got))
    job = Job()
    try:
        return 0 if soak(options, job, lambda: bool(signals)) else 1
    finally:
        job.stop()


if __name__ == "__main__":
    sys.exit(main())
