"""Carries out the joining of a `LauncherJob`: submits, waits for addresses on a thread of its own, attaches."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from monarch.job import _credentials
from monarch.job._job_state import JobState
from monarch.job._join import Host, Join
from monarch.job._status import HostStatus, JobStatus
from monarch.job.errors import JobEndedError, JobError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.actor import Future, HostMesh, Port
    from monarch.job._launched import LauncherJob

SHUTDOWN_SECONDS = 5.0
_TAIL_LINES = 10
_TAIL_BYTES = 4096


def submit(job: LauncherJob, client_script: str | None) -> None:
    if client_script is not None and not job.runs_scripts:
        raise JobError(f"{job.kind} jobs run no client script", title=job._title, hint="run the script itself; it connects with state()")
    assert job.apply_id is not None
    secret = _credentials.make(job.apply_id)
    job._client_script = client_script
    launcher = job._launcher()
    job._ids = launcher.submit(launcher.plan(), secret)


def ids_of(job: LauncherJob) -> dict[str, Any]:
    if job._ids is None:
        raise JobError("has no allocation", title=job._title)
    return job._ids


def poll(job: LauncherJob) -> JobStatus:
    """The launcher's words, with the addresses that are known."""
    launcher, ids = job._launcher(), ids_of(job)
    status = launcher.poll(ids)
    addresses = launcher.addresses(ids)
    known = {Host(host.mesh, host.rank): host for host in status.hosts}
    hosts: list[HostStatus] = []
    for mesh, size in job._sizes().items():
        found = addresses.get(mesh, [])
        for rank in range(size):
            address = found[rank] if rank < len(found) else None
            host = known.get(Host(mesh, rank)) or HostStatus(mesh, rank, "", "waiting", None, "")
            if host.phase == "waiting" and address is not None:
                host = host._replace(phase="joined")
            hosts.append(host._replace(address=address or host.address))
    return status._replace(hosts=hosts)


def connect(job: LauncherJob) -> JobState:
    """Handles at once; they wait for the hosts. The same ones each time, until healing replaces hosts."""
    if job.connection_ is None:
        job.connection_ = _attach(job)
    return job.connection_


def _attach(job: LauncherJob) -> JobState:
    from monarch.actor import Channel
    from monarch.job._attaching import attach

    assert job.apply_id is not None
    secret = job._secret()
    addresses = job._launcher().addresses(ids_of(job))
    ports: dict[Host, Port[str]] = {}
    meshes: dict[str, HostMesh] = {}
    for mesh, size in job._sizes().items():
        workers: list[str | Future[str]] = []
        found = addresses.get(mesh, [])
        for rank in range(size):
            address = found[rank] if rank < len(found) else None
            if address is None:
                ports[Host(mesh, rank)], receiver = Channel[str].open(once=True)
                workers.append(receiver.recv())
            else:
                workers.append(address)
        meshes[mesh] = attach(workers, mesh, secret)
    if ports:
        _Waiter(job, ports).start()
    return JobState(meshes)


class _Waiter(threading.Thread):
    """Looks at the scheduler until all addresses are known, or nobody needs them any more."""

    def __init__(self, job: LauncherJob, ports: Mapping[Host, Port[str]]) -> None:
        super().__init__(name="monarch-job-join", daemon=True)
        self._job = job
        self._ports = dict(ports)

    def run(self) -> None:
        try:
            for host, address in until_joined(self._job, list(self._ports), self._job._join_timeout()):
                self._ports.pop(host).send(address)
        except Exception as e:
            for port in self._ports.values():
                port.exception(e)


def until_joined(job: LauncherJob, wanted: list[Host], timeout: float | None) -> Any:
    """Yields hosts with their addresses as they become known; `JoinTimeoutError`, `JobEndedError` or the launcher's own error."""
    join = Join(job._title, job._sizes(), timeout, time.monotonic(), sys.stderr is not None and sys.stderr.isatty())
    stopped = job.stopped_ = threading.Event()
    missing = set(wanted)
    for host in set(join.missing) - missing:
        join.came(host.mesh, host.rank)
    while missing:
        status = poll(job)
        now = time.monotonic()
        join.seen(status, now)
        for host in status.hosts:
            place = Host(host.mesh, host.rank)
            if host.phase == "joined" and host.address is not None and place in missing:
                missing.discard(place)
                join.came(host.mesh, host.rank)
                yield place, host.address
        if missing and status.phase == "ended":
            raise ended(job, status)
        if join.overdue(now):
            raise join.error(last_words(job))
        line = join.line(now)
        if line is not None:
            print(line, file=sys.stderr, flush=True)
        if missing and stopped.wait(join.pause(now)):
            raise JobEndedError("was killed", title=job._title, state="killed")


def ended(job: LauncherJob, status: JobStatus) -> JobEndedError:
    """The scheduler's words, and what the workers said last."""
    words = "\n".join(f"{host}: {text}" for host, text in last_words(job).items())
    state, reason = job._ending(status)
    what = "ended" if state == status.phase else f"ended: {state}"
    return JobEndedError(what, title=job._title, cause="\n".join(filter(None, (status.detail, words))), state=state, reason=reason)


def last_words(job: LauncherJob) -> dict[Host, str]:
    """The tail of each worker's stderr, or of its stdout where that is empty."""
    found: dict[Host, str] = {}
    for log in sorted(job._logs(), key=lambda log: log.stream != "err"):
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
    if job.stopped_ is not None:
        job.stopped_.set()
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
