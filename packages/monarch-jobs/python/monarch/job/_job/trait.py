"""The base of every job: its life cycle, which users call, and the hooks that a backend implements.

A backend implements `_create`, `_state`, `can_run` and `_kill`; the other hooks have defaults. Built-in backends whose machines come
from a scheduler derive from `LauncherJob` instead, which needs a `Launcher` only.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch.config import get_global_config
from monarch.job._client.keeper import Keeper, Launch
from monarch.job._files import audit, credentials, state_file
from monarch.job._files.state_file import DEFAULT_JOB_PATH
from monarch.job._files.submission_lock import submission_lock
from monarch.job._job import features, hooks, local_reproduction, saved
from monarch.job._job.feature import FeatureHosts, JobControl, TelemetryFeature
from monarch.job._job.healer import Healing
from monarch.job._job.hold import holding
from monarch.job._job.job_state import JobState, checked_state, host_meshes, meshes_of, with_own_meshes
from monarch.job._job.launcher import HealReport, JobStatus, LogFile, Plan
from monarch.job._machine.notice import notice
from monarch.job.errors import JobEndedError, JobError, StateFileError

if TYPE_CHECKING:
    from typing import Self

    from monarch.job._job.components import MeshAdminConfig, TelemetryConfig

# Set to 1 for a script inside an allocation.
BATCH = "MONARCH_BATCH_JOB"
# The state file of the surrounding allocation; without the variable, the path in the script's request.
BATCH_FILE = "MONARCH_BATCH_JOB_FILE"
# Seconds that an interrupted or failed submission waits for the scheduler to cancel it.
CANCEL_SECONDS = 5.0


class Life(saved.Saved):
    """What `JobTrait` itself keeps about a job: its allocation, or the job that stands in for it."""

    def __init__(self) -> None:
        super().__init__()
        # The job whose file contains this one.
        self.inside: JobTrait | None = None
        # The job of the cached file, the surrounding allocation, or the process job that reproduces this one.
        self.stand_in: JobTrait | None = None
        # The last handles that were returned.
        self.attached: JobState | None = None
        # Held by a thread that heals.
        self.healing = threading.Lock()


class JobTrait(ABC):
    """Hosts that are reserved once and used many times; pure data until `apply` or `state` is called.

    To add a scheduler of your own, implement `_create`, `_state`, `can_run` and `_kill`. Plain attributes are saved with the job, except
    those whose name ends in `_`.

    ```python
    from monarch.job import ProcessJob

    job = ProcessJob({"trainers": 2})
    trainers = job.state("job_state.json").trainers  # a second script with this file has the same hosts
    trainers.initialized.get()
    assert not job.heal(timeout=60).missing
    job.kill()
    assert not job.active
    ```
    """

    __module__ = "monarch.job"
    # The name of a backend in files and texts; that of another subclass is `module:qualname`.
    kind: str = ""

    def __init__(self) -> None:
        self.__core__.apply_id = None

    # The interface for users.

    def apply(self, client_script: str | None = None) -> None:
        """Submits the job; one that is active stays as it is. With a script, it runs that inside the allocation.

        Raises `SubmitError` if the scheduler refuses the job, `CredentialsError` if `MONARCH_HOME` cannot be written.
        """
        _submit(self, client_script)

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """The hosts: of this object's allocation, else of the one that `cached_path` has and that can run this, else of a new one.

        Returns as soon as there are handles, which are new objects each time: `stop` of one ends what was spawned through that one. With
        `cached_path=None` no file is read or written. Raises `SubmitError` as `apply`, `StateFileError` for the file, `JobError` if the
        allocation cannot be reached, and errors of features.
        """
        with holding(features.need_hosts(self.__core__.features)):
            found = _find_hosts(self, cached_path)
        return _with_features(self, found)

    def kill(self) -> None:
        """Ends the allocation and removes credentials and state. Without an allocation it does nothing.

        Every step is tried; `JobError` collects what failed.
        """
        _kill(self)

    @property
    def active(self) -> bool:
        """Is there an allocation, as far as this object knows?"""
        return current(self).__core__.active

    @property
    def apply_id(self) -> str | None:
        """A fresh uuid per allocation; None without one."""
        return current(self).__core__.apply_id

    def dump(self, filename: str) -> None:
        """Writes the job as JSON, for `job_load`; follows a symlink. `JobError` names an attribute that JSON cannot hold."""
        saved.write(os.fspath(filename), current(self), is_own=False)

    def dumps(self) -> bytes:
        """The job as JSON, for `job_loads`."""
        return saved.encode(current(self))

    def status(self) -> JobStatus:
        """One look at the scheduler and the hosts."""
        job = current(self)
        refresh(job)
        return hooks.poll(job) if job.__core__.active else JobStatus("none", "not submitted", [])

    def heal(self, *, timeout: float | None = None) -> HealReport:
        """Does the least that brings lost hosts back, within `timeout` seconds; the next `state()` has them.

        Old handles still raise for lost ranks. The keeper serves its services on the hosts. Raises `JobError` if no scheduler answers.
        """
        job = current(self)
        end = None if timeout is None else time.monotonic() + timeout
        with audit.recorded("heal", _audit_name(job)):
            report = hooks.heal(job)(timeout)
        job.__core__.history.healed(job, report)
        _renew_services(job, end)
        return report

    def plan(self) -> Plan:
        """What would be submitted; nothing is touched."""
        return Plan(hooks.kind_name(self), f"{hooks.kind_name(self)} job, which does not say what it submits\n")

    def enable_telemetry(
        self, config: TelemetryConfig | None = None, *, mesh_admin_config: MeshAdminConfig | None = None, **kwargs: Any
    ) -> Self:
        """Needs monarch-telemetry; without that wheel there is one warning, and the job runs."""
        features.add_best_effort(
            self.__core__.features, "telemetry", "enable_telemetry", {"config": config, "mesh_admin_config": mesh_admin_config, **kwargs}
        )
        return self

    def enable_admin(self, config: MeshAdminConfig | None = None, **kwargs: Any) -> Self:
        """Needs monarch-telemetry; without that wheel there is one warning, and the job runs."""
        features.add_best_effort(self.__core__.features, "admin", "enable_admin", {"config": config, **kwargs})
        return self

    def preload(self, modules: Sequence[str]) -> Self:
        """Modules that each host imports once for all procs and programs, as `["torch"]`; `TypeError` or `ValueError` for others."""
        features.add(self.__core__.features, "preload", {"modules": modules})
        return self

    def remote_mount(
        self,
        source: str,
        mntpoint: str | None = None,
        meshes: list[str] | None = None,
        python_exe: str | None = ".venv/bin/python",
        **kwargs: Any,
    ) -> None:
        """Needs monarch-fs."""
        arguments = {"source": source, "mntpoint": mntpoint, "meshes": meshes, "python_exe": python_exe, **kwargs}
        features.add_mount(self.__core__.features, "remote_mount", arguments)

    def gather_mount(self, remote_mount_point: str, local_mount_point: str, meshes: list[str] | None = None) -> None:
        """Needs monarch-fs."""
        arguments = {"remote_mount_point": remote_mount_point, "local_mount_point": local_mount_point, "meshes": meshes}
        features.add_mount(self.__core__.features, "gather_mount", arguments)

    def profile(self, *, on_trace_ready: Callable[..., Any] | None = None) -> Any:
        """Needs monarch-telemetry."""
        return _telemetry(self, "profile").profile(on_trace_ready)

    def telemetry_query_client(self) -> Any:
        """Needs monarch-telemetry. `JobEndedError` for a job that is over, or has no allocation."""
        found = _telemetry(self, "telemetry_query_client")
        status = self.status()
        if status.phase == "none":
            what, cause, hint = "has no allocation to ask", "it was not submitted, or it was killed", "call state() before"
            raise JobEndedError(what, title=self._title, cause=cause, hint=hint, state="none")
        if status.phase == "ended":
            raise JobEndedError("ended", title=self._title, cause=status.detail, state=status.phase, reason=status.detail)
        return found.query_client()

    # Hooks.

    @abstractmethod
    def can_run(self, spec: JobTrait) -> bool:
        """Can the allocation of this job be used for what `spec` describes?"""

    @abstractmethod
    def _create(self, client_script: str | None) -> None:
        """Submits. `self.apply_id` is set; when it raises, `_kill` is called to cancel what was submitted."""

    @abstractmethod
    def _state(self) -> JobState:
        """Connects to the allocation."""

    @abstractmethod
    def _kill(self) -> None:
        """Ends the allocation, whatever there is of it."""

    def _poll(self) -> JobStatus:
        """One look at the allocation. Called only while there is one."""
        return JobStatus("running", "", [])

    def _heal(self, timeout: float | None) -> HealReport:
        """Brings lost hosts back. The default only reports them."""
        return HealReport([], [], [host for host in self.status().hosts if host.phase == "lost"])

    def _take_over(self, other: JobTrait) -> None:
        """Takes over what another process has changed about the allocation; `other` is the job as that process has saved it."""
        vars(self).update({name: value for name, value in vars(other).items() if not name.endswith("_")})

    def _needs_kill_at_exit(self) -> bool:
        """Must the exit of a client script inside the allocation kill the job? Not where the scheduler ends it with the script."""
        return True

    def _sizes(self) -> dict[str, int]:
        """How many hosts each mesh has, in order; what local reproduction imitates."""
        raise NotImplementedError(f"{type(self).__name__} does not say how many hosts its meshes have: define _sizes()")

    def _logs(self) -> list[LogFile]:
        """Files with what the workers printed, on this machine or one that shares its file system."""
        return []

    def _fetch_logs(self) -> list[LogFile]:
        """The files of `_logs`, after what was printed on machines whose files this one cannot see has been added to copies of theirs."""
        return self._logs()

    def _stop_work(self) -> None:
        """Ends what this process has spawned, before the keeper ends: where the way to the hosts is one of its services."""
        return

    def _where(self) -> str:
        """What a person needs to find the allocation where it could not be ended, such as the scheduler's id."""
        return f"apply_id {self.apply_id}"

    def _dump(self) -> dict[str, Any]:
        """What is saved: all attributes but those whose name ends in `_`."""
        return {name: value for name, value in vars(self).items() if not name.endswith("_")}

    def _load(self, saved: dict[str, Any]) -> None:
        """Restores what `_dump` gave, into an object whose `__init__` has not run."""
        vars(self).update(saved)

    # The interface for the rest of the package.

    @property
    def __core__(self) -> Life:
        # The object is made here and not in `__init__`, which a subclass may forget to call and loading does not call.
        found: Life = vars(self).setdefault("life_", Life())
        return found

    @property
    def _title(self) -> str:
        """How an error names the job: `<kind> job <name>`."""
        return f"{hooks.kind_name(self)} job {(self.apply_id or 'new')[:8]}"


# The life cycle, in terms of the hooks. These are functions, because each method would take a name from the subclasses of other wheels.


def _audit_name(job: JobTrait) -> str:
    """The job in the audit log: `apply_id` distinguishes it from the others."""
    return f"{hooks.kind_name(job)} job {job.__core__.apply_id or ''}".rstrip()


def current(job: JobTrait) -> JobTrait:
    """The job that has the allocation: this one, or the one that stands in for it."""
    return job.__core__.stand_in or job


def reconnect(job: JobTrait) -> JobState:
    """The hosts of a job that was loaded; `JobEndedError` if it is over."""
    status = job.status()
    if status.phase in ("none", "ended"):
        words = "ended" if status.phase == "ended" else "is not submitted"
        raise JobEndedError(words, title=hooks.title(job), cause=status.detail, state=status.phase, reason=status.detail)
    return _connect(current(job))


def intended(job: JobTrait) -> JobTrait:
    """The job, or the one of local processes that reproduces it, if the environment asks for that."""
    life = job.__core__
    if life.stand_in is None:
        if life.active or not local_reproduction.is_requested():
            return job
        life.stand_in = _as_processes(job)
    return life.stand_in


def _as_processes(job: JobTrait) -> JobTrait:
    """A `ProcessJob` with the names and sizes of the job's meshes, these limited by `MONARCH_JOB_SHRINK`."""
    process_job = saved.class_of("process")
    if isinstance(job, process_job):
        return job
    made: JobTrait = process_job(local_reproduction.shrunk(hooks.sizes(job)))
    return made


def _submit(job: JobTrait, client_script: str | None) -> None:
    """Submits the job, or the one that reproduces it; one that is active stays as it is."""
    job = intended(job)
    life = job.__core__
    if life.active:
        return
    life.apply_id = str(uuid.uuid4())
    try:
        with audit.recorded("apply", _audit_name(job), script=client_script):
            hooks.create(job)(client_script)
        life.active = True
        life.history.add(job, "submitted", detail=hooks.where(job))
    except BaseException:
        _take_back(job)
        raise


def _take_back(job: JobTrait) -> None:
    """Cancels what a failed or interrupted submission has left, and names it if that does not work."""
    where = hooks.where(job)
    failed: list[str] = []

    def cancel() -> None:
        try:
            hooks.kill(job)
        except Exception as e:
            failed.append(f"{type(e).__name__}: {e}")

    # A thread of its own cancels: its wait may never end, and a second Ctrl-C must get through.
    thread = threading.Thread(target=cancel, name="monarch-job-cancel", daemon=True)
    thread.start()
    thread.join(CANCEL_SECONDS)
    if thread.is_alive():
        failed.append(f"no answer within {CANCEL_SECONDS:.0f} s")
    if failed:
        notice(f"{hooks.title(job)}: could not be cancelled ({'; '.join(failed)}), it may go on: {where}")
    life = job.__core__
    apply_id = life.apply_id
    if apply_id is not None and not failed:
        try:
            credentials.remove(apply_id)
        except JobError as e:  # the original error has more information
            if os.path.lexists(credentials.directory(apply_id)):
                notice(f"{hooks.title(job)}: {e}")
    life.apply_id = None
    life.active = False


def _find_hosts(job: JobTrait, cached_path: str | None) -> JobState:
    """Finds or submits the job that has the allocation, and connects to that one."""
    holder = current(job)
    if holder.__core__.active:
        if is_alive(holder):
            return _connect(holder)
        _kill(job)  # the rest of the job: credentials, the file
    if os.environ.get(BATCH) == "1":
        return _surrounding(job, cached_path)
    wanted = intended(job)
    if cached_path is None:
        _submit(wanted, None)
        return _connect(wanted)
    cached_path = os.fspath(cached_path)
    with submission_lock(cached_path):
        found = _kept_or_submitted(job, wanted, cached_path)
    return _connect(found)


def _kept_or_submitted(job: JobTrait, wanted: JobTrait, cached_path: str) -> JobTrait:
    """The job of the file that can run what is wanted, else the wanted one, submitted and written to the file."""
    kept = saved.load_if_there(cached_path, JobTrait)
    if kept is not None:
        if is_alive(kept):
            if kept.can_run(wanted):
                job.__core__.stand_in = kept
                return kept
            title = f"{hooks.title(kept)}, {hooks.where(kept)}"
            notice(f"monarch: the job in {cached_path} cannot run what is asked for now, it is killed: {title}")
        _kill(kept)
    _submit(wanted, None)
    # The file is written before connecting: a user who interrupts that finds the allocation again.
    _write(cached_path, wanted)
    return wanted


def _connect(job: JobTrait) -> JobState:
    target = _audit_name(job)
    try:
        found = checked_state(hooks.state(job), type(job).__name__)
    except BaseException as e:
        audit.record("attach", target, f"{type(e).__name__}: {e}".partition("\n")[0])
        raise
    _set_healers(job, found)
    life = job.__core__
    if found is not life.attached:
        life.attached = found
        audit.record("attach", target, trust_all=get_global_config()["trust_all"] or None)
        life.history.attached(job, meshes_of(found))
    if life.path is not None and os.path.exists(life.path):
        with credentials.lock(life.apply_id):
            # Addresses have become known, or another process has changed more than that.
            if not refresh(job):
                _write(life.path, job)
    return found


def refresh(job: JobTrait) -> bool:
    """Takes over what another process has done with the allocation, such as healing it; True where there was something."""
    job = job.__core__.inside or job
    try:
        found = saved.changed(job, JobTrait)
    except StateFileError:
        return False  # the next process that needs the file reports its problem
    if found is None:
        return False
    hooks.take_over(job)(found)
    return True


def _write(path: str, job: JobTrait) -> None:
    try:
        saved.write(path, current(job))
    except StateFileError:
        raise
    except JobError as e:
        warnings.warn(f"{path} is not written, so this job is not found again: {e}", RuntimeWarning, stacklevel=6)


def _surrounding(job: JobTrait, cached_path: str | None) -> JobState:
    """The hosts of the allocation that this script runs in."""
    kept = saved.load(os.environ.get(BATCH_FILE) or cached_path or DEFAULT_JOB_PATH, JobTrait)
    batch_job: Any = saved.class_of("batch")
    batch: Any = kept if isinstance(kept, batch_job) else batch_job(kept)
    job.__core__.stand_in = batch
    found: JobState = hooks.surround(batch)
    _set_healers(batch, found)
    return found


def is_alive(job: JobTrait) -> bool:
    """Is there an allocation that can be used? One look at the scheduler."""
    return job.status().phase in ("pending", "running", "unknown")


def _kill(job: JobTrait) -> None:
    """Every step is tried. The state file stays while the allocation could not be ended: it names that allocation."""
    asked, job = job, current(job)
    with credentials.lock(job.__core__.apply_id):
        refresh(job)
        _end(asked, job)


def _end(asked: JobTrait, job: JobTrait) -> None:
    life = job.__core__
    apply_id, path = life.apply_id, life.path
    failed: list[tuple[str, Exception]] = []

    def step(what: str, action: Callable[..., object], *arguments: object) -> None:
        try:
            action(*arguments)
        except Exception as e:
            failed.append((what, e))

    was_active, target = life.active, _audit_name(job)
    if life.active:
        life.history.killed(job)
        # Features stop while their hosts exist; a feature that does not stop must not keep the allocation.
        for one in reversed(life.features):
            step(f"stop {one.name}", features.stop, one)
        step("stop what runs on the hosts", hooks.stop_work, job)
    if apply_id is not None:
        step("end the keeper", Keeper(apply_id, hooks.title(job)).end)
    stopping = len(failed)
    if life.active:
        step(f"end the allocation ({hooks.where(job)})", hooks.kill, job)
    ended = len(failed) == stopping
    if apply_id is not None:
        step("remove the credentials", credentials.remove, apply_id)
    if ended and path is not None:
        step("remove the state file", state_file.remove, path, apply_id)
    if ended:
        life.active = False
        life.apply_id = life.path = None
        asked.__core__.stand_in = None
    if was_active:
        life.attached = None
        audit.record("kill", target, "; ".join(f"could not {what}: {type(e).__name__}" for what, e in failed) or "done")
    if failed:
        causes = "\n".join(f"could not {what}: {type(e).__name__}: {e}" for what, e in failed)
        raise JobError("was not killed completely", title=hooks.title(job), cause=causes) from failed[0][1]


def add_feature(job: JobTrait, name: str, /, **arguments: Any) -> None:
    """Configures the job with a feature, an entry point of the group `monarch.job_feature`; `state()` starts it.

    `JobError` if no wheel has a feature of this name, or if it cannot be loaded; for the arguments, what the feature raises.
    """
    features.add(job.__core__.features, name, arguments)


def keeper_of(job: JobTrait) -> Keeper:
    """The keeper of the job's allocation, which need not run; `JobError` without an allocation."""
    holder = current(job)
    apply_id = holder.__core__.apply_id
    if apply_id is None or not holder.__core__.active:
        raise JobError("has no allocation, so it has no keeper", title=hooks.title(holder), hint="call apply() or state() first")
    return Keeper(apply_id, hooks.title(holder), lambda: _launch(holder))


def _renew_services(job: JobTrait, end: float | None) -> None:
    """Has the keeper serve on healed hosts. Returns at `end`, a monotonic time, in any case."""
    if job.apply_id is None or not job.active:
        return
    keeper = keeper_of(job)

    def renew() -> None:
        try:
            keeper.renew()
        except (JobError, OSError) as e:
            notice(f"monarch: {hooks.title(job)}: its keeper does not serve on healed hosts yet: {e}")

    thread = threading.Thread(target=renew, name="monarch-job-renew", daemon=True)
    thread.start()
    thread.join(None if end is None else max(end - time.monotonic(), 0.0))


def _launch(job: JobTrait) -> Launch:
    """What the keeper of the job is started with; `JobError` where another process cannot import the job's class."""
    inner: Any = getattr(job, "job_", job)
    module = type(inner).__module__
    if not inner.kind and module == "__main__":
        raise JobError(
            f"its class {type(inner).__qualname__} is in the script itself, where the keeper cannot import it",
            title=hooks.title(job),
            hint="move the class to a module",
        )
    return Launch(saved.encode(job).decode(), job.__core__.path, [] if inner.kind else [module])


def _telemetry(job: JobTrait, method: str) -> TelemetryFeature:
    if features.is_missing("telemetry"):
        features.absent(method, "monarch-telemetry")
    found = next((one.feature for one in current(job).__core__.features if one.name == "telemetry"), None)
    if not isinstance(found, TelemetryFeature):
        raise JobError(f"JobTrait.{method} needs telemetry", title=hooks.title(job), hint="call enable_telemetry() before state()")
    return found


def _set_healers(job: JobTrait, found: JobState) -> None:
    # `state` would submit a job that has ended.
    Healing(job, job.__core__.healing, lambda: _with_features(job, _connect(job))).set(found)


def _with_features(job: JobTrait, found: JobState) -> JobState:
    """Handles of the caller's own, after the features have been started on them."""
    own = with_own_meshes(found)
    _start_features(job, own)
    return own


def _start_features(job: JobTrait, found: JobState) -> None:
    """Starts what the job was configured with; the job that has the allocation takes the configuration over."""
    holder = current(job)
    life, title = holder.__core__, hooks.title(holder)
    carried = life.features
    if holder is not job:
        for one in features.take_over(job.__core__.features, carried):
            try:
                features.stop(one)
            except Exception as e:  # the job no longer asks for it
                notice(f"monarch: {title}: {one.name} could not be stopped: {type(e).__name__}: {e}")
    if carried:
        apply_id = life.apply_id or ""
        keeper = keeper_of(holder) if apply_id else None
        control = JobControl(job, title, apply_id) if apply_id else None
        hosts = FeatureHosts(title, apply_id, host_meshes(meshes_of(found)), keeper, control)
        features.start(carried, hosts, found, getattr(holder, "hold_", None))
        life.history.observed()
    if life.path is not None and (carried or holder is not job):
        with credentials.lock(life.apply_id):
            _write(life.path, holder)  # another process needs this to continue with them
