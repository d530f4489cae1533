"""The service of each host: it reads the rings of the host's processes, and answers parts of questions over what it keeps.

Rows are written every 0.2 s, and before each part of an answer. Parts are made on threads, so that no question waits for another one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from monarch.actor import Actor, ActorError, SupervisionError, endpoint
from monarch.extension import JobId, ProcId, Service, is_ending, member, places, seconds
from monarch.extension.events import Observation, observe, recordings
from monarch.telemetry._collector import allocator, process_actions
from monarch.telemetry._collector.exporting import Exporting
from monarch.telemetry._collector.keeping import Keeping, schemas
from monarch.telemetry._collector.live import Live
from monarch.telemetry._collector.options import Options
from monarch.telemetry._collector.snapshots import Schedule
from monarch.telemetry._sql import expected, wire
from monarch.telemetry._sql.context import version
from monarch.telemetry._sql.functions import is_call
from monarch.telemetry._sql.known_parts import KnownParts
from monarch.telemetry._sql.limits import Limits
from monarch.telemetry._sql.plan import Plan, merge, part
from monarch.telemetry.errors import QueryError, QueryTimeout

_log = logging.getLogger("monarch.telemetry")
_EVERY, _RESOURCES_EVERY = 0.2, 10.0
# Questions in progress at the same time; others wait for one of these.
_WORKERS = 8
# The most seconds that a question waits for the events recorded before it.
_LOOK = 0.5
# The most seconds that a start waits until all processes of the host record.
_BEGIN = 0.5
# The most cancelled queries that are remembered; each ends within its time limit.
_MOST_CANCELLED = 256
# The most seconds of a change of the log level of procs.
_SET = 5.0
# A lower priority than that of procs of the job: an observed process loses no time to its observer.
_NICENESS = 10


class Collector(Actor):
    """One host of one job."""

    def __init__(self, job: int) -> None:
        os.nice(_NICENESS)
        allocator.prepare()
        me = member()
        self._job = JobId(job)
        self._keeping = Keeping(JobId(job), me.host, me.hostname, me.proc, _jobs)
        self._exporting = Exporting(self._keeping, JobId(job), me.hostname)
        self._options: Options | None = None
        self._live = Live(me.hostname, JobId(job), self._keeping.ingest)
        self._known = KnownParts()
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="monarch-query")
        # The most recently cancelled queries.
        self._cancelled: OrderedDict[int, None] = OrderedDict()
        self._stop = threading.Event()
        self._schedule = Schedule()
        self._sampling = min(_RESOURCES_EVERY, seconds("process_memory_metric_interval") or _RESOURCES_EVERY)
        self._observation: Observation | None = None
        threading.Thread(target=self._run, name="monarch-telemetry", daemon=True).start()

    def _run(self) -> None:
        sampled = 0.0
        while not self._stop.wait(self._schedule.wait(time.time(), _EVERY)):
            try:
                self._keeping.ingest.flush()
                if (observation := self._observation) is not None and self._keeping.ingest.gaps.due(time.monotonic()):
                    observation.introduce()
                if time.monotonic() - sampled >= self._sampling:
                    sampled = time.monotonic()
                    self._keeping.sample()
                    self._known.forget()
                    allocator.give_back()
                self._take_snapshot()
                self._exporting.step()
            except Exception:
                if is_ending():
                    return
                # Rows that could not be written are lost; the next look continues.
                _log.exception("rows of telemetry could not be written")

    def _take_snapshot(self) -> None:
        number, observation = self._schedule.due(time.time()), self._observation
        if number is None or observation is None:
            return
        # The start of an actor is known once the agent has it.
        observation.look(_LOOK)
        self._keeping.ingest.flush()
        self._keeping.snapshot(number, self._live.state)

    @endpoint
    async def about(self) -> tuple[str, int, int, int, int, str]:
        """The version of the library that plans, this collector's process with its pid, its host, the name of that in the job, its own."""
        me = member()
        return version(), int(me.proc), me.pid, int(me.host), int(dict(places()).get(self._job, me.host)), me.hostname

    @endpoint
    async def part(self, plan: str, limits: tuple[Any, ...], seconds: float, token: int) -> tuple[bytes, int] | None:
        """A part of an answer, and how many rows its tables have; None when `seconds` are over, or the query of `token` was cancelled.

        The caller does not wait longer either, and an exception that no code reads would be reported on its stderr.
        """
        deadline = time.monotonic() + seconds
        return await self._on_thread(lambda: self._part(plan, Limits(*limits), deadline, token))

    @endpoint
    async def cancel(self, token: int) -> None:
        """The part of this query ends before its next batch; one that is asked for later, before its first."""
        self._cancelled[token] = None
        while len(self._cancelled) > _MOST_CANCELLED:
            self._cancelled.popitem(last=False)

    def _part(self, text: str, limits: Limits, deadline: float, token: int) -> tuple[bytes, int] | None:
        def clock() -> float:
            return math.inf if token in self._cancelled else time.monotonic()

        plan = Plan.from_json(text, schemas())
        # Events recorded before the question are part of the answer, unless the agent of this host does not answer.
        if self._observation is not None:
            self._observation.look(max(0.0, min(_LOOK, deadline - time.monotonic())))
        calls = [name for name in plan.reads if is_call(name)]
        tables = self._keeping.tables(name for name in plan.reads if not is_call(name))
        if calls:
            tables.update(self._live.tables(calls))
        try:
            batches = part(plan, tables, limits=limits, deadline=deadline, clock=clock, known=self._known)
        except QueryTimeout:
            return None
        return wire.encode(batches), sum(batch.num_rows for _, held in tables.values() for batch in held)

    @endpoint
    async def gather(
        self, plan: str, limits: tuple[Any, ...], seconds: float, others: list[Any], token: int
    ) -> tuple[bytes, int, list[int]] | None:
        """The parts of this host and of those of other collectors as one, and the places of collectors that have not answered.

        None is that of `part`.
        """
        deadline = time.monotonic() + seconds
        given = Limits(*limits)

        async def of(other: Any) -> object:
            try:
                return await asyncio.wait_for(_awaited(other.part.call_one(plan, limits, seconds, token)), deadline - time.monotonic())
            except ActorError as error:
                if isinstance(error.exception, QueryError) and not isinstance(error.exception, QueryTimeout):
                    raise error.exception from None
                return None
            except (TimeoutError, SupervisionError, RuntimeError, OSError):
                return None

        mine = self._on_thread(lambda: self._part(plan, given, deadline, token))
        found = await asyncio.gather(mine, *(of(other) for other in others))
        if found[0] is None:
            return None

        def merged() -> tuple[bytes, int, list[int]]:
            made = Plan.from_json(plan, schemas())
            parts, scanned, without = wire.parts_of(found, given.memory, lambda batches: expected.check(made, batches))
            # The first part is that of this host.
            return wire.encode(merge(made, parts, limits=given)), scanned, [place - 1 for place in without]

        return await self._on_thread(merged)

    @endpoint
    async def stacks(self, procs: list[int] | None, native: bool, locals: bool) -> dict[str, object]:
        """The report on the processes of this host, as `StackReport.to_json`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, lambda: self._live.stacks(procs, native, locals).to_json())

    @endpoint
    async def read_stacks(self, pid: int, seconds: float) -> str:
        """See `process_actions`."""
        return await self._on_thread(lambda: process_actions.read_stacks(pid, seconds))

    @endpoint
    async def profile(self, pid: int, duration: float, rate: int, native: bool, threads: bool, nonblocking: bool) -> str:
        """See `process_actions`."""
        return await self._on_thread(lambda: process_actions.sample(pid, duration, rate, native, threads, nonblocking))

    @endpoint
    async def send_signal(self, pid: int, proc: int, number: int) -> str | None:
        """See `process_actions`."""
        return await self._on_thread(lambda: process_actions.send_signal(pid, proc, number))

    @endpoint
    async def settings(self, pid: int, proc: int, seconds: float) -> str:
        """See `process_actions.read_settings`."""
        return await self._on_thread(lambda: process_actions.read_settings(proc, seconds))

    @endpoint
    async def dump_state(self, pid: int, proc: int, seconds: float) -> str:
        """See `process_actions.dump_state`."""
        return await self._on_thread(lambda: process_actions.dump_state(proc, seconds))

    @endpoint
    async def set_log_level(self, pid: int, proc: int, level: int) -> str | None:
        """None where it is set, else the reason."""
        count, refused = await self._on_thread(lambda: process_actions.set_levels([proc], level, _SET))
        return None if count else refused or f"proc {proc} has ended"

    @endpoint
    async def set_log_levels(self, level: int) -> tuple[int, str]:
        """Of all procs of the job on this host: in how many it is set, and why not in others."""

        def work() -> tuple[int, str]:
            procs = {int(proc["uid"], 16) for proc in self._live.state()["procs"] if proc["state"] == "running"}
            return process_actions.set_levels(sorted(procs - {int(member().proc)}), level, _SET)

        return await self._on_thread(work)

    async def _on_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    @endpoint
    async def report(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Rows that only another process of the job has."""
        self._keeping.report(table, rows)

    @endpoint
    async def configure(self, options: tuple[Any, ...], quiet: list[int], age: float) -> tuple[Any, ...]:
        """Takes what is more of two sets of options, and gives the outcome. Messages to `quiet` are those of telemetry itself.

        An observation that begins takes what was recorded in the last `age` seconds too.
        """
        wanted = Options(*options)
        options = self._options = wanted if self._options is None else self._options.widened(wanted)
        self._keeping.ingest.be_quiet_about(quiet)
        self._keeping.configure(options)
        # Before the first rows arrive.
        await self._on_thread(lambda: self._exporting.follow(options))
        # A `rest` may have arrived in the meantime, or more options, which then start.
        if self._options is options and options.level != "off" and self._observation is None:
            self._keeping.ingest.begin(int((time.time() - age) * 1e6))
            self._observation = observe(self._keeping.take, every=_EVERY)
            await self._until_all_record(self._observation)
        if self._observation is not None:
            interval = options.snapshot_interval
            # Intervals below the time of a look would leave no pause between looks.
            self._schedule.every(None if interval is None else max(interval, _EVERY))
        return tuple(options)

    async def _until_all_record(self, observation: Observation) -> None:
        """Processes begin to record when they get the request: calls that follow a start are counted from the first one on.

        A stopped process begins when it continues, and is not waited for.
        """
        deadline = time.monotonic() + _BEGIN
        state = await self._on_thread(self._live.state)
        self._keeping.ingest.know_hosts(state.get("hosts", ()))
        running = {int(proc["uid"], 16) for proc in state["procs"] if proc["state"] == "running"} - {int(member().proc)}
        while running - self._keeping.ingest.introduced() and time.monotonic() < deadline:
            await self._on_thread(lambda: observation.look(max(0.0, deadline - time.monotonic())))

    @endpoint
    async def rest(self) -> None:
        """Observes no more; what is kept stays."""
        observation, self._observation, self._options = self._observation, None, None
        self._schedule.every(None)
        if observation is not None:
            await asyncio.get_running_loop().run_in_executor(self._workers, observation.stop)
            self._keeping.ingest.flush()
            self._keeping.ingest.end()
        await self._on_thread(self._exporting.rest)


async def _awaited(future: Any) -> Any:
    return await future


def _jobs() -> dict[ProcId, JobId]:
    return {recording.proc: recording.job for recording in recordings()}


SERVICE = Service(Collector)
