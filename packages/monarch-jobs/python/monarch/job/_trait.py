"""The base of every job: what users call, and the hooks that a backend implements.

A backend implements `_create`, `_state`, `can_run` and `_kill`; `plan`, `_poll`, `_heal`, `_sizes`, `_logs`, `_dump` and `_load` have
defaults. How the public methods use the hooks is in `_lifecycle`. Built-in backends whose machines come from a scheduler derive from
`LauncherJob` instead (`_launched`), which needs a `Launcher` only.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from monarch.job._status import HealReport, JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from monarch.job._components import MeshAdminConfig, TelemetryConfig
    from monarch.job._job_state import JobState
    from monarch.job._plan import Plan

DEFAULT_JOB_PATH = ".monarch/job_state.json"


class LogFile(NamedTuple):
    """A file with what a worker printed; `stream` is `out`, `err`, or `system` for what is not a worker's."""

    mesh: str
    rank: int
    stream: str
    path: str


class Life:
    """What `JobTrait` itself keeps about a job: its allocation, or the job that stands in for it."""

    def __init__(self) -> None:
        self.apply_id: str | None = None
        self.active = False
        # The file that the job was read from or written to last, absolute, and what was in it then.
        self.path: str | None = None
        self.saved: bytes | None = None
        # The job whose file has this one in it.
        self.inside: JobTrait | None = None
        # Was the job read from a file, and so applied by another process, maybe?
        self.loaded = False
        # The job of the cached file, the surrounding allocation, or the process job that reproduces this one.
        self.stand_in: JobTrait | None = None
        # The handles that were given out last.
        self.attached: JobState | None = None


class JobTrait(ABC):
    """Hosts that are reserved once and used many times; pure data until `apply` or `state` is called.

    To add a scheduler of your own, implement `_create`, `_state`, `can_run` and `_kill`. Plain attributes are saved with the job, except
    those whose name ends in `_`.
    """

    __module__ = "monarch.job"
    # The name of a backend in files and texts; that of another subclass is `module:qualname`.
    kind: str = ""

    def __init__(self) -> None:
        self._life.apply_id = None

    # What users call.

    def apply(self, client_script: str | None = None) -> None:
        """Submits the job; one that is active stays as it is. With a script, it runs that inside the allocation."""
        from monarch.job import _lifecycle

        _lifecycle.apply(self, client_script)

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """The hosts: of this object's allocation, else of the one that `cached_path` knows and that can run this, else of a new one.

        Returns as soon as there are handles, which are new objects each time: `stop` of one ends what was spawned through that one. With
        `cached_path=None` no file is read or written.
        """
        from monarch.job import _lifecycle

        return _lifecycle.state(self, cached_path)._with_own_meshes()

    def kill(self) -> None:
        """Ends the allocation and removes credentials and state. Without an allocation it does nothing.

        Every step is tried; `JobError` collects what failed.
        """
        from monarch.job import _lifecycle

        _lifecycle.kill(self)

    @property
    def active(self) -> bool:
        """Is there an allocation, as far as this object knows?"""
        return self._current._life.active

    @property
    def apply_id(self) -> str | None:
        """A fresh uuid per allocation; None without one."""
        return self._current._life.apply_id

    def dump(self, filename: str) -> None:
        """Writes the job as JSON, for `job_load`; follows a symlink. `JobError` names an attribute that JSON cannot hold."""
        from monarch.job import _store

        _store.write(os.fspath(filename), self, is_own=False)

    def dumps(self) -> bytes:
        """The job as JSON, for `job_loads`."""
        from monarch.job import _store

        return _store.encode(self)

    def status(self) -> JobStatus:
        """One look at the scheduler and the hosts."""
        from monarch.job import _lifecycle

        job = self._current
        _lifecycle.refresh(job)
        return job._poll() if job._life.active else JobStatus("none", "not submitted", [])

    def heal(self, *, timeout: float | None = None) -> HealReport:
        """Does the least that brings lost hosts back; the next `state()` has them, old handles keep failing for lost ranks."""
        from monarch.job import _lifecycle

        return _lifecycle.heal(self._current, timeout)

    def plan(self) -> Plan:
        """What would be submitted; nothing is touched."""
        from monarch.job._plan import Plan

        return Plan(kind_of(self), f"{kind_of(self)} job, which does not say what it submits\n")

    def enable_telemetry(
        self, config: TelemetryConfig | None = None, *, mesh_admin_config: MeshAdminConfig | None = None, **kwargs: Any
    ) -> Self:
        """Needs monarch-telemetry; without that wheel there is one warning, and the job runs."""
        _warn_without_telemetry("enable_telemetry")
        return self

    def enable_admin(self, config: MeshAdminConfig | None = None, **kwargs: Any) -> Self:
        """Needs monarch-telemetry; without that wheel there is one warning, and the job runs."""
        _warn_without_telemetry("enable_admin")
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
        _absent("remote_mount", "monarch-fs")

    def gather_mount(self, remote_mount_point: str, local_mount_point: str, meshes: list[str] | None = None) -> None:
        """Needs monarch-fs."""
        _absent("gather_mount", "monarch-fs")

    def profile(self, *, on_trace_ready: Callable[..., Any] | None = None) -> Any:
        """Needs monarch-telemetry."""
        _absent("profile", "monarch-telemetry")

    def telemetry_query_client(self) -> Any:
        """Needs monarch-telemetry."""
        _absent("telemetry_query_client", "monarch-telemetry")

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
        """Brings lost hosts back. The default only tells which there are."""
        return HealReport([], [], [host for host in self.status().hosts if host.phase == "lost"])

    def _adopt(self, other: JobTrait) -> None:
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

    def _where(self) -> str:
        """What a person needs to find the allocation where it could not be ended, such as the scheduler's id."""
        return f"apply_id {self.apply_id}"

    def _dump(self) -> dict[str, Any]:
        """What is saved: all attributes but those whose name ends in `_`."""
        return {name: value for name, value in vars(self).items() if not name.endswith("_")}

    def _load(self, saved: dict[str, Any]) -> None:
        """Restores what `_dump` gave, into an object whose `__init__` has not run."""
        vars(self).update(saved)

    # What the rest of the package uses.

    @property
    def _life(self) -> Life:
        # Made here and not in `__init__`, which a subclass may forget to call and loading does not call.
        found: Life = vars(self).setdefault("life_", Life())
        return found

    @property
    def _current(self) -> JobTrait:
        """The job that has the allocation: this one, or the one that stands in for it."""
        return self._life.stand_in or self

    def _reconnect(self) -> JobState:
        """The hosts of a job that was loaded; `JobEndedError` if it is over."""
        from monarch.job import _lifecycle

        return _lifecycle.reconnect(self)

    @property
    def _title(self) -> str:
        """How an error names the job: `<kind> job <name>`."""
        return f"{kind_of(self)} job {(self.apply_id or 'new')[:8]}"


def kind_of(job: JobTrait) -> str:
    return job.kind or type(job).__name__


# Methods that have warned in this process.
_warned: set[str] = set()


def _warn_without_telemetry(method: str) -> None:
    """Telemetry is best effort: a program that asks for it runs where it is not installed."""
    if method in _warned:
        return
    from warnings import warn

    from monarch._core.errors.wheel import install_hint

    _warned.add(method)
    wheel = "monarch-telemetry"
    warn(f"JobTrait.{method} has no effect: the wheel {wheel} is not installed\nhint: {install_hint(wheel)}", UserWarning, stacklevel=3)


def _absent(method: str, wheel: str) -> NoReturn:
    from monarch._core.errors.wheel import needs_wheel

    raise NotImplementedError(needs_wheel(f"JobTrait.{method}", wheel))
