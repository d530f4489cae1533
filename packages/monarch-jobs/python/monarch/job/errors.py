"""The exceptions of jobs. The first line of a text is `<kind> job <name>: <what>`, then comes the cause, then a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.actor import AttachError, MonarchError

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_JOB = "no_such_job"


def text(title: str, what: str, cause: str = "", hint: str | None = None) -> str:
    """The text of an error: `title` is `<kind> job <name>` or a file; the lines of the cause are indented by two, the hint is last."""
    lines = [f"{title}: {what}" if title else what]
    lines += [f"  {line}" for line in cause.splitlines()]
    if hint:
        lines.append(f"hint: {hint}")
    return "\n".join(lines)


class JobError(MonarchError, RuntimeError):
    """A job could not be submitted, reached, read or ended; the base of what `monarch.job` raises at run time."""

    __module__ = "monarch.job"
    _default_code = "job_failed"

    def __init__(self, what: str, *, title: str = "", cause: str = "", hint: str | None = None, code: str | None = None) -> None:
        super().__init__(text(title, what, cause, hint), code=code, hint=hint)


class SubmitError(JobError):
    """The scheduler refused: `command` is what was run, `exit_code` how it ended; its own text is the cause."""

    __module__ = "monarch.job"
    _default_code = "submit_failed"

    def __init__(
        self,
        what: str,
        *,
        title: str = "",
        cause: str = "",
        hint: str | None = None,
        command: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(what, title=title, cause=cause, hint=hint)
        self.command = command
        self.exit_code = exit_code


class JobEndedError(JobError):
    """The job is over: `state` and `reason` are the scheduler's words, the cause has the tail of the logs."""

    __module__ = "monarch.job"
    _default_code = "job_ended"

    def __init__(self, what: str, *, title: str = "", cause: str = "", hint: str | None = None, state: str = "", reason: str = "") -> None:
        super().__init__(what, title=title, cause=cause, hint=hint)
        self.state = state
        self.reason = reason


class JoinTimeoutError(JobError, AttachError):
    """Hosts did not join in time: `joined` of `total`; `hosts` has the missing ones by name with why."""

    __module__ = "monarch.job"
    _default_code = "join_timeout"

    def __init__(
        self,
        what: str,
        *,
        title: str = "",
        cause: str = "",
        hint: str | None = None,
        joined: int = 0,
        total: int = 0,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what, title=title, cause=cause, hint=hint)
        self.joined = joined
        self.total = total
        self.hosts = dict(hosts or {})


class CredentialsError(JobError):
    """The credentials of a job are missing, another user's, or readable by others: `path` is the file."""

    __module__ = "monarch.job"
    _default_code = "credentials"

    def __init__(self, what: str, *, path: str, cause: str = "", hint: str | None = None) -> None:
        super().__init__(what, title=path, cause=cause, hint=hint)
        self.path = path


class StateFileError(JobError):
    """A state file cannot be read or written: `path`, and `line` and `field` where one is to blame."""

    __module__ = "monarch.job"
    _default_code = "state_file"

    def __init__(
        self,
        what: str,
        *,
        path: str,
        line: int | None = None,
        field: str | None = None,
        cause: str = "",
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        place = path if line is None else f"{path}:{line}"
        super().__init__(what, title=place if field is None else f"{place}: {field}", cause=cause, hint=hint, code=code)
        self.path = path
        self.line = line
        self.field = field


class BackendMissingError(JobError, ImportError):
    """A requirement of a backend is not installed: an extra, or a command of the machine."""

    __module__ = "monarch.job"
    _default_code = "backend_missing"


class FeatureMissingError(JobError, NotImplementedError):
    """No wheel that is installed has this job feature, or its entry point cannot be loaded."""

    __module__ = "monarch.job"
    _default_code = "feature_missing"


class KeeperError(JobError):
    """The keeper of a job cannot be started or asked, or a service of it has failed: then `raised` is the name of the error's type."""

    __module__ = "monarch.job"
    _default_code = "keeper_failed"

    def __init__(
        self, what: str, *, title: str = "", cause: str = "", hint: str | None = None, code: str | None = None, raised: str = ""
    ) -> None:
        super().__init__(what, title=title, cause=cause, hint=hint, code=code)
        self.raised = raised


class ExecError(JobError):
    """A command could not be started on a host; one that ends with another code than 0 is no error."""

    __module__ = "monarch.job"
    _default_code = "exec_failed"

    def __init__(
        self,
        what: str,
        *,
        title: str = "",
        cause: str = "",
        hint: str | None = None,
        host: str | None = None,
        command: tuple[str, ...] = (),
        errno: int | None = None,
    ) -> None:
        super().__init__(what, title=title, cause=cause, hint=hint)
        self.host = host
        self.command = command
        self.errno = errno
