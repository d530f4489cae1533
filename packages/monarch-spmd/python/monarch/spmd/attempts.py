"""The attempts of a run: an actor beside its client that repeats them as the policy has it, and sends the result."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.actor import Actor, MeshFailure, MonarchError, concurrent_endpoint, context
from monarch.extension.command import Console
from monarch.spmd import record
from monarch.spmd.attempt import Plan, RunningAttempt
from monarch.spmd.devices import Counter, Devices
from monarch.spmd.errors import LaunchArgumentError, SPMDError, SPMDFailure
from monarch.spmd.host_pool import HostPool
from monarch.spmd.launch import chosen_hosts
from monarch.spmd.policy import Decision, FailureKind, Restarts
from monarch.spmd.snapshot_hosts import Found, SnapshotHosts
from monarch.spmd.torchrun import LaunchSpec

if TYPE_CHECKING:
    from monarch.actor import HostMesh, Port, ProcMesh
    from monarch.spmd.snapshot_choice import Held

# Attempts that lose the port to another program between its choice and its use; they are no failures of the program.
_PORT_ATTEMPTS = 3

# Asks the job of the hosts to bring lost ones back, within so many seconds; the hosts as they are then, None where some are missing.
Healer = Callable[[float], Awaitable["HostMesh | None"]]
# How long a job may take where the run needs its hosts, and where it could go on without.
_HEAL_S, _GROW_S = 600.0, 15.0
# Healers on their way to the actor of their run, by `Plan.key`: functions that are no messages.
healers: dict[tuple[str, str], Healer] = {}


class Outcome:
    """The failure of a run as text, for the handle of the run; empty until there is one."""

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure = ""


# Of runs whose actor is about to begin, by `Plan.key`, as healers.
outcomes: dict[tuple[str, str], Outcome] = {}


class RunResult(NamedTuple):
    """A run that has succeeded. `returns` has the exit code of each rank, which is 0; `seconds` counts all attempts."""

    attempts: int
    seconds: float
    world_size: int
    returns: dict[int, int]


class Attempts(Actor):
    """Owns the procs of the ranks, so that their failures end up in the result and nowhere else."""

    _is_system_actor = True

    def __init__(self, hosts: HostMesh, plan: Plan) -> None:
        self._pool = HostPool(hosts)
        self._plan = plan
        self._healer = healers.pop(plan.key, None)
        self._outcome = outcomes.pop(plan.key, None) or Outcome()
        spec = plan.spec
        least = spec.min_hosts if spec.has_hosts and spec.min_hosts < spec.max_hosts else None
        self._restarts = Restarts(plan.policy, least)
        self._console = Console(lambda: None)
        self._current: RunningAttempt | None = None
        self._per_host = 1
        self._stop = asyncio.Event()
        self._snapshots = SnapshotHosts(self._pool)
        self._control: object = None

    def __supervise__(self, failure: MeshFailure) -> bool:
        # Reads fail as well, and the result has the failure.
        return True

    @concurrent_endpoint
    async def run(self, result: Port[RunResult], control: object) -> None:
        """Sends the result, or the failure, into `result`. `control` is the handle of this actor, which ranks get."""
        self._control = control
        try:
            try:
                found = await self._run()
            finally:
                # Procs of the run are gone before its result is there.
                await self._snapshots.close()
            _answer(result, found)
        except BaseException as error:
            self._outcome.failure = _summary(error)
            _answer(result, error if isinstance(error, Exception) else SPMDError("the client ended before the run did"))
            if not isinstance(error, Exception):
                raise
        finally:
            await self._console.close()
        context().actor_instance.stop()

    @concurrent_endpoint
    async def stop_ranks(self) -> None:
        """Ends the run: SIGTERM, and SIGKILL `Plan.grace` later. Output goes on until the ranks have ended."""
        self._stop.set()

    @concurrent_endpoint
    async def attempt(self) -> int:
        return self._restarts.count

    @concurrent_endpoint
    async def procs(self) -> list[ProcMesh]:
        """Those of the current attempt: one mesh, several where lost hosts lie between those that are left, none between attempts."""
        return [] if self._current is None else self._current.meshes

    @concurrent_endpoint
    async def log(self, rank: int, tail: int) -> tuple[str | None, int]:
        """The last lines of a rank, None where it is not there; and the number of ranks."""
        ranks = [] if self._current is None else self._current.ranks
        lines = next((one.lines for one in ranks if one.number == rank), None)
        return None if lines is None else "".join(list(lines)[-tail:]), len(ranks)

    # ---- for ranks

    @concurrent_endpoint
    async def keepers(self, group: int, copies: int) -> list[Any]:
        """The keeper of the host with that number among those of the attempt, and those of the hosts that get its copies."""
        return await self._snapshots.keepers(group, copies)

    @concurrent_endpoint
    async def saved(self, held: Held, keep: int) -> None:
        """A rank has saved its part of a snapshot."""
        self._snapshots.saved(held, keep)

    @concurrent_endpoint
    async def snapshot(self, rank: int, group: int) -> Found | None:
        """What a rank restores."""
        return self._snapshots.found(rank, group)

    async def _run(self) -> RunResult:
        begin = time.monotonic()
        spec = self._plan.spec
        self._per_host = spec.per_host if isinstance(spec.per_host, int) else await self._count(spec)
        lost_ports = 0
        while True:
            await self._snapshots.begin(self._restarts.count, len(self._pool.left) * self._per_host)
            self._current = RunningAttempt(
                self._plan, self._pool, self._restarts.count, self._per_host, self._console, self._stop, self._control
            )
            failure = await self._current.run()
            if self._stop.is_set():
                raise _stopped()
            if failure is None:
                returns = {rank.number: 0 for rank in self._current.ranks}
                return RunResult(self._restarts.count + 1, time.monotonic() - begin, len(returns), returns)
            if self._current.has_lost_port and lost_ports < _PORT_ATTEMPTS:
                lost_ports += 1
                await self._say("another program has taken the port of rank 0; started again with another port")
                continue
            lost = self._current.lost_hosts()
            self._snapshots.lose(lost)
            await self._recover(failure, lost)

    async def _recover(self, failure: SPMDFailure, lost: set[int]) -> None:
        """What the policy has before the next attempt, after one that has lost these hosts; raises the failure where there is none."""
        kind: FailureKind = failure.failures[0].kind
        healer = self._healer
        missing = self._pool.missing
        # A host that is lost is the reason of all else, whichever rank was first.
        if lost:
            kind = "host_lost"
            self._pool.lose(lost)
        decision = self._restarts.after(kind, healthy=len(self._pool.left), can_heal=healer is not None, missing=missing)
        if decision.action == "stop":
            raise self._final(failure, decision.why)
        await self._say(f"{failure.failures[0].headline()}; {_next(decision, self._pool)}")
        try:
            await asyncio.wait_for(self._stop.wait(), decision.delay)
        except TimeoutError:
            pass
        else:
            raise _stopped()
        if healer is not None and (decision.grows or decision.action == "heal"):
            await self._bring_back(healer, None if decision.grows else failure)

    async def _bring_back(self, healer: Healer, failure: SPMDFailure | None) -> None:
        """Asks the job for the hosts that are lost. `failure` is raised where the run cannot go on without; None: it can."""
        problem = await self._ask(healer, _GROW_S if failure is None else _HEAL_S)
        if problem is None:
            await self._say(f"all {len(self._pool.left)} hosts are there")
            return
        why = f"the job could not replace lost hosts{problem and ': '}{problem}"
        left = len(self._pool.left)
        if failure is not None and not self._restarts.has_least:
            raise self._final(failure, why)
        if failure is not None and not self._restarts.is_enough(left):
            raise self._final(failure, f"{why}{';' if problem else ':'} {self._restarts.too_few(left)}")
        await self._say(f"{why}; {self._pool.lost_text()}, goes on with {left} {'host' if left == 1 else 'hosts'}")

    async def _ask(self, healer: Healer, seconds: float) -> str | None:
        """None where all hosts are there again, else the reason, which is empty for hosts that are still missing."""

        async def asked() -> HostMesh | None:
            return await healer(seconds)

        asking, stopped = asyncio.ensure_future(asked()), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((asking, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            is_answered = not asking.cancel()
        if not is_answered:
            raise _stopped()
        try:
            hosts = asking.result()
            if hosts is None:
                return ""
            self._pool.replace(chosen_hosts(hosts, self._plan.spec))
        except Exception as error:  # of any kind: it must not hide the failure of the ranks
            first_line = str(error).split("\n", 1)[0]
            return f"{type(error).__name__}: {first_line}"
        return None

    async def _say(self, text: str) -> None:
        run = f"{self._plan.run_id}: " if self._plan.shows_run_id else ""
        await self._console.write(2, f"monarch: {run}{text}\n".encode())

    async def _count(self, spec: LaunchSpec) -> int:
        procs = self._pool.mesh.spawn_procs(name="count")
        try:
            found: list[Devices] = [value for _, value in await procs.spawn("count", Counter).count.call()]
        finally:
            try:
                await procs.stop("counted")
            except MonarchError:  # its procs are gone already
                pass
        counts = [spec.ranks_of(one.gpus, one.cpus, one.host) for one in found]
        if len(set(counts)) > 1:
            each = ", ".join(f"{one.host} {count}" for one, count in zip(found, counts, strict=True))
            raise LaunchArgumentError(f"--nproc-per-node={spec.per_host}", f"the hosts have different numbers of ranks: {each}")
        return counts[0]

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
                    hosts=len(self._pool.left) or 1,
                    per_host=self._per_host,
                    run_id=plan.run_id,
                    attempt=failure.attempt,
                    failures=failure.failures,
                    stacks=failure.stacks,
                )
            )
        except OSError as error:
            note = f"no record was written: {error.filename or plan.record_dir}: {error.strerror}"
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


def new_run_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)


def _stopped() -> SPMDError:
    return SPMDError("the run was stopped", code="stopped")


def _summary(error: BaseException) -> str:
    """What a run whose result is never read leaves in the log; empty for one that was stopped."""
    if not isinstance(error, Exception) or (isinstance(error, MonarchError) and error.code == "stopped"):
        return ""
    if isinstance(error, SPMDFailure):
        return error.failures[0].headline() + (f"; record: {error.record}" if error.record else "")
    return str(error) if isinstance(error, MonarchError) else f"{type(error).__name__}: {error}"


def _next(decision: Decision, pool: HostPool) -> str:
    after = f" in {decision.delay:g} s" if decision.delay else ""
    if decision.action == "shrink":
        return f"goes on with {len(pool.left)} hosts{after}"
    return f"{'healed and ' if decision.action == 'heal' else ''}restarted{after}"


def _answer(result: Any, outcome: RunResult | Exception) -> None:
    try:
        if isinstance(outcome, RunResult):
            result.send(outcome)
        else:
            result.exception(outcome)
    except (MonarchError, RuntimeError):  # no call waits any more
        return
