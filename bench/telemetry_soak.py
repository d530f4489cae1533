"""A job that is observed for hours: memory, threads and descriptors of each of its processes, which have to stay as they are.

    python bench/telemetry_soak.py [--seconds 7200] [--warm 600] [--every 10] [--limit 3] --out FILE.csv

The job has two hosts with two procs each. Every second its actors are called, get messages without an answer, print, log, open spans, count
and record events; actors are spawned and stopped; every minute a proc is killed and another one spawned. SQL is asked in this process and
over HTTP every four seconds, stacks, metrics and a page of the dashboard every minute. All of it needs a tenth of a processor.

History is short, so that what is bounded reaches its bound within `--warm` seconds, which do not count; more actors end in that time than
are kept. Then `--every` seconds a row for each process goes to the file. The end, or SIGINT, prints the medians of the first and the last
quarter of the time and the slope. Exits with 1 where the memory of a process (both RSS and PSS) has grown by more than `--limit` MiB, where
it has more threads or descriptors, or where a process of the job has gone.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
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
# Ended entities that a collector keeps of each table, and some more.
ENDED, AT_ONCE = 10_500, 100
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
    """Does what is observed."""

    def __init__(self) -> None:
        logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])
        self._rows = get_meter("soak").create_counter("rows")

    @endpoint
    def pid(self) -> int:
        return os.getpid()

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


class Sample(NamedTuple):
    """Of one process at one time; memory in KiB."""

    rss: int
    pss: int
    threads: int
    descriptors: int


def _ignored(_: object) -> None:
    pass


class Job:
    """The job, what it does, and its processes by name."""

    def __init__(self) -> None:
        monarch.actor.unhandled_fault_hook = _ignored  # the deaths below are meant
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
        """The processes that stay: below this one are a worker and a zygote, below zygotes are procs and collectors."""
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

    def _victim(self) -> None:
        self._short = self._hosts[self._turn % 2].spawn_procs({"procs": 1}, name="short").spawn("busy", Busy)
        self._doomed = next(iter(self._short.pid.call().get().values()))

    def kill(self) -> None:
        """Ends a proc; another one takes its place."""
        os.kill(self._doomed, signal.SIGKILL)
        with contextlib.suppress(SupervisionError):
            self._short.pid.call().get()
        self._victim()

    def passing(self, count: int) -> None:
        """Actors that are spawned, called and stopped on the procs of each host: so many meshes of two."""
        for procs in self._meshes:
            meshes = [procs.spawn("passing", Passing) for _ in range(count)]
            for future in [mesh.answer.call() for mesh in meshes]:
                future.get()
            for future in [mesh.stop() for mesh in meshes]:
                future.get()

    def work(self) -> None:
        """A second's work."""
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
        """What a person and a scraper ask."""
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


def sample(pid: int) -> Sample:
    folder = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    rollup = (folder / "smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return Sample(int(status["VmRSS"].split()[0]), pss, int(status["Threads"]), len(os.listdir(folder / "fd")))


def slope(times: list[float], values: list[float]) -> float:
    """Of the line through the points, an hour."""
    return statistics.linear_regression(times, values).slope * 3600 if len(set(times)) > 1 else 0.0


def report(name: str, times: list[float], samples: list[Sample], limit: float) -> bool:
    """Prints the medians of both quarters of one process; whether they are equal but for what is allowed."""
    quarter = max(1, len(samples) // 4)
    first = [statistics.median(column) for column in zip(*samples[:quarter], strict=True)]
    last = [statistics.median(column) for column in zip(*samples[-quarter:], strict=True)]
    hourly = [slope(times, [float(value) for value in column]) for column in zip(*samples, strict=True)]
    rss, pss = (f"{first[n] / 1024:.1f} to {last[n] / 1024:.1f} MiB ({hourly[n] / 1024:+.2f} an hour)" for n in (0, 1))
    threads, descriptors = (f"{first[n]:g} to {last[n]:g}" for n in (2, 3))
    flat = min(last[0] - first[0], last[1] - first[1]) <= limit * 1024 and last[2] <= first[2] and last[3] <= first[3]
    print(f"| {name} | {rss} | {pss} | {threads} | {descriptors} | {'flat' if flat else 'GROWS'} |", flush=True)
    return flat


def soak(options: argparse.Namespace, job: Job, is_over: Callable[[], bool]) -> bool:
    began = time.monotonic()
    processor = time.process_time()
    samples: dict[str, list[Sample]] = {name: [] for name in job.processes}
    times: list[float] = []
    for _ in range(ENDED // AT_ONCE // 2):  # a mesh has an actor on each of two procs
        job.passing(AT_ONCE)
    with Path(options.out).open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["seconds", "process", "pid", *Sample._fields])
        due = time.monotonic()
        sampled = 0.0
        while not is_over() and time.monotonic() - began < options.warm + options.seconds:
            job.work()
            now = time.monotonic()
            if now - sampled >= options.every:
                sampled = now
                is_counted = now - began >= options.warm
                times += [now - began] if is_counted else []
                for name, pid in job.processes.items():
                    try:
                        found = sample(pid)
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
    print("| process | RSS | PSS | threads | descriptors | |\n|---|---|---|---|---|---|")
    flat = [report(name, times, of, options.limit) for name, of in samples.items()]
    return all(flat)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--warm", type=float, default=600.0)
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
