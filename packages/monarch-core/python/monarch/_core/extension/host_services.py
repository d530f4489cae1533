"""The services of a host, in the process of its agent: each is started once, kept running, and ended.

An actor of the agent owns them: a service is a proc with one actor, in the job of the agent itself. The agent grants processes of other
jobs access, job by job.
"""

from __future__ import annotations

import asyncio
import marshal
from _thread import allocate_lock
from contextlib import suppress
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._core.call.actor import Actor, concurrent_endpoint
from monarch._core.call.call_target import CallTarget
from monarch._core.errors.errors import SupervisionError
from monarch._core.errors.extension import RequestError
from monarch._core.errors.failure import cause
from monarch._core.extension.request import ask
from monarch._core.extension.served_jobs import REQUEST as SERVE
from monarch._core.extension.thread import when_done
from monarch._core.hosts.host_mesh import HostMesh
from monarch._core.hosts.host_set import HostSet, local_host_set
from monarch._core.hosts.proc_set import own_proc_set
from monarch._core.process.current import current_process

if TYPE_CHECKING:
    from monarch._core.call.future import Future
    from monarch._core.errors.failure import MeshFailure
    from monarch._core.extension.request import Request
    from monarch._core.hosts.host_mesh import ProcMesh

# Seconds: the pause before a start after the first end; the longest pause, as each end in a row doubles it; the run time that resets it.
FIRST_PAUSE, LONGEST_PAUSE, SETTLED = 0.1, 30.0, 60.0


class Wanted(NamedTuple):
    """A request for a service. `job` is that of the requesting process; 0 for a service that all jobs share."""

    name: str
    job: int
    class_name: str
    payload: bytes
    start_seconds: float
    arguments: bytes
    # The arguments are the declared ones: the requester accepts the service as it runs.
    is_any: bool
    # Seconds that the requester waits. None: as long as a start and an answer of the service may each take.
    timeout: float | None

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.job

    @property
    def mailbox(self) -> int:
        """The number of the mailbox. It is the same on all hosts, so that one mesh has the service of each."""
        return int.from_bytes(blake2b(f"{self.job} {self.name}".encode(), digest_size=8).digest(), "little") | 1


class Running:
    """A service from its first use until the end of its agent, or of its job."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.procs: ProcMesh | None = None
        # The names of its meshes in failures.
        self.names: tuple[str, ...] = ()
        # The start in progress, or the last one; its result is the proc.
        self.start: asyncio.Future[int] = _unset()
        self.renewed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.since = 0.0
        self.ends = 0
        self.pause = FIRST_PAUSE

    def renew(self) -> None:
        """Begins a new start, for which requests wait from now on."""
        self.start = _unset()
        renewed, self.renewed = self.renewed, asyncio.Event()
        renewed.set()


def _unset() -> asyncio.Future[int]:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    # The callback reads the failure of a start that no request waits for, which asyncio would log otherwise.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


class HostServices(Actor):
    """All services of this host."""

    def __init__(self) -> None:
        here = local_host_set(current_process())
        # The handle is an object of its own: the user's `stop` and `shutdown` of this host do not end its services.
        self.host = HostMesh(HostSet(here.agents, here.shape, True))
        self.running: dict[tuple[str, int], Running] = {}
        # The id of a job for each id that this host has in a job.
        self.jobs: dict[int, int] = {}

    @concurrent_endpoint
    async def start(self, wanted: Wanted, asker: int) -> tuple[int, int, int]:
        """Proc, mailbox and job of the service, which runs and serves the requester's job. Starts it if it does not run."""
        bound = asyncio.timeout(wanted.timeout)
        try:
            async with bound:
                return await self._started(wanted, asker)
        except TimeoutError:
            if wanted.timeout is None or not bound.expired():
                raise
            raise TimeoutError(self._late(wanted, wanted.timeout)) from None

    def _late(self, wanted: Wanted, seconds: float) -> str:
        """The reason for a service that is not ready after `seconds`."""
        running = self.running.get(wanted.key)
        if running is None or not running.start.done() or running.start.exception() is not None:
            return f"it has not started within {seconds:g} s"
        (proc,) = running.procs.__core__.procs() if running.procs is not None else (0,)
        pid = dict(current_process().native.alive_procs()).get(proc)
        return f"it runs{f' as process {pid}' if pid else ''}, and does not answer within {seconds:g} s"

    async def _started(self, wanted: Wanted, asker: int) -> tuple[int, int, int]:
        process = current_process()
        here = process.native.job_of(asker)
        if wanted.job and here is not None:
            self.jobs[here] = wanted.job
        running = self.running.get(wanted.key)
        if running is None:
            running = self.running[wanted.key] = Running(wanted)
            running.task = asyncio.create_task(self._first(running))
        elif running.wanted.arguments != wanted.arguments and not wanted.is_any:
            runs, asked = (dict(marshal.loads(one.arguments)) for one in (running.wanted, wanted))
            raise ValueError(f"it runs with the arguments {runs}, and cannot have {asked}")
        while True:
            started, renewed = running.start, running.renewed
            proc = await asyncio.shield(started)
            job = process.native.serve(proc, asker)
            if job is not None and here is not None:
                try:
                    async with asyncio.timeout(wanted.start_seconds):
                        await ask(proc, SERVE, marshal.dumps((job, here)))
                    return proc, running.wanted.mailbox, process.peers.job
                except TimeoutError:
                    raise TimeoutError(self._late(wanted, wanted.start_seconds)) from None
                except RequestError as e:
                    if e.code != "request_proc_ended":
                        raise
            elif process.native.job_of(asker) is None:
                raise RuntimeError("the job that asks for it has ended")
            # The process has ended, and its owner is about to be notified: this request waits for the next start.
            await renewed.wait()

    @concurrent_endpoint
    async def end_job(self, here: int) -> None:
        """Ends the services of one job with that job."""
        job = self.jobs.pop(here, 0)
        for key in [key for key in self.running if job and key[1] == job]:
            running = self.running.pop(key)
            if running.task is not None:
                running.task.cancel()
            _note(running, "")
            if running.start.done():
                running.renew()
            await self._stop(running, "its job has ended")
            # This fails the requests that arrived meanwhile.
            running.start.set_exception(RuntimeError("the job that asks for it has ended"))

    async def __supervise__(self, failure: MeshFailure) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        for running in self.running.values():
            # During a start, the start itself sees the failure.
            if failure.mesh_name in running.names and running.start.done() and not running.start.exception():
                running.renew()
                running.task = asyncio.create_task(self._again(running, failure))
        return True

    async def _first(self, running: Running) -> None:
        try:
            proc = await self._launch(running)
        except Exception as e:
            # The service starts again with its next use only: a request's arguments may be the cause of this failure.
            if self.running.get(running.wanted.key) is running:
                del self.running[running.wanted.key]
            running.start.set_exception(e)
        else:
            running.start.set_result(proc)

    async def _again(self, running: Running, failure: MeshFailure) -> None:
        if monotonic() - running.since > SETTLED:
            running.pause = FIRST_PAUSE
        why = _cause(failure)
        while True:
            running.ends += 1
            _note(running, f"ended: {why}; it starts again in {running.pause:g} s (end {running.ends})")
            await self._stop(running, "it has failed")
            await asyncio.sleep(running.pause)
            running.pause = min(2 * running.pause, LONGEST_PAUSE)
            try:
                proc = await self._launch(running)
            except Exception as e:
                why = _why(e).partition("\n")[0]
                # Waiting requests get the failure; the next request waits for the next start.
                running.start.set_exception(e)
                running.renew()
            else:
                _note(running, f"started again after {running.ends} ends, the last: {why}")
                running.start.set_result(proc)
                return

    async def _launch(self, running: Running) -> int:
        """Performs one start. Returns the proc once its actor has been built."""
        wanted = running.wanted
        try:
            async with asyncio.timeout(wanted.start_seconds):
                procs = running.procs = self.host.spawn_procs(name=f"service {wanted.name}", preload=[])
                running.names = (procs.__core__.info.unique_name,)
                await procs.initialized
                kind = (wanted.class_name, wanted.payload, None)
                actor = procs.__core__.spawn_actors(wanted.mailbox, wanted.name, kind, (), dict(marshal.loads(wanted.arguments)))
                running.names = (procs.__core__.info.unique_name, actor.__core__.info.unique_name)
                # Every actor has this method. Its answer arrives when `__init__` has returned.
                target = CallTarget(actor.__core__, "__sizeof__", None)
                await target.call((), {}, target.one_result)
        except TimeoutError:
            await self._stop(running, "it did not start in time")
            raise TimeoutError(f"it did not start within {wanted.start_seconds:g} s") from None
        except BaseException:
            await self._stop(running, "it did not start")
            raise
        running.since = monotonic()
        return procs.__core__.procs()[0]

    async def _stop(self, running: Running, reason: str) -> None:
        procs, running.procs, running.names = running.procs, None, ()
        if procs is None:
            return
        process = current_process()
        if running.start.done():
            stopped = procs.stop(reason)
        else:
            # The actor may hang: this code does not wait for it.
            for proc in procs.__core__.procs():
                process.native.kill_proc(proc)
            stopped = procs.stop(reason)
        try:
            await stopped
        except Exception as e:  # an error of a clean-up: the service has ended all the same
            del e


def _note(running: Running, text: str) -> None:
    name, job = running.wanted.key
    current_process().native.note(name if not job else f"{name} of job {job:x}", text)


_lock = allocate_lock()
_services: Any = None


def _keeper() -> Any:
    """The actor of the services, spawned with the first use, on the extension thread of the agent."""
    global _services
    with _lock:
        if _services is None:
            process = current_process()
            found = own_proc_set(process).spawn("services", HostServices, (), {})
            # Requests for a service get its failure; the agent continues.
            process.meshes.supervision.disown(found.__core__.info.uid)
            _services = found
        return _services


def handle(request: Request) -> None:
    """Handles the request of a process of a job for a service of this host."""
    process = current_process()
    if not process.is_client:
        raise PermissionError("services are started by the agent of a host, which this process is not")
    name, class_name, payload, shared, start_seconds, arguments, is_any, timeout = marshal.loads(request.body)
    here = process.native.job_of(request.proc)
    job = None if here is None else process.native.client_of(here)
    if job is None:
        raise LookupError("the job that asks for it is over")
    wanted = Wanted(name, 0 if shared else job, class_name, payload, start_seconds, arguments, is_any, timeout)
    keeper = _keeper()
    started: Future[tuple[int, int, int]] = keeper.start.call_one(wanted, int(request.proc))
    request.defer()
    when_done(started, lambda done: _answer(request, done, keeper))


def _answer(request: Request, started: Future[tuple[int, int, int]], keeper: Any) -> None:
    try:
        request.answer(marshal.dumps(started.get()))
    except SupervisionError as e:
        # The actor itself has failed, most likely for want of descriptors, and its services with it: the next use spawns another one.
        _forget(keeper)
        why = str(e) if e.failure is None else _cause(e.failure)
        _fail(request, f"the agent cannot start services: {why}")
    except Exception as e:  # the exception of the start
        _fail(request, _why(getattr(e, "exception", e)))


def _fail(request: Request, why: str) -> None:
    request.fail(b"\0" + marshal.dumps((current_process().host, why.encode(errors="backslashreplace").decode())))


def _forget(keeper: Any) -> None:
    global _services
    with _lock:
        if _services is keeper:
            _services = None


def _why(error: BaseException) -> str:
    """The reason why a service does not start."""
    if isinstance(error, SupervisionError) and error.failure is not None:
        return f"{_cause(error.failure)}\n{error.failure.report()}"
    return str(error) if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"


def _cause(failure: MeshFailure) -> str:
    return cause(failure.reason, host=failure.host)


def job_over(here: int) -> None:
    """Handles the end of a job of another host's client on this host."""
    keeper = _services
    if keeper is not None:
        # The actor has stopped if the agent ends too.
        with suppress(SupervisionError):
            keeper.end_job.broadcast(here)
