"""The attempts of a run: an actor beside its client that starts ranks, shows what they print, and decides what follows a failure."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.actor import Actor, ExitReason, MeshFailure, MonarchError, Point, SupervisionError, concurrent_endpoint, context
from monarch.extension.command import Console, prefixed
from monarch.spmd import record
from monarch.spmd.devices import Counter, Devices
from monarch.spmd.environment import Attempt
from monarch.spmd.errors import LaunchArgumentError, RankFailure, SPMDError, SPMDFailure
from monarch.spmd.policy import FailureKind, RestartPolicy, Restarts
from monarch.spmd.rank import GRACE_S, Ended, Order, Rank, Started, shown
from monarch.spmd.stacks import merged
from monarch.spmd.torchrun import LaunchSpec

if TYPE_CHECKING:
    from monarch.actor import HostMesh, Port, ProcMesh

# Lines of each rank that `log` and failures have.
KEPT_LINES = 1000
_IN_FAILURE = 20
# After SIGKILL, seconds that a host may take to report the ends of its ranks; then its procs are stopped all the same.
_REPORT_S = 5.0
# Attempts that lose the port to another program between its choice and its use; they are no failures of the program.
_PORT_ATTEMPTS = 3
_PORT_TAKEN = ("EADDRINUSE", "Address already in use", "address already in use")


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked run. `command` is as it was given, `env` what it adds to the environment of the ranks."""

    command: tuple[str, ...]
    spec: LaunchSpec
    policy: RestartPolicy
    env: Mapping[str, str]
    workdir: str | None
    log_dir: str | None
    record_dir: str
    run_id: str


class RunResult(NamedTuple):
    """A run that has succeeded. `returns` has the exit code of each rank, which is 0; `seconds` counts all attempts."""

    attempts: int
    seconds: float
    world_size: int
    returns: dict[int, int]


class Stopped(SPMDError):
    """A run was ended by its client."""

    __module__ = "monarch.spmd"


@dataclass(slots=True)
class _Live:
    """A rank of the current attempt."""

    actor: Any
    number: int
    place: str
    local_rank: int
    lines: deque[str]
    started: Started | None = None
    # The host's clock less that of this process, seconds.
    offset: float = 0.0
    ended: Ended | None = None
    lost: SupervisionError | None = None

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.lost is not None


class Attempts(Actor):
    """Owns the procs of the ranks, so that their failures end up in the result and nowhere else."""

    _is_system_actor = True

    def __init__(self, hosts: HostMesh, plan: Plan) -> None:
        self._hosts = hosts
        self._plan = plan
        self._restarts = Restarts(plan.policy)
        self._console = Console(lambda: None)
        self._procs: ProcMesh | None = None
        self._ranks: list[_Live] = []
        self._logs: dict[int, deque[str]] = {}
        self._per_host = 1
        self._stop = asyncio.Event()
        self._progress = 0.0
        self._first_failure = asyncio.Event()

    def __supervise__(self, failure: MeshFailure) -> bool:
        # Reads fail as well, and the result says so.
        return True

    @concurrent_endpoint
    async def run(self, result: Port[RunResult]) -> None:
        """Sends the result, or the failure, into `result`."""
        try:
            _answer(result, await self._run())
        except BaseException as error:
            _answer(result, error if isinstance(error, Exception) else SPMDError("the client ended before the run did"))
            if not isinstance(error, Exception):
                raise
        finally:
            await self._console.close()
        context().actor_instance.stop()

    @concurrent_endpoint
    async def stop_ranks(self) -> None:
        """Ends the run: SIGTERM, and SIGKILL 5 s later. Output goes on until the ranks have ended."""
        self._stop.set()

    @concurrent_endpoint
    async def attempt(self) -> int:
        return self._restarts.count

    @concurrent_endpoint
    async def procs(self) -> ProcMesh | None:
        return self._procs

    @concurrent_endpoint
    async def log(self, rank: int, tail: int) -> tuple[str | None, int]:
        """The last lines of a rank, None where it is not there; and the number of ranks."""
        lines = self._logs.get(rank)
        return None if lines is None else "".join(list(lines)[-tail:]), len(self._logs)

    # ---- attempts

    async def _run(self) -> RunResult:
        begin = time.monotonic()
        spec = self._plan.spec
        self._per_host = spec.per_host if isinstance(spec.per_host, int) else await self._count(spec)
        lost_ports = 0
        while True:
            failure = await self._attempt()
            if self._stop.is_set():
                raise Stopped("the run was stopped", code="stopped")
            if failure is None:
                returns = {rank.number: 0 for rank in self._ranks}
                return RunResult(self._restarts.count + 1, time.monotonic() - begin, len(returns), returns)
            if _lost_port(failure, spec) and lost_ports < _PORT_ATTEMPTS:
                lost_ports += 1
                continue
            kind: Any = failure.failures[0].kind
            decision = self._restarts.after(kind)
            if decision.action == "stop":
                raise self._final(failure, decision.why)
            await self._console.write(2, f"monarch: {failure.failures[0].headline()}; {_restart(decision.delay)}\n".encode())
            try:
                await asyncio.wait_for(self._stop.wait(), decision.delay)
            except TimeoutError:
                continue
            raise Stopped("the run was stopped", code="stopped")

    async def _count(self, spec: LaunchSpec) -> int:
        procs = self._hosts.spawn_procs(name="count")
        try:
            found: list[Devices] = [value for _, value in await procs.spawn("count", Counter).count.call()]
        finally:
            await _settled(procs)
        counts = [spec.ranks_of(one.gpus, one.cpus, one.host) for one in found]
        if len(set(counts)) > 1:
            each = ", ".join(f"{one.host} {count}" for one, count in zip(found, counts, strict=True))
            raise LaunchArgumentError(f"--nproc-per-node={spec.per_host}", f"the hosts have different numbers of ranks: {each}")
        return counts[0]

    async def _attempt(self) -> SPMDFailure | None:
        """One attempt, from new procs to their end; None where all ranks have succeeded."""
        plan, number = self._plan, self._restarts.count
        log_dir = None if plan.log_dir is None else str(Path(plan.log_dir, plan.run_id, f"attempt_{number}"))
        attempt = Attempt(plan.run_id, number, plan.policy.max_restarts, plan.spec.role)
        order = Order(plan.spec, attempt, plan.env, plan.workdir, log_dir)
        label = "gpus" if "gpus" not in self._hosts.extent.labels else "ranks"
        self._procs = procs = self._hosts.spawn_procs(per_host={label: self._per_host}, name=f"run_{plan.run_id}")
        self._first_failure = asyncio.Event()
        try:
            ranks: Any = procs.spawn("rank", Rank, order)
            self._ranks = [self._live(ranks, Point(rank, procs.extent)) for rank in range(procs.extent.nelements)]
            self._logs = {rank.number: rank.lines for rank in self._ranks}
            address, port = await self._meeting_point()
            return await self._follow_all(ranks, address, port)
        except SupervisionError as error:
            failure = self._failure_of_lost(error)
            return SPMDFailure([failure], attempt=number, attempts=plan.policy.max_restarts + 1)
        finally:
            await _settled(procs)
            self._procs = None

    def _live(self, ranks: Any, point: Point) -> _Live:
        place = ", ".join(f"{label}={index}" for label, index in point.items())
        actor = ranks.slice(**point)
        return _Live(actor, point.rank, place, point.rank % self._per_host, deque(maxlen=KEPT_LINES))

    async def _meeting_point(self) -> tuple[str, int]:
        spec = self._plan.spec
        is_alone = self._hosts.extent.nelements == 1
        address, port = await self._ranks[0].actor.reserve.call_one(is_alone)
        return spec.master_addr or address, port if spec.master_port in (None, 0) else spec.master_port

    async def _follow_all(self, ranks: Any, address: str, port: int) -> SPMDFailure | None:
        asked = time.time()
        started: list[Started] = [value for _, value in await ranks.start.call(address, port)]
        offset_base = (asked + time.time()) / 2
        for rank, one in zip(self._ranks, started, strict=True):
            rank.started, rank.offset = one, one.at - offset_base
        refused = [rank for rank in self._ranks if rank.started is not None and rank.started.problem]
        if refused:
            raise _cannot_start(refused)
        self._progress = time.monotonic()
        following = [asyncio.create_task(self._follow(rank)) for rank in self._ranks]
        watching = asyncio.ensure_future(self._until_end(following))
        stacks = ""
        try:
            is_hang = await watching
            if is_hang:
                stacks = merged(dict(zip((rank.number for rank in self._ranks), await self._stacks(), strict=True)))
            hung = [rank.number for rank in self._ranks if not rank.is_over] if is_hang else []
            failed_before = [rank for rank in self._ranks if _failed(rank)]
            await self._end_all(following)
        finally:
            for task in following:
                task.cancel()
        for task in following:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return self._outcome(hung, stacks, failed_before)

    async def _until_end(self, following: list[asyncio.Task[None]]) -> bool:
        """Until all ranks have ended, one has failed, the client stops the run, or nothing has moved for too long: then true."""
        limit = self._plan.policy.hang_timeout
        waits = [asyncio.ensure_future(one.wait()) for one in (self._stop, self._first_failure)]
        everything = asyncio.ensure_future(asyncio.wait(following))
        try:
            while True:
                left = None if limit is None else max(0.0, self._progress + limit - time.monotonic())
                done, _ = await asyncio.wait((*waits, everything), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return False
                if limit is not None and time.monotonic() - self._progress >= limit:
                    return True
        finally:
            for task in (*waits, everything):
                task.cancel()

    async def _follow(self, rank: _Live) -> None:
        spec = self._plan.spec
        prefix = f"[{rank.number}] ".encode()
        visible = [stream for stream in (1, 2) if shown(spec, rank.local_rank, stream)]
        try:
            coming = rank.actor.read.call_one()
            while rank.ended is None:
                chunks, ended = await coming
                if ended is None:
                    # On its way while this is being written.
                    coming = rank.actor.read.call_one()
                if chunks:
                    self._progress = time.monotonic()
                for stream, data in chunks:
                    rank.lines.extend(data.decode(errors="replace").splitlines(keepends=True))
                    if stream in visible:
                        await self._console.write(stream, prefixed(data, prefix))
                rank.ended = ended
        except SupervisionError as error:
            rank.lost = error
        if _failed(rank):
            self._first_failure.set()

    async def _end_all(self, following: list[asyncio.Task[None]]) -> None:
        left = [rank for rank in self._ranks if not rank.is_over]
        if not left:
            return
        for rank in left:
            _quietly(rank.actor.end.broadcast, GRACE_S)
        await asyncio.wait(following, timeout=GRACE_S + _REPORT_S)

    async def _stacks(self) -> list[str]:
        async def of(rank: _Live) -> str:
            if rank.is_over:
                return ""
            try:
                return await asyncio.wait_for(rank.actor.stacks.call_one(), _REPORT_S)
            except (SupervisionError, TimeoutError):
                return ""

        return list(await asyncio.gather(*(of(rank) for rank in self._ranks)))

    # ---- failures

    def _outcome(self, hung: list[int], stacks: str, failed_before: list[_Live]) -> SPMDFailure | None:
        failures = [self._failure_of(rank) for rank in self._ranks if _failed(rank) or rank in failed_before]
        failures.sort(key=lambda one: one.at)
        consequences = sum(1 for rank in self._ranks if not _failed(rank) and (rank.ended is None or rank.ended.was_ended))
        if not failures and hung:
            failures = [self._hang(self._ranks[number]) for number in hung]
            consequences = 0
        if not failures:
            # A rank that reports nothing after its end has been asked for.
            silent = [rank for rank in self._ranks if not rank.is_over]
            return None if self._stop.is_set() or not silent else self._made([self._silent(rank) for rank in silent], 0, stacks)
        return self._made(failures, consequences, stacks)

    def _made(self, failures: list[RankFailure], consequences: int, stacks: str) -> SPMDFailure:
        plan = self._plan
        number = self._restarts.count
        logs = None if plan.log_dir is None else str(Path(plan.log_dir, plan.run_id, f"attempt_{number}", str(failures[0].rank)))
        return SPMDFailure(
            failures, attempt=number, attempts=plan.policy.max_restarts + 1, consequences=consequences, logs=logs, stacks=stacks
        )

    def _final(self, failure: SPMDFailure, why: str) -> SPMDFailure:
        """The failure that ends the run, with the path of its record."""
        plan = self._plan
        path: str | None = None
        try:
            path = str(
                record.write(
                    Path(plan.record_dir, plan.run_id),
                    command=list(plan.command),
                    env=plan.env,
                    workdir=plan.workdir,
                    hosts=self._hosts.extent.nelements,
                    per_host=self._per_host,
                    run_id=plan.run_id,
                    attempt=failure.attempt,
                    failures=failure.failures,
                    stacks=failure.stacks,
                )
            )
        except OSError as error:
            note = f"no record was written: {error.filename}: {error.strerror}"
            why = f"{why}; {note}" if why else note
        return SPMDFailure(
            failure.failures,
            attempt=failure.attempt,
            attempts=failure.attempts,
            consequences=failure.consequences,
            why=why,
            logs=failure.logs,
            record=path,
            stacks=failure.stacks,
        )

    def _failure_of(self, rank: _Live) -> RankFailure:
        if rank.lost is not None:
            return _of(self._failure_of_lost(rank.lost), rank)
        ended, started = rank.ended, rank.started
        assert ended is not None and started is not None
        kind, reason = _kind(ended)
        return RankFailure(
            rank.number,
            rank.place,
            started.host,
            started.pid,
            kind,
            reason,
            ended.code,
            ended.at - rank.offset,
            ended.message,
            ended.traceback,
            tuple(line.rstrip("\r\n") for line in list(rank.lines)[-_IN_FAILURE:]),
        )

    def _failure_of_lost(self, error: SupervisionError) -> RankFailure:
        """Of a rank whose proc or host is gone."""
        failure = error.failure
        reason = ExitReason("host_lost", detail=str(error)) if failure is None else failure.reason
        kinds: dict[str, FailureKind] = {"signal": "signal", "oom": "oom", "exit_code": "exit", "returned": "exit"}
        host = socket.gethostname() if failure is None else failure.host or ""
        pid = 0 if failure is None or failure.pid is None else failure.pid
        text = str(error).split("\n")[0]
        ranks = [] if failure is None else failure.crashed_ranks
        return RankFailure(ranks[0] if ranks else 0, "", host, pid, kinds.get(reason.kind, "host_lost"), reason, None, time.time(), text)

    def _hang(self, rank: _Live) -> RankFailure:
        seconds = self._plan.policy.hang_timeout
        text = f"printed nothing for {seconds:g} s"
        started = rank.started
        assert started is not None
        reason = ExitReason("stopped", detail=text)
        output = tuple(line.rstrip("\r\n") for line in list(rank.lines)[-_IN_FAILURE:])
        return RankFailure(rank.number, rank.place, started.host, started.pid, "hang", reason, None, time.time(), text, "", output)

    def _silent(self, rank: _Live) -> RankFailure:
        started = rank.started
        assert started is not None
        text = "did not report its end"
        reason = ExitReason("host_lost", detail=text)
        return RankFailure(rank.number, rank.place, started.host, started.pid, "host_lost", reason, None, time.time(), text)


def new_run_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)


def _of(failure: RankFailure, rank: _Live) -> RankFailure:
    host = rank.started.host if rank.started is not None else failure.host
    return failure._replace(rank=rank.number, place=rank.place, host=host)


def _failed(rank: _Live) -> bool:
    """Whether it has failed by itself: what comes after a signal of the run is a consequence."""
    return rank.lost is not None or (rank.ended is not None and rank.ended.code != 0 and not rank.ended.was_ended)


def _kind(ended: Ended) -> tuple[FailureKind, ExitReason]:
    if ended.was_out_of_memory:
        return "oom", ExitReason("oom", signal=-ended.code)
    if ended.code < 0:
        return "signal", ExitReason("signal", signal=-ended.code)
    kind: FailureKind = "exception" if ended.message else "exit"
    return kind, ExitReason("exit_code", code=ended.code, detail=ended.message or None)


def _cannot_start(refused: list[_Live]) -> SPMDError:
    problems: dict[str, list[str]] = {}
    for rank in refused:
        assert rank.started is not None
        problems.setdefault(rank.started.problem, []).append(rank.started.host)
    text = "; ".join(f"{problem}: {', '.join(dict.fromkeys(hosts))}" for problem, hosts in problems.items())
    return SPMDError(f"the program cannot be started on {len(refused)} {'rank' if len(refused) == 1 else 'ranks'}: {text}")


def _lost_port(failure: SPMDFailure, spec: LaunchSpec) -> bool:
    """Whether rank 0 has lost its port to another program. A port that the user chose stays."""
    first = next((one for one in failure.failures if one.rank == 0), None)
    if first is None or spec.master_port not in (None, 0):
        return False
    return any(word in text for word in _PORT_TAKEN for text in (first.message, first.traceback))


def _restart(delay: float) -> str:
    return f"restarted in {delay:g} s" if delay else "restarted"


async def _settled(procs: Any) -> None:
    try:
        await procs.stop("the attempt has ended")
    except MonarchError:  # its procs are gone already
        return


def _quietly(send: Any, *arguments: Any) -> None:
    try:
        send(*arguments)
    except MonarchError:  # the rank is lost
        return


def _answer(result: Any, outcome: RunResult | Exception) -> None:
    try:
        if isinstance(outcome, RunResult):
            result.send(outcome)
        else:
            result.exception(outcome)
    except (MonarchError, RuntimeError):  # no call waits any more
        return
