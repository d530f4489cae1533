"""What the `kind` in a state file stands for: a built-in, an entry point of group `monarch.launcher`, or an imported subclass."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from monarch.job._trait import JobTrait
from monarch.job.errors import BackendMissingError, JobError

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = "monarch.launcher"
# Found without looking at what is installed, which takes time, and works from a checkout.
BUILT_IN = {
    "attach": ("attach", "AttachJob"),
    "batch": ("local", "BatchJob"),
    "local": ("local", "LocalJob"),
    "process": ("process", "ProcessJob"),
    "slurm": ("slurm", "SlurmJob"),
    "ssh": ("ssh", "SSHJob"),
}


def kind_of(job: JobTrait) -> str:
    """What stands for the job's class in a file."""
    cls = type(job)
    return job.kind or f"{cls.__module__}:{cls.__qualname__}"


def resolve(kind: str) -> Callable[[], JobTrait]:
    """Makes an empty job of that kind, for `_load`; `JobError` names what has to be imported or installed."""
    cls = _class(kind)
    if isinstance(cls, type) and issubclass(cls, JobTrait):
        made: type[JobTrait] = cls
        return lambda: made.__new__(made)
    if callable(cls):  # pyright: ignore[reportUnknownArgumentType]
        from monarch.job._adapted import AdaptedJob

        return lambda: AdaptedJob.of_kind(kind)
    raise JobError(f"'{kind}' is neither a JobTrait subclass nor a factory of launchers")


def _class(kind: str) -> Any:
    if kind in BUILT_IN:
        from importlib import import_module

        module, name = BUILT_IN[kind]
        return getattr(import_module(f"monarch.job.{module}"), name)
    module, colon, name = kind.partition(":")
    if colon:
        return _imported(module, name, kind)
    return launcher_factory(kind)


def launcher_factory(kind: str) -> Any:
    """What an entry point of the group names."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=kind):
        try:
            return entry.load()
        except ImportError as e:
            raise BackendMissingError(f"the backend '{kind}' cannot be loaded", cause=f"{type(e).__name__}: {e}") from e
    raise BackendMissingError(
        f"no backend '{kind}' is installed", hint=f"install the wheel that has '{kind}' in the entry-point group {GROUP}"
    )


def _imported(module: str, name: str, kind: str) -> Any:
    found: Any = sys.modules.get(module)
    if found is None and module == "__main__":
        found = None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, JobTrait)):
        # A file must not decide what is imported: that would run code.
        raise JobError(f"the job is of class {kind}, which is not imported", hint=f"import {module} before loading the job")
    return found
