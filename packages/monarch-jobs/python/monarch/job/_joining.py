"""Carries out the joining of a `LauncherJob`: submits, waits for addresses on a thread of its own, attaches."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.job._files import credentials
from monarch.job._job_state import JobState
from monarch.job._join import Host, Join
from monarch.job._machine.commands import time_left
from monarch.job._status import HostStatus, JobStatus
from monarch.job.errors import JobEndedError, JobError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monarch.actor import Future, HostMesh, Port, PortReceiver
    from monarch.job._launched import LauncherJob

SHUTDOWN_SECONDS = 5.0
_TAIL_LINES = 10
_TAIL_BYTES = 4096


def submit(job: LauncherJob, client_script: str | None) -> None:
    if client_script is not None and not job.runs_scripts:
        raise JobError(f"{job.kind} jobs run no client script", title=job._title, hint="run the script itself; it connects with state()")
    assert job.apply_id is not None
    secret = credentials.make(job.apply_id)
    job._client_script = client_script
    launcher = job._launcher()
    job._ids = launcher.submit(launcher.plan(), secret)


def ids_of(job: LauncherJob) -> dict[str, Any]:
    if job._ids is None:
        raise JobError("has no allocation", title=job._title)
    return job._ids


class Allocation:
    """One allocation of a job, which may be killed and applied anew while somebody waits for its hosts."""

    def __init__(self, job: LauncherJob) -> None:
        self.title = job._title
        self.launcher = job._launcher()
        self.ids = ids_of(job)
        self.sizes = job._sizes()
        self.logs = job._logs()
        self.ending = job._ending
        # Set when it is killed.
        self.stopped = threading.Event()
        # What `poll` has found last.
        self.seen = JobStatus("unknown", "", [])


def poll(allocation: Allocation) -> JobStatus:
    """The launcher's words, with the addresses that are known."""
    status = allocation.launcher.poll(allocation.ids)
    addresses = allocation.launcher.addresses(allocation.ids)
    known = {Host(host.mesh, host.rank): host for host in status.hosts}
    hosts: list[HostStatus] = []
    for mesh, size in allocation.sizes.items():
        found = addresses.get(mesh, [])
        for rank in range(size):
            address = found[rank] if rank < len(found) else None
            host = known.get(Host(mesh, rank)) or HostStatus(mesh, rank, "", "waiting", None, "")
            if status.phase == "ended" and host.phase != "lost":
                host = host._replace(phase="lost", detail=host.detail or "the job has ended")
            elif host.phase == "waiting" and address is not None:
                host = host._replace(phase="joined")
            hosts.append(host._replace(address=address or host.address))
    allocation.seen = status._replace(hosts=hosts)
    return allocation.seen


def look(job: LauncherJob, allocation: Allocation) -> JobStatus:
    """The launcher's words, and the hosts that the runtime of this process has lost: neither waits for the other.

    Notes where workers have been replaced since this process connected: by another process's `heal`, or by a requeue.
    """
    status = poll(allocation)
    connection, attached = job.connection_, job.attached_
    if connection is None or attached is None:
        return status
    lost = {Host(name, rank): why for name in connection for rank, why in connection[name]._lost_hosts().items()}
    hosts: list[HostStatus] = []
    for host in status.hosts:
        place = Host(host.mesh, host.rank)
        known, why = attached.get(place), lost.get(place)
        if host.address is None:
            # Not known for a moment, or not there yet; where the runtime has lost it, another worker is to come.
            job.is_stale_ |= known is not None and why is not None
        elif known is not None and known != host.address:
            job.is_stale_ = True
        elif why is not None and host.phase != "lost":
            host = host._replace(phase="lost", detail=why)
        hosts.append(host)
    return status._replace(hosts=hosts)


def connect(job: LauncherJob) -> JobState:
    """Handles at once; they wait for the hosts. The same ones each time, until workers are replaced."""
    if job.connection_ is None or job.is_stale_:
        job.connection_ = _attach(job)
        job.is_stale_ = False
    return job.connection_


def _attach(job: LauncherJob) -> JobState:
    from monarch.actor import Channel, attach_to_workers

    assert job.apply_id is not None
    secret = job._secret()
    addresses = job._launcher().addresses(ids_of(job))
    explain = job._explains_loss()
    promises: dict[Host, _Promise] = {}
    attached = job.attached_ = {}
    meshes: dict[str, HostMesh] = {}
    for mesh, size in job._sizes().items():
        workers: list[str | Future[str]] = []
        found = addresses.get(mesh, [])
        for rank in range(size):
            address = found[rank] if rank < len(found) else None
            if address is None:
                promise = promises[Host(mesh, rank)] = _Promise(*Channel[str].open(once=True))
                workers.append(promise.receiver.recv())
            else:
                workers.append(address)
                attached[Host(mesh, rank)] = address
        meshes[mesh] = attach_to_workers(workers=workers, name=mesh, secret=secret)
        if explain is not None:
            meshes[mesh]._explain_loss(explain)
    if promises:
        allocation = job.awaited_ = Allocation(job)
        _Waiter(allocation, promises, attached, job._join_timeout()).start()
    return JobState(meshes)


class _Promise(NamedTuple):
    """An address to come. The receiver has to be kept: when it goes, the future is never fulfilled."""

    port: Port[str]
    receiver: PortReceiver[str]


class _Waiter(threading.Thread):
    """Looks at the scheduler until all addresses are known, or nobody needs them any more."""

    def __init__(self, allocation: Allocation, promises: Mapping[Host, _Promise], attached: dict[Host, str], timeout: float | None) -> None:
        super().__init__(name="monarch-job-join", daemon=True)
        self._allocation = allocation
        self._timeout = timeout
        self._promises = dict(promises)
        self._attached = attached

    def run(self) -> None:
        sent: set[Host] = set()
        try:
            for host, address in until_joined(self._allocation, list(self._promises), self._timeout):
                self._attached[host] = address
                self._promises[host].port.send(address)
                sent.add(host)
        except Exception as e:
            for host, promise in self._promises.items():
                if host not in sent:
                    with contextlib.suppress(Exception):  # the client is ending
                        promise.port.exception(e)


def until_joined(allocation: Allocation, wanted: list[Host], timeout: float | None) -> Iterator[tuple[Host, str]]:
    """Yields hosts with their addresses as they become known; `JoinTimeoutError`, `JobEndedError` or the launcher's own error.

    A surrounding `time_limit` ends the wait as well, whatever the scheduler says.
    """
    join = Join(allocation.title, allocation.sizes, timeout, time.monotonic(), sys.stderr is not None and sys.stderr.isatty())
    missing = set(wanted)
    for host in set(join.missing) - missing:
        join.came(host.mesh, host.rank)
    while missing:
        status = poll(allocation)
        if allocation.stopped.is_set():
            raise JobEndedError("was killed", title=allocation.title, state="killed")
        now = time.monotonic()
        join.seen(status, now)
        for host in status.hosts:
            place = Host(host.mesh, host.rank)
            if host.phase == "joined" and host.address is not None and place in missing:
                missing.discard(place)
                join.came(host.mesh, host.rank)
                yield place, host.address
        if missing and status.phase == "ended":
            raise ended(allocation, status)
        if missing and (join.overdue(now) or time_left(1.0) == 0):
            raise join.error(last_words(allocation))
        line = join.line(now)
        if line is not None:
            print(line, file=sys.stderr, flush=True)
        if missing:
            allocation.stopped.wait(time_left(join.pause(now)))


def ended(allocation: Allocation, status: JobStatus) -> JobEndedError:
    """The scheduler's words, and what the workers said last."""
    words = "\n".join(f"{host}: {text}" for host, text in last_words(allocation).items())
    state, reason = allocation.ending(status)
    detail = status.detail
    if state == status.phase:
        what = "ended"
    else:
        # The scheduler's own words are the first line.
        line, _, detail = detail.partition("\n")
        what = f"ended: {line}"
    cause = "\n".join(filter(None, (detail, words)))
    return JobEndedError(what, title=allocation.title, cause=cause, state=state, reason=reason)


def last_words(allocation: Allocation) -> dict[Host, str]:
    """The tail of each worker's stderr, or of its stdout where that is empty."""
    found: dict[Host, str] = {}
    for log in sorted(allocation.logs, key=lambda log: log.stream != "err"):
        text = tail(log.path)
        if text and log.stream in ("err", "out"):
            found.setdefault(Host(log.mesh, log.rank), text)
    return found


def tail(path: str, lines: int = _TAIL_LINES) -> str:
    """The last lines of a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as f:
            f.seek(0, 2)
            f.seek(max(f.tell() - _TAIL_BYTES, 0))
            return "\n".join(f.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def cancel(job: LauncherJob) -> None:
    """Asks the hosts to stop, if this process is connected to them, and ends the allocation in any case."""
    if job.awaited_ is not None:
        job.awaited_.stopped.set()
    connection, job.connection_ = job.connection_, None
    try:
        if connection is not None:
            _shut_down(connection)
    finally:
        if job._ids is not None:
            job._launcher().cancel(job._ids)
    job._ids = None


def _shut_down(connection: JobState) -> None:
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    futures: list[Future[None]] = []
    for name in connection:
        try:
            futures.append(connection[name].shutdown())
        except RuntimeError:
            continue  # it has been shut down already
    for future in futures:
        try:
            future.get(max(deadline - time.monotonic(), 0.001))
        except Exception:
            continue  # whoever does not answer is ended by the scheduler
