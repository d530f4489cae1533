"""Contexts: several jobs of one working directory, one of them active.

`.monarch/<context>/` has the state file and the spec's dotted path; `.monarch/job_state.json` is a symlink to the state file of the active
context, so a program that reads or writes `DEFAULT_JOB_PATH` follows it and needs to know nothing of contexts.
"""

from __future__ import annotations

import contextlib
import os
import re

from monarch.job._files.state_file import DEFAULT_JOB_PATH, replace
from monarch.job.errors import NO_JOB, JobError, StateFileError

FOLDER = os.path.dirname(DEFAULT_JOB_PATH)
DEFAULT = "default"
STATE = "state.json"
SPEC = "spec"
# Another entry of the folder.
_LOGS = "logs"
_TAKEN = frozenset({_LOGS, os.path.basename(DEFAULT_JOB_PATH)})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def logs_folder(apply_id: str) -> str:
    """Where the output of an allocation's workers or script goes, absolute."""
    return os.path.abspath(os.path.join(FOLDER, _LOGS, f"job_{apply_id}"))


def check_name(name: str) -> None:
    """`JobError` for what cannot name a context: it is a directory of its own below `.monarch`."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise JobError(f"'{name}' cannot name a context", hint="letters, digits, '_', '-' and '.', not '.' first, and none of: logs")


def folder(name: str) -> str:
    check_name(name)
    return os.path.join(FOLDER, name)


def state_path(name: str) -> str:
    return os.path.join(folder(name), STATE)


def names() -> list[str]:
    """All contexts of the working directory, sorted."""
    try:
        found = sorted(os.listdir(FOLDER))
    except FileNotFoundError:
        return []
    return [name for name in found if _NAME.fullmatch(name) and name not in _TAKEN and os.path.isdir(os.path.join(FOLDER, name))]


def active() -> str | None:
    """The context that the link names; None without one, or where the link goes elsewhere."""
    try:
        target = os.readlink(DEFAULT_JOB_PATH)
    except OSError:
        return None
    name, slash, file = target.partition("/")
    return name if slash and file == STATE and _NAME.fullmatch(name) else None


def create(name: str) -> None:
    """Makes the context; one that is there already is a `JobError`."""
    path = folder(name)
    _make_folder()
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        raise JobError(f"there is a context '{name}' already") from None


def use(name: str) -> None:
    """Makes the context the active one, in one step. A state file in the place of the link becomes that of the context `default`."""
    if os.path.exists(DEFAULT_JOB_PATH) and not os.path.islink(DEFAULT_JOB_PATH):
        _move_to_default()
    if not os.path.isdir(folder(name)):
        raise unknown(name)
    link = os.path.join(FOLDER, f".link.{os.getpid()}.{os.urandom(4).hex()}")
    os.symlink(os.path.join(name, STATE), link)
    os.replace(link, DEFAULT_JOB_PATH)


def _move_to_default() -> None:
    path = state_path(DEFAULT)
    try:
        os.makedirs(folder(DEFAULT), 0o700, exist_ok=True)
        # `rename` would replace the job that is there.
        os.link(DEFAULT_JOB_PATH, path, follow_symlinks=False)
        os.unlink(DEFAULT_JOB_PATH)
    except FileExistsError:
        raise StateFileError(
            f"is a state file itself, and the context '{DEFAULT}' has another one",
            path=DEFAULT_JOB_PATH,
            hint=f"kill its job with `monarch kill`, or that of the context with `monarch kill {DEFAULT}`",
        ) from None
    except OSError as e:
        raise StateFileError("cannot be moved", path=DEFAULT_JOB_PATH, cause=e.strerror or str(e)) from None


def remove(name: str) -> None:
    """Removes the context with its files; its job must have been killed."""
    path = folder(name)
    if not os.path.isdir(path):
        raise unknown(name)
    was_active = active() == name
    for file in (STATE, SPEC):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, file))
    try:
        os.rmdir(path)
    except OSError as e:
        raise StateFileError("cannot be removed", path=path, cause=e.strerror or str(e)) from None
    if was_active:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(DEFAULT_JOB_PATH)


def unknown(name: str) -> JobError:
    return JobError(f"no context '{name}', there is: {', '.join(names()) or 'none'}", code=NO_JOB)


def prepare() -> None:
    """Makes sure that `DEFAULT_JOB_PATH` can be written: without a context there is one named `default` then."""
    if os.path.lexists(DEFAULT_JOB_PATH):
        name = active()
        if name is not None:
            os.makedirs(os.path.join(FOLDER, name), 0o700, exist_ok=True)
        return
    _make_folder()
    os.makedirs(os.path.join(FOLDER, DEFAULT), 0o700, exist_ok=True)
    try:
        os.symlink(os.path.join(DEFAULT, STATE), DEFAULT_JOB_PATH)
    except FileExistsError:
        pass  # another process was faster


def spec(name: str | None = None) -> str | None:
    """The dotted path of the spec of that context, or of the active one."""
    name = name or active()
    if name is None:
        return None
    try:
        with open(os.path.join(FOLDER, name, SPEC), encoding="utf-8") as f:
            return f.read().strip() or None
    except FileNotFoundError:
        return None


def set_spec(dotted: str) -> None:
    prepare()
    path = os.path.join(FOLDER, active() or DEFAULT, SPEC)
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    replace(path, f"{dotted}\n".encode())


def _make_folder() -> None:
    try:
        os.makedirs(FOLDER, 0o700, exist_ok=True)
    except OSError as e:
        raise StateFileError("cannot be made", path=FOLDER, cause=e.strerror or str(e)) from None
