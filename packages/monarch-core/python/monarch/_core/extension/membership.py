"""This process as a member of its job, and the ends of the other members."""

from __future__ import annotations

from monarch._core._native import Process as NativeProcess
from monarch._core._native.protocol import FAILED, GATHER
from monarch._core.call.answer import exit_reason
from monarch._core.call.future import Future, new_future
from monarch._core.call.received_mesh import reach as reach_hosts
from monarch._core.errors.errors import MonarchError
from monarch._core.errors.failure import ExitReason
from monarch._core.errors.text import fill
from monarch._core.extension.frozen import Frozen
from monarch._core.extension.ids import HostId, JobId, ProcId, Rank
from monarch._core.extension.proc_end import ProcEnd
from monarch._core.extension.process_check import UNKNOWN, check_exists, checked_id, job_of_host
from monarch._core.process.current import current_process, known_process, simulated_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import PendingCall
    from monarch._core._native.system import ProcessEnd


class Member(Frozen):
    """A process as a member of a job; immutable.

    `proc`, `host` and `job` are identities, `rank` the position in the mesh of procs (0 in the client), `name` the name of that mesh
    (`client` in the client), `hostname` and `pid` the operating system's identifiers of them.
    """

    __slots__ = ("host", "hostname", "is_client", "job", "name", "pid", "proc", "rank")

    proc: ProcId
    job: JobId
    host: HostId
    name: str
    hostname: str
    pid: int
    rank: Rank
    is_client: bool

    def __init__(self, proc: int, job: int, host: int, name: str, hostname: str, pid: int, rank: int, is_client: bool) -> None:
        self._set(proc=ProcId(proc), job=JobId(job), host=HostId(host), name=name, hostname=hostname, pid=pid)
        self._set(rank=Rank(rank), is_client=is_client)

    def __repr__(self) -> str:
        return f"Member({self.name}[{int(self.rank)}] {self.proc} on {self.hostname}, pid {self.pid})"


def member() -> Member:
    """This process as a member. A script without a client starts one. `RuntimeError` in a forked child, which is no member."""
    process = current_process()
    name = "client" if process.is_client else process.name
    return Member(process.uid, process.peers.job, process.agent_uid, name, process.host, process.pid, process.place.rank, process.is_client)


def is_simulated() -> bool:
    """Whether this code runs in a `Universe`, whose processes are threads of one process."""
    return simulated_process() is not None


def is_ending() -> bool:
    """Whether this process is being stopped, or the script has ended."""
    process = known_process()
    return process is None or process.closed


def places() -> tuple[tuple[JobId, HostId], ...]:
    """The jobs whose processes may send requests to this one, its own first, and the id of its host in each.

    A service lists the jobs that it serves too. The address of a process outside its job includes all of them: `reach` takes the first
    job that the reader belongs to or serves.
    """
    process = current_process()
    return tuple((JobId(job), HostId(host)) for job, host in {process.peers.job: process.agent_uid, **process.peers.serves}.items())


def reach(proc: ProcId | int, host: HostId | int, job: JobId | int = 0) -> None:
    """Records the host of another process, which may be a host that this process has never sent to. From now on it can receive requests.

    Each job has its own ids of hosts. `job` is the one that `host` belongs to. If it is left out, it is this process's own job, or for a
    service the matching job among those that it serves. `LookupError` for a job that this process neither belongs to nor serves, and for an
    unknown host.
    """
    proc, host = checked_id(proc, "reach"), checked_id(host, "reach: host")
    process = current_process()
    if job not in (0, process.peers.job) and job not in process.peers.serves:
        raise LookupError(f"reach({proc}, {HostId(host)}): this process is not of the job {JobId(job)}, nor does it serve it")
    if not job and process.peers.serves and host != process.agent_uid:
        job = job_of_host(process, host)
        if not job:
            raise LookupError(f"reach({proc}, {HostId(host)}): no job that this service serves has a host of this identity")
    reach_hosts(process, job or process.peers.job, [(host, host), (proc, host)])
    watched = process.peers.reached
    if proc not in watched:
        watched.add(proc)
        # This process sends nothing else to that host: without this call, no event would report the loss of the host.
        process.native.watch_proc(proc, host)


def end_of(proc: ProcId | int) -> ProcEnd | None:
    """The end of the process, as far as this process knows; None while it is not known to have ended."""
    proc = checked_id(proc, "end_of")
    end = current_process().native.ended(proc)
    return None if end is None else proc_end(proc, end)


def watch(proc: ProcId | int, host: HostId | int = 0) -> Future[ProcEnd]:
    """The end of another process of the job: done when this process learns of it, at once if it has ended before.

    `host` is needed for a process of another host that this process has never sent to. The future raises `MonarchError` if neither this
    process nor the agent of `host` knows a process of that identity.
    """
    proc = checked_id(proc, "watch")
    process = current_process()
    call = process.native.cell(GATHER, 1, [proc])
    if check_exists(process, call, proc, host):
        process.native.watch_proc(proc, host)
    return new_future(call, lambda c: _watched(proc, c))


def _watched(proc: ProcId, call: PendingCall) -> ProcEnd:
    result = call.result(0)
    call.set_retrieved()
    assert result is not None
    raw = bytes(result.raw())
    if result.status == FAILED and raw == UNKNOWN:
        raise MonarchError(fill("proc_unknown", what="watch of", proc=proc), code="proc_unknown")
    if not raw:
        # The record of that end has been dropped, because many processes have ended since.
        return ProcEnd(proc, ExitReason("stopped", detail="it ended long ago, and why is not kept"), "", None, ())
    return proc_end(proc, NativeProcess.decode_end(raw))


def proc_end(proc: ProcId, end: ProcessEnd) -> ProcEnd:
    return ProcEnd(proc, exit_reason(end), end.host, end.pid or None, tuple(end.output))
