"""Hosts from a scheduler: the public names. Each is loaded on first use, so that importing this module costs next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.job._components import MeshAdminConfig as MeshAdminConfig
    from monarch.job._components import TelemetryConfig as TelemetryConfig
    from monarch.job._job_state import JobState as JobState
    from monarch.job._launcher import Launcher as Launcher
    from monarch.job._plan import Plan as Plan
    from monarch.job._status import HealReport as HealReport
    from monarch.job._status import HostStatus as HostStatus
    from monarch.job._status import JobStatus as JobStatus
    from monarch.job._trait import DEFAULT_JOB_PATH as DEFAULT_JOB_PATH
    from monarch.job._trait import JobTrait as JobTrait
    from monarch.job.errors import BackendMissingError as BackendMissingError
    from monarch.job.errors import CredentialsError as CredentialsError
    from monarch.job.errors import ExecError as ExecError
    from monarch.job.errors import JobEndedError as JobEndedError
    from monarch.job.errors import JobError as JobError
    from monarch.job.errors import JoinTimeoutError as JoinTimeoutError
    from monarch.job.errors import StateFileError as StateFileError
    from monarch.job.errors import SubmitError as SubmitError

# Where each name is implemented.
_HOMES = {
    "_components": ("MeshAdminConfig", "TelemetryConfig"),
    "_job_state": ("JobState",),
    "_launcher": ("Launcher",),
    "_plan": ("Plan",),
    "_status": ("HealReport", "HostStatus", "JobStatus"),
    "_trait": ("DEFAULT_JOB_PATH", "JobTrait"),
    "errors": (
        "BackendMissingError",
        "CredentialsError",
        "ExecError",
        "JobEndedError",
        "JobError",
        "JoinTimeoutError",
        "StateFileError",
        "SubmitError",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__ = [*sorted(_HOME)]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    from importlib import import_module

    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'monarch.job' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"monarch.job.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(_HOME)
