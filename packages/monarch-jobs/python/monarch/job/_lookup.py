"""Jobs that are there already: out of files and bytes, the current job of the directory, and hosts by the name of a mesh."""

from __future__ import annotations

import atexit
import importlib
import os
from typing import TYPE_CHECKING, Any

from monarch.job._files import contexts, state_file
from monarch.job._files.state_file import DEFAULT_JOB_PATH
from monarch.job._job import hooks, saved
from monarch.job._job.trait import JobTrait, reconnect
from monarch.job.errors import NO_JOB, JobError, StateFileError

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.job._job.job_state import JobState

_LOCAL_HOSTS = 2


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """The job of a state file; a missing `X.pkl` tries `X.json`. `StateFileError` names the fault of the file."""
    return saved.load(os.fspath(filename), JobTrait)


def job_loads(data: bytes) -> JobTrait:
    """The job of what `dumps` gave."""
    return saved.decode(bytes(data), JobTrait)


def job_of_kind(kind: str, /, **arguments: Any) -> JobTrait:
    """A new job of a backend by its name: `slurm` and the like, or the name of an entry point of the group `monarch.launcher`.

    The arguments are those of the JobTrait subclass. Where the entry point is a factory of launchers, they are the factory's, plain JSON,
    and `meshes` has the number of hosts of each mesh. `BackendMissingError` where no wheel has that backend; `TypeError` and `ValueError`
    name wrong arguments.

        job = job_of_kind("process", meshes={"trainers": 2})
    """
    return saved.make(kind, arguments, JobTrait)


def set_current_job(module_path: str) -> None:
    """Makes `module.attribute`, which has to be a job, the spec of the active context."""
    resolve(module_path)
    contexts.set_spec(module_path)


def load_current_job() -> JobTrait:
    """The spec of the active context, imported; `JobError` if none is set or it is no job."""
    found = contexts.spec()
    if found is None:
        raise JobError("no current job is set", code=NO_JOB, hint="`monarch apply MODULE.ATTRIBUTE`, or set_current_job(), sets one")
    return resolve(found)


def resolve(module_path: str) -> JobTrait:
    """The job that `module.attribute` names; `ValueError`, `ImportError` or `TypeError` if there is none."""
    module, dot, attribute = module_path.rpartition(".")
    if not dot or not all(part.isidentifier() for part in module_path.split(".")):
        raise ValueError(f"expected MODULE.ATTRIBUTE, not '{module_path}'")
    loaded = importlib.import_module(module)
    if not hasattr(loaded, attribute):
        raise ImportError(f"module '{module}' has no attribute '{attribute}'", name=module)
    found: object = getattr(loaded, attribute)
    if not isinstance(found, JobTrait):
        raise TypeError(f"{module_path} is of type {type(found).__name__}, not a job")
    return found


def attach_current_job() -> tuple[JobTrait, JobState]:
    """The job of the active context and its meshes; submits nothing, and starts no feature.

    `JobError` with code `no_such_job` where there is none, `JobEndedError` where it is over.
    """
    from monarch.job.local import LocalJob

    job = current_job()
    if isinstance(job, LocalJob) and job.process is None:
        # The host is this machine, which does not end.
        return job, hooks.state(job)
    return job, reconnect(job)


def current_job() -> JobTrait:
    """The job of the active context; `JobError` with code `no_such_job` where there is none."""
    job = loaded(DEFAULT_JOB_PATH, None)
    if job is None:
        raise state_file.no_such_job(DEFAULT_JOB_PATH)
    return job


def loaded(path: str, context: str | None) -> JobTrait | None:
    """The job of a state file, None without one. The module of the context's spec is imported where the job's class is not."""
    if state_file.read_if_there(path) is None:
        return None
    try:
        return saved.load_if_there(path, JobTrait)
    except StateFileError as e:
        spec = contexts.spec(context)
        if e.field != "kind" or spec is None:
            raise
        # The user named the module to `monarch apply`; the file did not.
        importlib.import_module(spec.rpartition(".")[0])
        return saved.load_if_there(path, JobTrait)


def hosts_from_config(name: str) -> HostMesh:
    """The mesh `name` of the current job; without a current job, two hosts that are processes of this machine."""
    if contexts.spec() is not None:
        return load_current_job().state()[name]
    # pydantic, which that module needs, takes longer to load than all others, so it is only loaded without a current job.
    from monarch.job.process import ProcessJob

    job = ProcessJob({name: _LOCAL_HOSTS})
    state = job.state(cached_path=None)
    # No other process knows of it.
    atexit.register(job.kill)
    return state[name]
