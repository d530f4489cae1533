"""The present state of a job: two looks into its processes, the limits that they reach, the troubles that schedulers know of it, and rows
of tables where telemetry runs.

A process begins to ask its schedulers when it is looked into, and has their answers in a later look.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from monarch.extension import member
from monarch.extension.inspection import InspectedJob, host_stacks, host_state, inspect_jobs
from monarch.telemetry._asking import Asking
from monarch.telemetry._diagnose.groups import is_unclear
from monarch.telemetry._diagnose.inspected import Looked, group_ranks, procs_of, snapshot, stack_answers
from monarch.telemetry._diagnose.resources import processor_checks, resource_checks, swap_checks, swap_samples
from monarch.telemetry._diagnose.snapshot import Host, Proc, Snapshot, Trouble
from monarch.telemetry._diagnose.tables import recorded
from monarch.telemetry.errors import TelemetryError

# The seconds between both looks: what waits for as long is no call that has just begun.
BETWEEN = 0.4
# The seconds between the first look and a third one, for ranks that wait for others in a collective; and the most looks at them: a process
# of an overloaded machine may miss one.
_LONGER = 1.4
_MOST_LOOKS = 4
# Seconds for a look. Agents answer within two, on a machine that is not overloaded.
_TIMEOUT = 6.0


def own_job() -> InspectedJob:
    """The job of this process: its state and stacks, as the agent of this host has them."""
    own = member()
    try:
        return InspectedJob(int(own.host), None, host_state(_TIMEOUT), host_stacks(_TIMEOUT), None)
    except OSError as error:
        return InspectedJob(int(own.host), None, None, None, f"the agent of this host does not answer: {error}")


def job_of(pid: int | None) -> InspectedJob:
    """The job of this user on this machine whose client has this pid, or the only one. With a pid no other job is asked."""
    found = inspect_jobs(_TIMEOUT, pid=pid)
    if pid is not None and any(one.is_agent for one in found):
        # Only the other jobs show whether one of them lists this agent.
        found = inspect_jobs(_TIMEOUT)
    return chosen(found, pid)


def job_again(job: InspectedJob) -> InspectedJob:
    """The same job at another moment; no other job is asked."""
    found = inspect_jobs(_TIMEOUT, number=job.number)
    if not found:
        raise TelemetryError(f"the job of process {job.pid} has ended", code="no_such_job")
    return found[0]


def collected(
    find: Callable[[], InspectedJob | None],
    engine: Asking | None = None,
    *,
    first: InspectedJob | None = None,
    between: float = BETWEEN,
) -> Snapshot:
    """The snapshot of the job that `find` gives, twice, or once after `first`; of an engine its rows too.

    `TelemetryError` where neither gives anything.
    """
    first = first or find()
    began = time.monotonic()
    found = Snapshot()
    missing: list[str] = []
    if first is not None and first.state is not None:
        before = Looked(first.state, first.stacks)
        of_swap, sampled_at = swap_samples(local_pids(before)), time.monotonic()
        rest = between - (time.monotonic() - began)
        if rest > 0:
            time.sleep(rest)  # sleeps: the time between both looks
        second = find()
        now = second if second is not None and second.state is not None else first
        after = Looked(now.state, now.stacks)
        found = snapshot(before, after, time.monotonic() - began)
        swap = swap_checks(found.procs, of_swap, swap_samples(of_swap), time.monotonic() - sampled_at)
        checks = processor_checks(found.procs, before, after)
        found = found._replace(checks=(*resource_checks(found.procs), *checks, *swap))
        found = found._replace(sources=_sources(found))
        looks = [before, after]
        while (is_unclear(found.groups) or is_asking(looks[-1])) and len(looks) < _MOST_LOOKS:
            time.sleep(max(0.0, began + (len(looks) - 1) * _LONGER - time.monotonic()))  # sleeps: a collective takes a while
            if (third := find()) is not None:
                looks.append(Looked(third.state, third.stacks))
            found = found._replace(groups=group_ranks(looks, found.procs), group_seconds=time.monotonic() - began)
            if third is None or (all(len(one.looks) > 2 for one in found.groups) and not is_asking(looks[-1])):
                break
        of_schedulers, without = troubles(looks[-1])
        found = found._replace(troubles=of_schedulers)
        missing += [*without, *(["a scheduler, which takes longer"] if is_asking(looks[-1]) else [])]
        if now.stacks is None:
            missing.append("stacks of the processes")
    elif first is not None:
        found = without_answer(first.number, first.pid, first.error or "no answer")
    if engine is not None:
        found = recorded(found, engine, is_live=first is not None)
    if not found.sources and not found.missing and not missing:
        raise TelemetryError(
            "there is no job to diagnose", hint="`monarch ps` lists the jobs of this machine; --addr and --from name others"
        )
    return found._replace(missing=(*found.missing, *missing))


def chosen(found: Sequence[InspectedJob], pid: int | None) -> InspectedJob:
    """The job whose client has this pid, or the only one. `TelemetryError` names the others.

    An agent of a host is the choice only if no client of a job runs on this machine.
    """
    if pid is not None:
        one = next((one for one in found if one.pid == pid), None)
        if one is not None:
            return one
        known = ", ".join(str(one.pid) for one in found if one.pid is not None) or "none"
        text = f"process {pid} is not the client of a job of this user on this machine (there is: {known})"
        raise TelemetryError(text, code="no_such_job")
    jobs = [one for one in found if not one.is_agent]
    several = jobs or found
    if len(several) == 1:
        return several[0]
    if not found:
        raise TelemetryError(
            "no job of this user runs on this machine", code="no_such_job", hint="--addr names a job elsewhere, --from a capture"
        )
    names = "\n".join(f"  {one.pid}: {one.command[:100]}" for one in several)
    what = (
        f"{len(jobs)} jobs run on this machine" if jobs else f"no client of a job runs on this machine, and {len(found)} agents of hosts do"
    )
    raise TelemetryError(f"{what}: give the pid of one\n{names}")


def of_engine(engine: Asking) -> Snapshot:
    """The snapshot of the job that an engine answers for: of its processes too, if its client runs on this machine."""
    client = _client_of(engine)
    return collected(lambda: next(iter(inspect_jobs(_TIMEOUT, number=client)), None) if client else None, engine)


def engine_of(job: InspectedJob, engine: Asking) -> Asking | None:
    """The engine, if it answers for this job; None for the engine of another job, or one that does not answer."""
    return engine if _client_of(engine) == job.number else None


def _client_of(engine: Asking) -> int | None:
    """The number of the client of the job that an engine answers for; none without an answer, as for a capture."""
    try:
        table, _ = engine.ask("SELECT proc_id FROM live_procs() WHERE mesh_name IS NULL LIMIT 1", timeout=2.0)
    except (TelemetryError, OSError):
        return None
    return next(iter(table.column(0).to_pylist()), None)


def _sources(found: Snapshot) -> tuple[str, ...]:
    hosts = f"{len(found.hosts)} hosts" if len(found.hosts) != 1 else "1 host"
    return (
        f"{len(found.procs)} procs and {len(found.actors)} actors of {hosts}",
        f"stacks, waits and queues in two looks {found.seconds:.1f} s apart",
        f"{len(found.checks)} limits of processes and hosts",
    )


def without_answer(number: int, pid: int | None, error: str) -> Snapshot:
    """The snapshot of a job whose client gives no answer: the state of its process in the kernel."""
    host = os.uname().nodename
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            kernel = file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        kernel = ""
    if kernel not in ("T", "t"):
        # An answer that comes too late is no fault of the job: the machine may be overloaded.
        return Snapshot(missing=(f"process {pid or number}: {error}",))
    client = Proc(f"{number:016x}", host, pid or 0, "client", kernel=kernel, answered=False)
    return Snapshot((client,), (), (Host(host),), sources=(f"process {pid} of this machine",))


def local_pids(looked: Looked) -> list[int]:
    """The pids of the processes of this machine."""
    return [int(proc["pid"]) for host, proc in procs_of(looked) if proc["pid"] and _is_local(host, int(proc["pid"]))]


def _is_local(host: str, pid: int) -> bool:
    """Whether a process runs on this machine: by the name of its host and its pid."""
    return host == os.uname().nodename and os.path.isdir(f"/proc/{pid}/task")


# The name of the report in the answer of a process.
_REPORT = "schedulers"
# The most troubles of a process, and the most characters of a text about a row.
_MOST, _MOST_TEXT = 256, 200


def is_asking(looked: Looked) -> bool:
    """Whether a process waits for the answer of a scheduler."""
    return any(_REPORT in reports and reports[_REPORT] is None for reports in _reports(looked))


def troubles(looked: Looked) -> tuple[tuple[Trouble, ...], tuple[str, ...]]:
    """The troubles, and the schedulers without an answer; a process made the report itself, and it may have any form."""
    found, missing = list[Trouble](), list[str]()
    for reports in _reports(looked):
        given: object = reports.get(_REPORT)
        if given is not None and not isinstance(given, list):
            missing.append(f"scheduler: the report of a process has another form: {given!r}"[:_MOST_TEXT])
            continue
        for one in cast("list[Any]", given or [])[:_MOST]:
            try:
                fields = {name: str(one.get(name, "")) for name in ("kind", "text", "job", "source", "command")}
                trouble = Trouble(**fields, hosts=tuple(str(host) for host in one.get("hosts", ())))
            except (AttributeError, TypeError):
                missing.append(f"scheduler: a row of another form: {one!r}"[:_MOST_TEXT])
                continue
            if trouble.kind == "unknown":
                missing.append(f"scheduler: {trouble.text}")
            else:
                found.append(trouble)
    return tuple(dict.fromkeys(found)), tuple(dict.fromkeys(missing))


def _reports(looked: Looked) -> Iterator[Mapping[str, Any]]:
    for _, answer in stack_answers(looked):
        reports = answer.get("reports")
        if isinstance(reports, dict):
            yield reports
