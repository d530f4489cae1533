"""The directory of a job's log files on one machine: the output of its procs and the runtime's own log.

It is made by who first writes there, for this user alone. Named after the agent, so that every process of the job finds the same one.
"""

from __future__ import annotations

import os

from monarch._core.config import config
from monarch._core.process.identity import to_base58


def job_directory(agent: int) -> str:
    """Where the logs of the agent's procs go by the settings of this process: below `log_dir`, else below the temporary directory."""
    root = log_root()
    if root:
        return directory_below(root, agent)
    # What `tempfile` looks at first; it is not worth its import.
    temporary = next((v for v in map(os.environ.get, ("TMPDIR", "TEMP", "TMP")) if v), "/tmp")
    return os.path.join(os.path.abspath(temporary), f"monarch-{to_base58(agent)}")


def log_root() -> str:
    """The setting `log_dir` of this process as an absolute path; empty without one."""
    chosen: str = config.value("log_dir")
    return os.path.abspath(os.path.expanduser(chosen)) if chosen else ""


def directory_below(root: str, agent: int) -> str:
    """The directory of an agent's procs below a `log_dir`."""
    return os.path.join(root, to_base58(agent))


# What an agent of other hosts' clients exports to its procs.
_OF_HOST = "MONARCH_LOG_DIR_OF_HOST"


def export(agent: int) -> None:
    """Called by an agent, before it has procs: whoever spawns them, what they write down is with what it does."""
    os.environ[_OF_HOST] = job_directory(agent)


def directory_of_host(agent: int) -> str:
    """Where a proc writes whose spawner is on another host; `agent` is what its agent is called in its job."""
    return os.environ.get(_OF_HOST) or job_directory(agent)


def make_private(path: str) -> None:
    """Makes the directory; `OSError` if it cannot be made or belongs to somebody else."""
    os.makedirs(path, 0o700, exist_ok=True)
    found = os.lstat(path)
    if found.st_uid != os.geteuid():
        from errno import EPERM

        raise PermissionError(EPERM, "it belongs to another user", path)


def output_file(mesh: str, rank: int) -> str:
    """The name of a proc's output files below the job's directory, without the stream."""
    return f"{mesh}/{rank}"
