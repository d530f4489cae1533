"""Questions to the collectors of all hosts of a job: planned here, answered where the rows are, finished here.

Each host has until 80 % of the time of a question to answer. A host that does not answer is named in the coverage, and not waited for.
"""

from __future__ import annotations

import secrets
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

from monarch.actor import ActorError, HostMesh, SupervisionError, this_host
from monarch.extension import ServiceError, member
from monarch.extension.mesh import host_mesh_number
from monarch.telemetry._asking import ASKER, Answer, Asker, in_words
from monarch.telemetry._collector.allocator import ANSWERS, LONG, QUESTION
from monarch.telemetry._collector.keeping import schemas
from monarch.telemetry._collector.options import Options
from monarch.telemetry._engine.host import Host, reason
from monarch.telemetry._engine.own_rows import OwnRows
from monarch.telemetry._engine.questions import GROUP, RESTART, Part, Questions
from monarch.telemetry._engine.running_queries import RunningQueries, RunningQuery
from monarch.telemetry._engine.turns import IN_ALL, Turns
from monarch.telemetry._sql import planner
from monarch.telemetry._sql.coverage import Coverage, Missing, Stage
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._sql.plan import Plan
from monarch.telemetry._sql.problems import PlanMismatch
from monarch.telemetry._sql.worker import WORKERS
from monarch.telemetry._stacks.merged import StackReport
from monarch.telemetry.errors import PartialAnswer, QueryError, QueryTimeout, TelemetryError

# A client that never disconnects.
_STAYS = Asker()
# Options that do not affect collectors.
_OF_CLIENT = frozenset({"job", "include_dashboard", "dashboard_port"})
# The part of the time of a question that hosts get.
_SHARE = 0.8


class Engine:
    """Asks the collectors of these hosts, and of the host of this process. Any thread."""

    def __init__(self, meshes: Mapping[str, HostMesh], options: Options, *, alone: bool = False, group: int = GROUP) -> None:
        """`alone`: without the host of this process. Above `group` hosts, parts of answers are merged on the way, so many at a time."""
        self._group = group
        self._turns = Turns(IN_ALL)
        self.options = options
        self.running = RunningQueries(lambda: secrets.randbits(63))
        self.own = OwnRows(options.retention)
        arguments, quiet = {"job": int(member().job)}, set[int]()
        self._hosts = [
            Host(one, name, arguments, options, quiet, self._lost) for mesh, hosts in meshes.items() for name, one in _singles(mesh, hosts)
        ]
        for name, hosts in meshes.items():
            self.own.know_mesh(host_mesh_number(hosts), name, hosts.extent)
        # The events of this process are recorded on its own host, which may not belong to the job.
        if not alone:
            self._hosts.append(Host(this_host(), "client", arguments, options, quiet, self._lost))

    @property
    def hosts(self) -> list[Host]:
        return self._hosts

    def start(self) -> None:
        """Starts the collectors, all at the same time. `TelemetryError` if none of them starts; one that does not is missing in answers."""
        errors: list[BaseException] = []
        WORKERS.warm()

        def begin(host: Host) -> None:
            try:
                host.start()
            except Exception as error:
                errors.append(error)

        _at_once([lambda host=host: begin(host) for host in self._hosts])
        if len(errors) == len(self._hosts):
            raise TelemetryError(f"no collector has started: {errors[0]}") from errors[0]
        # Several meshes may have the same hosts, and this process may be on one of them.
        asked = self._hosts
        self._hosts = list({host.proc or host: host for host in reversed(asked)}.values())[::-1]
        for host in asked:
            if host not in self._hosts:
                host.rest()
        # Only now all collectors are known, to each of them.
        quiet = [host.proc for host in self._hosts if host.proc]
        configured: list[Any] = []
        deadline = time.monotonic() + RESTART
        for host in self._hosts:
            if host.proc:
                # A host that does not answer gets them when it is found again.
                with suppress(Exception):
                    configured.append(host.start(RESTART).configure.call_one(tuple(self.options), quiet, 0.0))
        for future in configured:
            with suppress(Exception):
                future.get(timeout=max(0.0, deadline - time.monotonic()))
        others = ((host, differing(host.running, self.options)) for host in self._hosts if host.proc)
        other = next(((host, options) for host, options in others if options), None)
        if other is not None:
            text = f"telemetry of {other[0].name} goes on with {other[1]}"
            warnings.warn(text, UserWarning, stacklevel=3)
        names = {host.host: host.name_in_job for host in self._hosts if host.proc}
        self.own.know_hosts(self.ask("SELECT * FROM hosts").table.to_pylist(), names)

    def stacks(self, procs: list[int] | None, *, native: bool = False, locals: bool = False, timeout: float = 10.0) -> StackReport:
        """The stacks of these processes, None: of all, merged. A host that does not answer in `timeout` seconds is named in the report."""
        deadline = time.monotonic() + timeout
        found: list[StackReport] = []
        asked: list[tuple[Host, Any]] = []
        for host in self._hosts:
            try:
                handle = host.start(RESTART)
                asked.append((host, handle.stacks.call_one(procs, native, locals)))
            except Exception as error:
                found.append(StackReport.of_missing_host(host.name, reason(error)))
        for host, future in asked:
            try:
                found.append(StackReport.from_json(future.get(timeout=max(0.0, deadline - time.monotonic()))))
            except TimeoutError:
                found.append(StackReport.of_missing_host(host.name, "no answer in time"))
            except Exception as error:
                found.append(StackReport.of_missing_host(host.name, reason(error)))
        try:
            return StackReport.merge(found)
        finally:
            # Frames are many small objects.
            ANSWERS.had(LONG)

    def rest(self, timeout: float | None = None) -> None:
        """The collectors observe no more, and keep what they have. A collector whose host was lost has ended already."""
        self.own.stop()
        # Another engine of this process starts one with its next question.
        WORKERS.rest()
        for host in self._hosts:
            host.rest()
        asked: list[Any] = []
        for host in self._hosts:
            if host.proc:
                with suppress(ServiceError, SupervisionError, TelemetryError, TimeoutError):
                    asked.append(host.start(timeout).rest.call_one())
        for future in asked:
            with suppress(ActorError, SupervisionError, ServiceError, TimeoutError):
                future.get(timeout=timeout)

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        """See `Asking`. `QueryError` for a query that `running` has cancelled, `RuntimeError` in a fork."""
        # A fork has no thread that would answer.
        member()
        seconds = limits.seconds if timeout is None else min(timeout, limits.seconds)
        with self._turns.turn(seconds) as left:
            query = self.running.begin(sql)
            try:
                with ASKER.get(_STAYS).asks(query.cancel):
                    answer = self._answer(query, left, require_all, limits, cut=True)
                    query.answer()
            except QueryTimeout:
                query.check()
                raise
            finally:
                self.running.end(query)
                # Also after a failure: the statement was planned then, and may have its rows.
                ANSWERS.had(QUESTION)
        ANSWERS.had(2 * answer.table.nbytes)
        return answer

    def _answer(self, query: RunningQuery, timeout: float | None, require_all: bool, limits: Limits, *, cut: bool) -> Answer:
        began, sql = time.monotonic(), query.sql
        seconds = limits.seconds if timeout is None else min(timeout, limits.seconds)
        # A host whose name is not known yet is asked.
        names = {host.host: host.hostname for host in self._hosts if host.hostname is not None}
        plan = planner.make(sql, schemas(), limits=limits, cut=cut, hosts=names, deadline=began + seconds, clock=query.clock)
        hosts = [] if plan.way == "local" else [host for host in self._hosts if host.hostname is None or host.host not in plan.without]
        plan, planned = plan._replace(without=()), time.monotonic()
        try:
            parts, missing = ({}, ()) if plan.way == "local" else self._parts(query, plan, hosts, limits, began + seconds * _SHARE)
            query.check()
            came = time.monotonic()
            if missing and not parts and plan.way != "local":
                reasons = "; ".join(f"{one.host}: {one.reason}" for one in missing)
                raise QueryTimeout(
                    f"no host has answered in {in_words(came - began)} ({reasons})", stage="parts", missing=[one.host for one in missing]
                )
            ANSWERS.had(sum(len(one.data) for one in parts.values()))
            own = self.own.tables(plan.reads)
            # Tables and columns that are unknown to leaders are requested from their members, which lead no other host: twice at most.
            while True:
                data = [one.data for one in parts.values()]
                finished = planner.finish(plan, data, own, hosts=list(parts), limits=limits, deadline=began + seconds, clock=query.clock)
                table, rows, malformed = finished
                missing += tuple(Missing(*one) for one in malformed.items())
                members = {member for leader in malformed for member in parts.pop(leader).others}
                if not members:
                    break
                ask = Questions(query, plan.to_json(), limits, began + seconds * _SHARE)
                ask.each([host for host in self._hosts if host.name in members])
                parts |= ask.found
                missing += tuple(Missing(*one) for one in ask.missing.items())
            if missing and not parts and plan.way != "local":
                raise QueryError("; ".join(f"{one.host}: {one.reason}" for one in missing))
        except PlanMismatch:
            if not cut:
                raise
            return self._answer(query, began + seconds - time.monotonic(), require_all, limits, cut=False)
        ended = time.monotonic()
        stages = (
            Stage("plan", 0, 1, 0, (planned - began) * 1e3),
            Stage("finish", 0, 1, table.num_rows, (ended - came) * 1e3),
            *([Stage("hosts", 1, len(parts), rows, (came - planned) * 1e3)] if plan.way != "local" else []),
        )
        scanned = sum(one.scanned for one in parts.values())
        coverage = Coverage(
            len(hosts),
            sum(1 + len(one.others) for one in parts.values()),
            missing,
            scanned,
            elapsed_ms=(ended - began) * 1e3,
            stages=stages,
        )
        if plan.kind == "analyze":
            table = coverage.stages_table()
        answer = Answer(coverage.on(table), coverage)
        if missing and require_all:
            raise PartialAnswer({one.host: one.reason for one in missing}, table=answer.table)
        return answer

    def _parts(
        self, query: RunningQuery, plan: Plan, left: list[Host], limits: Limits, deadline: float
    ) -> tuple[dict[str, Part], tuple[Missing, ...]]:
        """What these hosts have answered by the deadline, and those that have not. Above `group` hosts, parts of several come as one."""
        ask = Questions(query, plan.to_json(), limits, deadline)
        size = self._group
        if plan.way in {"states", "rows"} and len(left) > size:
            left = ask.leaders([left[at : at + size] for at in range(0, len(left), size)])
        ask.each(left)
        return ask.found, tuple(Missing(host, reason) for host, reason in ask.missing.items())

    def _lost(self, host: Host, of: str) -> None:
        self.own.note("telemetry.collector_ended", "warn", host=host.name, reason=of, lost="its history")


def differing(running: Options, asked: Options) -> str:
    """The options that run and differ from what was asked for, as text. A client without variables asks for none of these."""
    found: list[str] = []
    for name, of, wanted in zip(Options._fields, running, asked, strict=True):
        if of != wanted and name not in _OF_CLIENT and (wanted or name != "otel"):
            # The values of variables may be secrets.
            found.append("other variables OTEL_*" if name == "otel" else f"{name}={of!r}, not {wanted!r}")
    return "; ".join(found)


def _singles(mesh: str, hosts: HostMesh) -> list[tuple[str, HostMesh]]:
    """Each host of a mesh, with its name and place."""
    labels = hosts.extent.labels
    if not labels:
        return [(mesh, hosts)]
    points = product(*(range(size) for size in hosts.extent.sizes))
    return [(f"{mesh}{list(point)}", hosts.slice(**dict(zip(labels, point, strict=True)))) for point in points]


def _at_once(actions: list[Callable[[], None]]) -> None:
    threads: list[threading.Thread] = []
    for action in actions:
        thread = threading.Thread(target=action)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started
            action()
        else:
            threads.append(thread)
    for thread in threads:
        thread.join()
