"""Jobs in state files: which class a saved job is of, and the way from a job to the content of its file and back.

A kind in a file stands for a built-in class, for an entry point of group `monarch.launcher`, or for an imported subclass.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, TypeVar

from monarch.job._files import contexts, state_file
from monarch.job._files.state_file import DEFAULT_JOB_PATH
from monarch.job._job import hooks
from monarch.job._job.features import Carried
from monarch.job._job.history import History
from monarch.job.errors import BackendMissingError, JobError, StateFileError

GROUP = "monarch.launcher"
# The table avoids a scan of the installed packages, which takes time, and works in a checkout.
BUILT_IN = {
    "attach": "monarch.job.attach:AttachJob",
    "batch": "monarch.job.local:BatchJob",
    "kubernetes": "monarch.job.kubernetes:KubernetesJob",
    "local": "monarch.job.local:LocalJob",
    "process": "monarch.job.process:ProcessJob",
    "slurm": "monarch.job.slurm:SlurmJob",
    "spmd": "monarch.job.spmd:SPMDJob",
    "ssh": "monarch.job.ssh:SSHJob",
    "store": "monarch.job.store:StoreJob",
    "torchx": "monarch.job.torchx:TorchXJob",
}
# The class for factories of launchers.
_ADAPTED = "monarch.job._job.launcher_job:AdaptedJob"


class Saved:
    """The fields that a job and its state file share."""

    def __init__(self) -> None:
        self.apply_id: str | None = None
        self.active = False
        # The path of the file that the job was last read from or written to, absolute, and its content then.
        self.path: str | None = None
        self.content: bytes | None = None
        # The job was read from a file, so another process may have applied it.
        self.loaded = False
        # The features of the job, in the order in which they were added.
        self.features: list[Carried] = []
        # The events of the job, as far as this process knows them.
        self.history = History()


class SavedJob(hooks.Job, Protocol):
    """A job, as far as this module needs it."""

    @property
    def __core__(self) -> Saved: ...


J = TypeVar("J", bound=SavedJob)


def kind_of(job: hooks.Job) -> str:
    """What stands for the job's class in a file."""
    cls = type(job)
    return job.kind or f"{cls.__module__}:{cls.__qualname__}"


def class_of(kind: str) -> Any:
    """A built-in class."""
    return _named(BUILT_IN[kind])


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def resolve(kind: str, base: type[J]) -> Callable[[], J]:
    """Makes an empty job of that kind, for `_load`; `JobError` names what has to be imported or installed."""
    found = _found(kind, base)
    if isinstance(found, type) and issubclass(found, base):
        cls: type[J] = found
        return lambda: cls.__new__(cls)
    if callable(found):  # pyright: ignore[reportUnknownArgumentType]
        return lambda: _named(_ADAPTED).of_kind(kind)
    raise JobError(f"'{kind}' is neither a JobTrait subclass nor a factory of launchers")


def make(kind: str, arguments: Mapping[str, Any], base: type[J]) -> J:
    """A new job of that kind: the arguments are the constructor's, or those of a factory of launchers."""
    found = _found(kind, base)
    made: J = found(**arguments) if isinstance(found, type) and issubclass(found, base) else _named(_ADAPTED)(kind, arguments)
    return made


def _found(kind: str, base: type[J]) -> Any:
    if kind in BUILT_IN:
        return class_of(kind)
    module, colon, name = kind.partition(":")
    if colon:
        return _imported(module, name, kind, base)
    return launcher_factory(kind)


def launcher_factory(kind: str) -> Any:
    """The object of an entry point of the group."""
    # Only a job of another wheel needs the list of installed packages.
    from monarch.extension import BrokenEntry, load_entry

    found = load_entry(GROUP, kind)
    if found is None:
        raise BackendMissingError(
            f"no backend '{kind}' is installed", hint=f"install the wheel that has '{kind}' in the entry-point group {GROUP}"
        )
    if isinstance(found, BrokenEntry):
        raise BackendMissingError(f"the backend '{kind}' cannot be loaded", cause=found.describe(), hint=found.todo)
    return found.value


def _imported(module: str, name: str, kind: str, base: type[J]) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        # A file must not decide which module is imported: that would run code.
        raise JobError(f"the job is of class {kind}, which is not imported", hint=f"import {module} before loading the job")
    return found


def encode(job: SavedJob) -> bytes:
    """The job as JSON; `JobError` names the attribute that JSON cannot hold."""
    life = job.__core__
    try:
        return state_file.encode(kind_of(job), life.apply_id, life.active, hooks.dump(job), [one.encode() for one in life.features])
    except TypeError as e:
        hint = "end the attribute's name with '_' to leave it out, or define _dump and _load"
        raise JobError(f"cannot be saved: {e}", title=hooks.title(job), hint=hint) from None


def decode(data: bytes, base: type[J], path: str = "the data") -> J:
    """The job of such JSON; `StateFileError` with line and field."""
    record = state_file.parse(data, path)
    try:
        job = resolve(record.kind, base)()
    except JobError as e:
        raise StateFileError(str(e).splitlines()[0], path=path, field="kind", hint=e.hint) from e
    try:
        hooks.load(job)(record.job)
    except KeyError as e:
        raise StateFileError(f"has no field {e}", path=path, field="job") from e
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as e:  # pydantic's errors are ValueErrors
        raise state_file.invalid(e, data, path) from e
    life = job.__core__
    life.apply_id, life.active = record.apply_id, record.active
    life.features = [Carried(one.name, one.configured, one.saved) for one in record.features]
    return job


def load(path: str, base: type[J]) -> J:
    """The job of the file. A missing `X.pkl` tries `X.json`; a missing file is a `StateFileError` with code `no_such_job`."""
    found = load_if_there(path, base)
    if found is None and path.endswith(".pkl"):
        found = load_if_there(path.removesuffix(".pkl") + ".json", base)
    if found is None:
        raise state_file.no_such_job(path)
    return found


def load_if_there(path: str, base: type[J]) -> J | None:
    """The job of the file, None where there is no file."""
    data = state_file.read_if_there(path)
    if data is None:
        return None
    job = decode(data, base, path)
    life = job.__core__
    life.path, life.content, life.loaded = os.path.realpath(path), data, True
    return job


def changed(job: J, base: type[J]) -> J | None:
    """The job as another process has saved it since this one has read or written its state file; None where no process has."""
    life = job.__core__
    if life.path is None or life.content is None:
        return None
    data = state_file.read_if_there(life.path)
    if data is None or data == life.content or state_file.apply_id_of(data, life.path) != life.apply_id:
        return None
    found = decode(data, base, life.path)
    if type(found) is not type(job):
        return None
    life.content = data
    return found


def write(path: str, job: SavedJob, *, is_own: bool = True) -> None:
    """Writes the job in one step, 0600; follows a symlink. Its own file is removed when the job is killed."""
    data = encode(job)
    if os.path.normpath(path) == DEFAULT_JOB_PATH:
        try:
            contexts.prepare()
        except OSError as e:
            raise state_file.os_error("cannot be written", path, e) from None
    real = state_file.write(path, data)
    if is_own:
        life = job.__core__
        life.path, life.content = real, data
