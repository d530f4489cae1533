"""The directory of a job's log files on one machine: the output of its procs and the runtime's own log.

The first process that writes there makes it, for this user alone. It is named after the agent, so that every process of the job finds it.
"""

from __future__ import annotations

import os

from monarch._core.config import config
from monarch._core.process.identity import to_base58


def job_directory(agent: int) -> str:
    """The log directory for the agent's procs by the settings of this process: below `log_dir`, else below the temporary directory."""
    root = log_root()
    if root:
        return directory_below(root, agent)
    # The variables that `tempfile` reads first. An import of that module would cost more.
    temporary = next((v for v in map(os.environ.get, ("TMPDIR", "TEMP", "TMP")) if v), "/tmp")
    return os.path.join(os.path.abspath(temporary), f"monarch-{to_base58(agent)}")


def log_root() -> str:
    """The setting `log_dir` of this process as an absolute path; empty without one."""
    chosen: str = config.value("log_dir")
    return os.path.abspath(os.path.expanduser(chosen)) if chosen else ""


def directory_below(root: str, agent: int) -> str:
    """The directory of an agent's procs below a `log_dir`."""
    return os.path.join(root, to_base58(agent))


# The variable that the agent of a host without a client exports to its procs.
_OF_HOST = "MONARCH_LOG_DIR_OF_HOST"


def export(agent: int) -> None:
    """Called by an agent before it has procs, so that the logs of its procs and its own are in one directory."""
    os.environ[_OF_HOST] = job_directory(agent)


def directory_of_host(agent: int) -> str:
    """The log directory of a proc whose spawner is on another host. `agent` is the id of the proc's agent in its job."""
    return os.environ.get(_OF_HOST) or job_directory(agent)


def make_private(path: str) -> None:
    """Makes the directory for this user alone, with the missing directories above it.

    `OSError` if it cannot be made, and also if it belongs to another user, can be written by other users, or is a symbolic link: if every
    user may write to the directory above, another user can have made it first. `private_dir` of `capture.rs` does the same for captured
    output.
    """
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        _make_missing(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    # The file types of `stat`. An import of that module would cost more.
    kind, mode = found.st_mode & 0o170000, found.st_mode & 0o777
    if kind == 0o120000:
        reason = "is a symbolic link"
    elif kind != 0o040000:
        reason = "is not a directory"
    elif found.st_uid != os.geteuid():
        reason = f"belongs to user {found.st_uid}, not to user {os.geteuid()}"
    elif mode & 0o022:
        reason = f"can be written by other users (mode {mode:03o})"
    else:
        return
    from errno import EACCES

    raise PermissionError(EACCES, f"{path} {reason}", path)


def _make_missing(path: str) -> None:
    # The mode argument of `makedirs` applies to the last directory only.
    parent = os.path.dirname(path)
    if parent != path and not os.path.isdir(parent):
        _make_missing(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def output_file(mesh: str, rank: int) -> str:
    """The name of a proc's output files below the job's directory, without the stream."""
    return f"{mesh}/{rank}"
