"""The attempts of a run: an actor beside its client that repeats them as the policy has it, and sends the result."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from monarch.actor import Actor, MeshFailure, MonarchError, concurrent_endpoint, context
from monarch.extension import promise
from monarch.extension.command import Console
from monarch.spmd import record
from monarch.spmd.attempt import Plan, RunningAttempt, stop_procs
from monarch.spmd.devices import Counter, Devices
from monarch.spmd.errors import LaunchArgumentError, SPMDError, SPMDFailure
from monarch.spmd.host_pool import HostPool
from monarch.spmd.launch import host_count
from monarch.spmd.policy import Decision, FailureKind, Restarts
from monarch.spmd.snapshot_hosts import Found, SnapshotHosts
from monarch.spmd.torchrun import LaunchSpec

if TYPE_CHECKING:
    from monarch.actor import Future, HostMesh, ProcMesh
    from monarch.extension import Promise
    from monarch.extension.mesh import Healer
    from monarch.spmd.snapshot_choice import Held, Key

Answer = TypeVar("Answer")

# The most attempts that lose the port to another program between its choice and its use; these are no failures of the program.
_PORT_ATTEMPTS = 3

# Seconds for a job to heal if the run needs its hosts, and if it could continue without; and for a spare host to have a proc.
_HEAL_S, _GROW_S, _SPARE_S = 600.0, 15.0, 15.0
# Healers for the actors of runs, by `Plan.key`: functions cannot be sent in messages.
healers: dict[tuple[str, str], Healer] = {}
# The actors of the runs of this process, by `run_id`: several where their folders of logs differ.
active: dict[str, list[Any]] = {}
# Why runs of this process have ended, by `run_id`: the last ones, for programs of others that look for their procs.
ends: dict[str, str] = {}
_ENDS = 1000


class Outcome:
    """How a run ends, for its handle: the result or the failure, and the failure as text, which is empty until there is one."""

    __slots__ = ("_promise", "failure")

    def __init__(self, run_id: str) -> None:
        self._promise: Promise[RunResult] = promise(f"the result of the run {run_id}")
        self.failure = ""

    @property
    def result(self) -> Future[RunResult]:
        return self._promise.future

    @property
    def is_there(self) -> bool:
        return self._promise.is_set()

    def succeed(self, result: RunResult) -> None:
        self._promise.set_result(result)

    def fail(self, error: Exception) -> None:
        """The first failure counts."""
        if not self._promise.is_set():
            self._promise.set_exception(error)


# Outcomes of runs whose actor is about to begin, by `Plan.key`, like healers.
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
        self._pool = HostPool(hosts, host_count(hosts, plan.spec))
        self._plan = plan
        self._healer = healers.pop(plan.key, None)
        self._outcome: Outcome | None = outcomes.pop(plan.key, None) or Outcome(plan.run_id)
        spec = plan.spec
        least = spec.min_hosts if spec.has_hosts and spec.min_hosts < spec.max_hosts else None
        self._restarts = Restarts(plan.policy, least)
        self._console = Console(lambda: None)
        self._current: RunningAttempt | None = None
        self._per_host = 1
        self._stop = asyncio.Event()
        # The first attempt has begun, or there will be none.
        self._has_begun = asyncio.Event()
        self._snapshots = SnapshotHosts(self._pool)
        self._control: object = None

    def __supervise__(self, failure: MeshFailure) -> bool:
        # Reads fail as well, and the result has the failure.
        return True

    @concurrent_endpoint
    async def run(self, control: object) -> None:
        """Until the run has its outcome. `control` is the handle of this actor, which ranks get."""
        self._control = control
        active.setdefault(self._plan.run_id, []).append(control)
        # A failure refers to the frames that have raised it, including those of its readers: this actor keeps none.
        outcome, self._outcome = self._outcome, None
        assert outcome is not None
        try:
            try:
                found = await self._run()
            finally:
                # Procs of the run end before its result is there.
                await self._snapshots.close()
            outcome.succeed(found)
            self._has_ended("it has succeeded")
        except BaseException as error:
            outcome.failure = _summary(error)
            self._has_ended(outcome.failure or "it was stopped")
            outcome.fail(error if isinstance(error, Exception) else SPMDError("the client ended before the run did"))
            if not isinstance(error, Exception):
                raise
        finally:
            self._has_begun.set()
            active[self._plan.run_id].remove(control)
            if not active[self._plan.run_id]:
                del active[self._plan.run_id]
            await self._console.close()
        context().actor_instance.stop()

    def _has_ended(self, why: str) -> None:
        ends.pop(self._plan.run_id, None)
        ends[self._plan.run_id] = why
        if len(ends) > _ENDS:
            del ends[next(iter(ends))]

    @concurrent_endpoint
    async def stop_ranks(self) -> None:
        """Ends the run: SIGTERM, and SIGKILL `Plan.grace` later. Output goes on until the ranks have ended."""
        self._stop.set()

    @concurrent_endpoint
    async def attempt(self) -> int:
        return self._restarts.count

    @concurrent_endpoint
    async def procs(self, run_id: str | None = None) -> list[ProcMesh]:
        """Those of the current attempt: one mesh, several where lost hosts lie between those that are left, none between attempts.

        `run_id`: those of another run of this client; none where there is no such run. `SPMDError` where there are several.
        """
        if run_id not in (None, self._plan.run_id):
            others = active.get(run_id, [])
            if len(others) > 1:
                hint = "give each run a run_id of its own"
                raise SPMDError(f"{len(others)} active runs have the run_id '{run_id}': none of them is meant", hint=hint)
            return await others[0].procs.call_one() if others else []
        await self._has_begun.wait()
        return [] if self._current is None else self._current.meshes

    @concurrent_endpoint
    async def end_of(self, run_id: str) -> str | None:
        """Why another run of this client has ended; None for a run that is active, or that there was not."""
        return None if run_id in active else ends.get(run_id)

    @concurrent_endpoint
    async def log(self, rank: int, tail: int) -> tuple[str | None, int]:
        """The last lines of a rank, None where it is not there; and the number of ranks."""
        ranks = [] if self._current is None else self._current.ranks
        lines = next((one.lines for one in ranks if one.number == rank), None)
        return None if lines is None else "".join(list(lines)[-tail:]), len(ranks)

    # ---- for ranks

    @concurrent_endpoint
    async def keepers(self, group: int, copies: int, renewed: bool = False) -> list[Any]:
        """The keeper of the host with that number among those of the attempt, and those of the hosts that get its copies."""
        return await self._snapshots.keepers(group, copies, renewed=renewed)

    @concurrent_endpoint
    async def saved(self, held: Held, digest: bytes, keep: int) -> None:
        """A rank has saved its part of a snapshot; `digest` is that of the bytes, if other hosts have copies."""
        dropped = self._snapshots.saved(held, digest, keep)
        if dropped is not None:
            await self._show(f"{dropped}; an attempt begins with a step that every rank has saved")

    @concurrent_endpoint
    async def altered(self, rank: int, key: Key, host: int) -> None:
        """The copy on a host has other bytes than the rank has saved."""
        await self._show(f"host {host} has altered its copy of step {key.step} of rank {rank}, which was not restored")

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
            self._has_begun.set()
            failure = await self._current.run()
            if self._stop.is_set():
                raise _stopped()
            if failure is None:
                returns = {rank.number: 0 for rank in self._current.ranks}
                return RunResult(self._restarts.count + 1, time.monotonic() - begin, len(returns), returns)
            if self._current.has_lost_port and lost_ports < _PORT_ATTEMPTS:
                lost_ports += 1
                await self._show("another program has taken the port of rank 0; started again with another port")
                continue
            lost = self._current.lost_hosts()
            self._snapshots.lose(lost)
            await self._recover(failure, lost)

    async def _recover(self, failure: SPMDFailure, lost: set[int]) -> None:
        """What the policy has before the next attempt, after one that has lost these hosts; raises the failure where there is none."""
        kind: FailureKind = failure.failures[0].kind
        healer = self._healer
        missing = self._pool.missing
        replaced = ""
        # A lost host is the reason of all other failures, whichever rank failed first.
        if lost:
            kind = "host_lost"
            self._pool.lose(lost)
            if self._plan.policy.action(kind) in ("heal", "shrink"):
                replaced = await self._use_spares()
        is_full = not self._pool.missing
        decision = self._restarts.after(kind, healthy=len(self._pool.left), can_heal=healer is not None, missing=missing, is_full=is_full)
        if decision.action == "stop":
            raise self._final(failure, decision.why)
        await self._show(f"{failure.failures[0].headline()}; {_next(decision, self._pool)}{replaced}")
        try:
            await asyncio.wait_for(self._stop.wait(), decision.delay)
        except TimeoutError:
            pass
        else:
            raise _stopped()
        if healer is not None and (decision.grows or decision.action == "heal"):
            await self._bring_back(healer, None if decision.grows else failure)

    async def _use_spares(self) -> str:
        """Puts spare hosts in the place of lost ones, as many as there are; a text for that. A host that starts no proc is lost as well."""
        used: list[int] = []
        while self._pool.missing and (spares := self._pool.spares):
            [part] = self._pool.parts(spares[:1])
            if (await self._done(_takes_procs(part.hosts))).result():
                self._pool.use(spares[0])
                used.append(spares[0])
            else:
                self._pool.lose(spares[:1])
        if not used:
            return ""
        numbers = ", ".join(map(str, used))
        return f"; spare host {numbers} is used" if len(used) == 1 else f"; spare hosts {numbers} are used"

    async def _bring_back(self, healer: Healer, failure: SPMDFailure | None) -> None:
        """Asks the job for the hosts that are lost. `failure` is raised where the run cannot go on without; None: it can."""
        problem = await self._ask(healer, _GROW_S if failure is None else _HEAL_S)
        if problem is None:
            await self._show(f"all {len(self._pool.left)} hosts are there")
            return
        why = f"the job could not replace lost hosts{problem and ': '}{problem}"
        left = len(self._pool.left)
        if failure is not None and not self._restarts.has_least:
            raise self._final(failure, why)
        if failure is not None and not self._restarts.is_enough(left):
            raise self._final(failure, f"{why}{';' if problem else ':'} {self._restarts.too_few(left)}")
        await self._show(f"{why}; {self._pool.lost_text()}, goes on with {left} {'host' if left == 1 else 'hosts'}")

    async def _ask(self, healer: Healer, seconds: float) -> str | None:
        """None where all hosts are there again, else the reason, which is empty where the job has none."""

        answer = await self._done(asyncio.to_thread(healer, seconds))
        try:
            healed = answer.result()
            self._pool.replace(healed.hosts, healed.missing)
        except Exception as error:  # any kind: it must not hide the failure of the ranks
            first_line = str(error).split("\n", 1)[0]
            return f"{type(error).__name__}: {first_line}"
        return healed.why if self._pool.missing else None

    async def _done(self, asked: Coroutine[Any, Any, Answer]) -> asyncio.Future[Answer]:
        """What is asked for, done; raises where the run is stopped before."""
        asking, stopped = asyncio.ensure_future(asked), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((asking, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            is_answered = not asking.cancel()
        if not is_answered:
            raise _stopped()
        return asking

    async def _show(self, text: str) -> None:
        run = f"{self._plan.run_id}: " if self._plan.shows_run_id else ""
        await self._console.write(2, f"monarch: {run}{text}\n".encode())

    async def _count(self, spec: LaunchSpec) -> int:
        [part] = self._pool.parts(self._pool.left)
        procs = part.hosts.spawn_procs(name="count")
        try:
            found: list[Devices] = [value for _, value in await procs.spawn("count", Counter).count.call()]
        finally:
            await stop_procs(procs, "counted")
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


async def _takes_procs(hosts: HostMesh) -> bool:
    """Whether the hosts start a proc, in `_SPARE_S`."""
    procs: Any = hosts.spawn_procs(name="spare")
    try:
        await asyncio.wait_for(procs.initialized, _SPARE_S)
    except (MonarchError, TimeoutError):
        return False
    finally:
        await stop_procs(procs, "looked at")
    return True


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
