"""`run`: a launch of torchrun on a mesh of hosts, with fresh processes for each attempt."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monarch.actor import Future, HostMesh, MonarchError, returns_future, this_proc
from monarch.extension import when_done
from monarch.extension.mesh import healer_of
from monarch.spmd import modules
from monarch.spmd.attempt import Plan
from monarch.spmd.attempts import Attempts, Outcome, RunResult, healers, new_run_id, outcomes
from monarch.spmd.errors import SPMDError
from monarch.spmd.launch import host_count, launch_of
from monarch.spmd.policy import RestartPolicy

if TYPE_CHECKING:
    from typing import Self

    from monarch.actor import ProcMesh
    from monarch.spmd.torchrun import LaunchSpec

_log = logging.getLogger("monarch.spmd")
# The folder of records of failures, in the directory of the client.
RECORDS = ".monarch/runs"
_RUN_ID = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]{1,64}")
# Seconds that the end of the client waits for its ranks after their SIGKILL.
_EXIT_S = 3.0


def run(
    hosts: HostMesh,
    command: Sequence[str],
    *,
    policy: RestartPolicy | None = None,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    log_dir: str | None = None,
    run_id: str | None = None,
    preload: Sequence[str] | None = None,
) -> SPMDRun:
    """Runs a program on every rank, as torchrun would; begins now and returns at once.

    `python script.py` and any other program have one rank a host. Each attempt has new processes, which end before `result` is done. The
    output appears here, each line behind `[rank]`, or `[run_id rank]` if other runs are active. Spare hosts, those beyond `--nnodes`, take
    the place of lost ones; otherwise the job of the mesh replaces them.

    Args:
        hosts: the hosts of the ranks.
        command: a command of torchrun, or a program with its arguments.
        policy: the restarts; without it, those of `--max-restarts`.
        env: variables that are added to the environment of the ranks.
        workdir: the directory of the ranks on the hosts.
        log_dir: each rank also writes `stdout.log` and `stderr.log` into `<log_dir>/<run_id>/attempt_<k>/<rank>` on its host, and a failure
            `failure.json` into `<log_dir>/<run_id>` here; by default `.monarch/runs/<run_id>`.
        run_id: the name of the run; a new one by default.
        preload: modules that each host imports once for the programs of all its ranks, as `["torch"]`; by default those of
            the hosts (`with_preload`, the setting `preload`). It changes the time of a start, and no result.

    Returns:
        The run, with `result` and `stop()`; the end of its `with` statement stops it.

    Raises:
        TypeError, ValueError, LaunchArgumentError: an argument or an option is wrong; nothing has started.
        SPMDError: another run of this process has the same `run_id` and `log_dir`; from `result`: the program cannot be started.
        SPMDFailure: from `result`: a rank failed.

    ```python
    from pathlib import Path

    from monarch.actor import this_host
    from monarch.spmd import run

    Path("train.py").write_text("import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    result = run(this_host(), ["torchrun", "--nproc-per-node=2", "train.py", "--lr", "0.1"]).result.get()
    assert (result.world_size, result.attempts) == (2, 1)
    ```
    """
    return begin(
        hosts,
        command,
        launch_of(command, os.environ),
        policy=policy,
        env=env,
        workdir=workdir,
        log_dir=log_dir,
        run_id=run_id,
        preload=preload,
    )


def begin(
    hosts: HostMesh,
    command: Sequence[str],
    spec: LaunchSpec,
    *,
    policy: RestartPolicy | None = None,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    log_dir: str | None = None,
    run_id: str | None = None,
    preload: Sequence[str] | None = None,
) -> SPMDRun:
    """`run` of a launch that is parsed already; `command` is what its record has."""
    _check_types(hosts, policy, workdir, run_id)
    if not hosts.extent.nelements:
        raise SPMDError("the mesh has no ranks")
    if policy is None:
        policy = RestartPolicy(max_restarts=spec.max_restarts)
    if run_id is None:
        run_id = spec.run_id if spec.run_id is not None and _RUN_ID.fullmatch(spec.run_id) else new_run_id()
    elif not _RUN_ID.fullmatch(run_id):
        raise ValueError(f"run_id={run_id!r}: expected 1 to 64 letters, digits, dots, dashes and underscores")
    log_dir = None if log_dir is None else os.fspath(log_dir)
    if log_dir == "":
        raise ValueError("log_dir='': expected a directory of the hosts, or None for no files")
    log_dir = log_dir or spec.log_dir
    plan = Plan(
        command=tuple(command),
        spec=spec,
        policy=policy,
        env=_checked(env),
        workdir=workdir,
        log_dir=log_dir,
        record_dir=log_dir or RECORDS,
        run_id=run_id,
        modules=modules.checked(hosts.preload if preload is None else preload),
        key=(_absolute(log_dir or RECORDS), run_id),
    )
    host_count(hosts, spec)
    healer = healer_of(hosts)
    with _admission:
        active = [one.plan.key for one, _ in _live.values() if not one.is_over()]
        if plan.key in active:
            hint = "give another run_id or log_dir (without a run_id, each run has its own), or stop the run that is active"
            raise SPMDError(f"the run {run_id} is already active, with its files in {plan.record_dir}", hint=hint)
        if healer is not None:
            healers[plan.key] = healer
        return SPMDRun(hosts, replace(plan, shows_run_id=bool(active)))


class RunState:
    """The state of a run that has begun: its plan, its actor and its outcome."""

    def __init__(self, hosts: HostMesh, plan: Plan) -> None:
        self.plan = plan
        self._pid = os.getpid()
        self.outcome = outcomes[plan.key] = Outcome(plan.run_id)
        # The outcome, until the result was read.
        self.unread: Outcome | None = self.outcome
        self.attempts: Any = this_proc().spawn("attempts", Attempts, hosts, plan)
        self.ended: Future[None] = self.attempts.run.call_one(self.attempts)
        # An actor that cannot begin gives no outcome.
        when_done(self.ended, _failed_without(self.outcome, plan))

    def is_over(self) -> bool:
        # The result is there a moment before the end of its actor.
        return self.outcome.is_there or _is_done(self.ended)

    def stop(self) -> Future[None]:
        try:
            self.attempts.stop_ranks.broadcast()
        except MonarchError:  # the run has ended
            pass
        return self.ended

    def report(self) -> None:
        """Logs a failure that no code can have seen. The garbage collector calls it as well, so it uses no future and no lock."""
        outcome, self.unread = self.unread, None
        if outcome is not None and outcome.failure and self._pid == os.getpid():
            _log.error("the run %s has failed, and its result was not read: %s", self.plan.run_id, outcome.failure)


class SPMDRun:
    """A run that has begun. The end of a `with` block stops it if it has not ended.

    A run that fails, and whose `result` is never asked for, is reported to the logger `monarch.spmd` once: when this object is collected,
    or at the end of the program.
    """

    def __init__(self, hosts: HostMesh, plan: Plan) -> None:
        self._state = RunState(hosts, plan)
        _live[id(self)] = self._state, self
        _unread.add(self._state)
        _end_with_client()

    def __del__(self) -> None:
        state: RunState | None = vars(self).get("_state")
        if state is not None:  # the run has begun
            state.report()

    def __repr__(self) -> str:
        return f"SPMDRun({self.run_id!r}, {'ended' if self._state.is_over() else 'active'})"

    @property
    def result(self) -> Future[RunResult]:
        """The result. Its future raises `SPMDFailure` for a rank that fails, `SPMDError` for a program that cannot be started."""
        self._state.unread = None
        return self._state.outcome.result

    @property
    def run_id(self) -> str:
        """The name of the run in paths and in `TORCHELASTIC_RUN_ID`."""
        return self._state.plan.run_id

    @property
    def attempt(self) -> int:
        """The number of the current attempt, from 0; `SPMDError` once the run has ended."""
        return self._ask("attempt").get()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._state.is_over():
            _stopped(self._state)

    def stop(self) -> Future[None]:
        """Ends the ranks: SIGTERM, and SIGKILL 5 s or `--shutdown-timeout` later. The hosts stay.

        `result` raises `SPMDError` with code `stopped`.
        """
        return self._state.stop()

    def procs(self) -> ProcMesh:
        """The procs of the current attempt, for actors beside the ranks; `SPMDError` between two attempts. Waits for the first attempt."""
        found: list[ProcMesh] = self._ask("procs").get()
        if not found:
            raise SPMDError("the run has no procs between two attempts")
        if len(found) > 1:
            raise SPMDError(f"the procs of the run are {len(found)} meshes: its hosts do not lie side by side")
        return found[0]

    def log(self, rank: int, tail: int = 100) -> Future[str]:
        """The last lines that a rank of the current attempt has printed, at most 1,000; `SPMDError` for a rank that is not there."""
        for name, value, least in (("rank", rank, 0), ("tail", tail, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"{name}={value!r}: expected a number from {least} on")
        asked = self._ask("log", rank, tail)

        async def answer() -> str:
            text, ranks = await asked
            if text is None:
                raise SPMDError(f"rank {rank} is not in this run, which has {ranks} ranks")
            return text

        return returns_future(answer)()

    def _ask(self, name: str, *arguments: Any) -> Future[Any]:
        if self._state.is_over():
            raise SPMDError(f"the run {self.run_id} has ended")
        return getattr(self._state.attempts, name).call_one(*arguments)


def _failed_without(outcome: Outcome, plan: Plan) -> Callable[[Future[None]], None]:
    def then(ended: Future[None]) -> None:
        try:
            ended.get(timeout=0)
        except Exception as error:
            # An actor that was not made would leave these for a later run of this name.
            healers.pop(plan.key, None)
            outcomes.pop(plan.key, None)
            # The names of actors are left out, as the program does not know them.
            text = str(error.__cause__ or error).split("\n", 1)[0].rpartition(" have failed: ")[2].strip()
            hint = "more files may be open after `ulimit -n 65536`" if os.strerror(errno.EMFILE) in text else None
            failure = SPMDError(f"the run {plan.run_id} cannot go on: {text}", hint=hint)
            failure.__cause__ = error
            outcome.fail(failure)

    return then


def _is_done(future: Future[Any]) -> bool:
    try:
        future.get(timeout=0)
    except TimeoutError:
        return False
    except Exception:  # it has ended in some way
        return True
    return True


def wait(running: SPMDRun) -> RunResult:
    """The result; Ctrl-C stops the run, keeps the hosts, and is raised when the ranks have ended."""
    try:
        return running.result.get()
    except KeyboardInterrupt:
        running.__exit__()
        raise


def _stopped(state: RunState) -> None:
    try:
        state.stop().get(timeout=state.plan.grace + _EXIT_S)
    except (MonarchError, TimeoutError):  # a host does not answer
        pass


def _check_types(hosts: object, policy: object, workdir: object, run_id: object) -> None:
    if not isinstance(hosts, HostMesh):
        raise TypeError(f"hosts={hosts!r}: expected a HostMesh, like this_host(), not {type(hosts).__name__}")
    if policy is not None and not isinstance(policy, RestartPolicy):
        raise TypeError(f"policy={policy!r}: expected a RestartPolicy, not {type(policy).__name__}")
    for name, value in (("workdir", workdir), ("run_id", run_id)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}={value!r}: expected a text, not {type(value).__name__}")
    if workdir == "":
        raise ValueError("workdir='': expected a directory of the hosts, or None for that of their workers")


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except FileNotFoundError:
        hint = "change to another directory with os.chdir(), or give an absolute log_dir"
        raise SPMDError(f"the working directory of this process is gone: {folder!r} has no place", hint=hint) from None


def _checked(env: Mapping[str, str] | None) -> dict[str, str]:
    if env is not None and not isinstance(env, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"env={env!r}: expected a mapping of names to texts, not {type(env).__name__}")
    found = dict(env or {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"env[{name!r}]={value!r}: expected texts")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError(f"env[{name!r}]={value!r}: that cannot be a variable of the environment")
    return found


# ---- the end of the client

# The runs of this process. Each is kept with its handle, whose collection reports a failure.
_live: dict[int, tuple[RunState, SPMDRun]] = {}
# Runs that may have to be reported.
_unread: weakref.WeakSet[RunState] = weakref.WeakSet()
# Held by a thread that starts a run while it checks the active runs.
_admission = threading.Lock()
_exit_of = 0


def _end_with_client() -> None:
    # The handler is registered after the client's own exit handler, so that it runs before it, while procs exist.
    global _exit_of
    for key in [key for key, (state, _) in _live.items() if state.is_over()]:
        del _live[key]
    if _exit_of != os.getpid():
        _exit_of = os.getpid()
        atexit.register(_at_exit, _exit_of)


def _at_exit(pid: int) -> None:
    """Ends what still runs, and waits for that."""
    if os.getpid() != pid:
        return
    running = [state for state, _ in _live.values() if not state.is_over()]
    ends = [(state.stop(), state.plan.grace) for state in running]
    for end, grace in ends:
        try:
            end.get(timeout=grace + _EXIT_S)
        except (Exception, KeyboardInterrupt):  # it has ended in some way, or is left to the hosts
            continue
    for one in list(_unread):
        one.report()
