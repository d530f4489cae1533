"""A job whose machines come from a `Launcher`: submitting, joining, status, healing and killing are the same for all of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from monarch.job._trait import JobTrait

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.job._job_state import JobState
    from monarch.job._join import Host
    from monarch.job._joining import Allocation
    from monarch.job._launcher import Launcher
    from monarch.job._plan import Plan
    from monarch.job._status import HealReport, JobStatus
    from monarch.job.errors import JobError


class LauncherJob(JobTrait):
    """A backend derives from this, records its constructor's arguments in a pydantic model, and implements the first four hooks.

    `_ids` has what `Launcher.submit` returned, changed in place by `relaunch`; it is saved with the job.
    """

    # Does `apply(client_script=...)` work? Then `self._client_script` is set before `_launcher` is asked.
    runs_scripts: ClassVar[bool] = False

    _ids: dict[str, Any] | None = None
    _client_script: str | None = None
    # Handles of this process, the addresses that they are for, and what stops those who wait for hosts.
    connection_: JobState | None = None
    attached_: dict[Host, str] | None = None
    awaited_: Allocation | None = None
    # Workers have been replaced since: the next `state` connects anew.
    is_stale_: bool = False

    @abstractmethod
    def _launcher(self) -> Launcher:
        """Who submits; made anew for every use, from the arguments (and `self.apply_id`, `self._directory` where it submits)."""

    @abstractmethod
    def _sizes(self) -> dict[str, int]:
        """How many hosts each mesh has, in order."""

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments as JSON, and what `add_mesh` and the like have added."""

    @abstractmethod
    def _set_arguments(self, saved: dict[str, Any]) -> None:
        """Restores what `_arguments` gave, into an object whose `__init__` has not run."""

    def _join_timeout(self) -> float | None:
        """Seconds from "running" to "joined"."""
        return 120.0

    @property
    def _directory(self) -> str:
        """This allocation's private directory, `MONARCH_HOME/jobs/<apply_id>`, 0700; it exists once the job is applied."""
        from monarch.job._files import credentials

        assert self.apply_id is not None
        return credentials.directory(self.apply_id)

    def _secret(self) -> bytes:
        """What the hosts were told when the job was submitted; `CredentialsError` where it is not on this machine."""
        from monarch.job._files import credentials

        assert self.apply_id is not None
        return credentials.secret(self.apply_id)

    def plan(self) -> Plan:
        return self._launcher().plan()

    def can_run(self, spec: JobTrait) -> bool:
        return type(spec) is type(self) and spec.plan() == self.plan()

    def _create(self, client_script: str | None) -> None:
        from monarch.job import _joining

        _joining.submit(self, client_script)

    def _state(self) -> JobState:
        from monarch.job import _joining

        return _joining.connect(self)

    def _ending(self, status: JobStatus) -> tuple[str, str]:
        """State and reason of an allocation that is over, in the scheduler's words."""
        return status.phase, status.detail

    def _explains_loss(self) -> Callable[[], JobError | None] | None:
        """What calls raise for which hosts are lost; None where the scheduler knows no more than the runtime."""
        return None

    def _poll(self) -> JobStatus:
        from monarch.job import _joining

        return _joining.look(self, _joining.Allocation(self))

    def _heal(self, timeout: float | None) -> HealReport:
        from monarch.job import _heal

        return _heal.heal(self, timeout)

    def _kill(self) -> None:
        from monarch.job import _joining

        _joining.cancel(self)

    def _where(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in (self._ids or {}).items() if isinstance(value, str | int))

    def _dump(self) -> dict[str, Any]:
        return {"arguments": self._arguments(), "ids": self._ids, "client_script": self._client_script}

    def _load(self, saved: dict[str, Any]) -> None:
        self._set_arguments(saved["arguments"])
        self._ids = saved.get("ids")
        self._client_script = saved.get("client_script")
