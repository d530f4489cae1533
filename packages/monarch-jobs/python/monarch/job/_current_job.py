"""Which job the program and the command `monarch` mean: a dotted path, kept with the active context."""

from __future__ import annotations

from monarch.job._files import contexts
from monarch.job._trait import JobTrait
from monarch.job.errors import NO_JOB, JobError


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
    import importlib

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
