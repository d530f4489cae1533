"""State files: JSON, schema 1, for this user alone, replaced in one step.

A process that can write a job's file can make its owner connect to other machines and cancel other allocations. So a file that belongs to
another user, or that others may write to, is refused; so is a pickle, whose loading would run code.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

from monarch.job.errors import NO_JOB, StateFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.job._files.state_schema import StateRecord

# The state file of the active context.
DEFAULT_JOB_PATH = ".monarch/job_state.json"
SCHEMA = 1
# The largest depth of nesting of a state file, the whole file being level one, and the largest whole number: process ids, ports and times
# are smaller.
_DEEPEST, _LARGEST = 32, 1 << 63
# Bytes, far more than thousands of hosts need; a larger file is no state file.
_LIMIT = 64 << 20


def encode(kind: str, apply_id: str | None, active: bool, attributes: dict[str, Any], features: Sequence[dict[str, Any]] = ()) -> bytes:
    """The content of a state file; `TypeError` names the attribute that JSON cannot hold."""
    for feature in features:
        problem = _problem(f"feature {feature['name']}", feature)
        if problem is not None:
            raise TypeError(problem)
    for name, value in attributes.items():
        problem = _problem(name, value)
        if problem is not None:
            raise TypeError(problem)
    record: dict[str, Any] = {"schema": SCHEMA, "kind": kind, "apply_id": apply_id, "active": active, "job": attributes}
    if features:
        record["features"] = list(features)
    return json.dumps(record, indent=2, allow_nan=False).encode() + b"\n"


def _problem(place: str, value: Any) -> str | None:
    """Where and why JSON cannot hold the value; None where it can."""
    if value is None or isinstance(value, bool | int | str):
        return None
    if isinstance(value, float):
        return None if value - value == 0 else f"attribute '{place}' is {value}"
    if isinstance(value, dict):
        for key, item in _items(value):
            if not isinstance(key, str):
                return f"attribute '{place}' has the key {key!r}, and JSON has text there"
            if found := _problem(f"{place}.{key}", item):
                return found
        return None
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return next((found for i, item in enumerate(items) if (found := _problem(f"{place}[{i}]", item))), None)
    return f"attribute '{place}' is of type {type(value).__name__}, which JSON cannot hold"


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items())


def parse(data: bytes, path: str) -> StateRecord:
    """The fields of the content; `StateFileError` with line and field."""
    _refuse_pickle(data, path)
    try:
        found: Any = json.loads(data)
    except json.JSONDecodeError as e:
        raise StateFileError(
            "is not JSON", path=path, line=e.lineno, cause=e.msg, hint="remove it if its job is over, and apply the job again"
        ) from None
    except UnicodeDecodeError:
        raise StateFileError("is not JSON", path=path, cause="it is not UTF-8 text") from None
    except RecursionError:
        raise _malformed(path, "is nested too deeply") from None
    except ValueError:  # more digits than Python converts
        raise _malformed(path, "has a number that is too large") from None
    if not isinstance(found, dict) or "schema" not in found:
        raise StateFileError("is no state file of a job", path=path, cause="the field 'schema' is missing")
    schema: Any = found["schema"]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(schema, bool) or not isinstance(schema, int) or schema != SCHEMA:
        raise StateFileError(
            f"is schema {schema!r}, this version of monarch-jobs reads schema {SCHEMA}",
            path=path,
            line=_line_of(data, "schema"),
            field="schema",
            hint="use the version that wrote it, at least to kill its job",
        )
    if (problem := _unbounded("", found)) is not None:
        raise _malformed(path, *problem)
    # pydantic takes longer to load than most commands take to run.
    from monarch.job._files.state_schema import StateRecord

    try:
        return StateRecord.model_validate(found)
    except ValueError as e:
        raise invalid(e, data, path) from None


def invalid(error: Exception, data: bytes, path: str) -> StateFileError:
    """The error for content that is no job: the first problem that a model of pydantic names, or another error's text."""
    if hasattr(error, "errors"):
        complaint: Any = error
        first: dict[str, Any] = complaint.errors()[0]
        place = [str(part) for part in first["loc"]]
        line = _line_of(data, place[-1]) if place else None
        return StateFileError(first["msg"], path=path, line=line, field=".".join(place) or None)
    return StateFileError("has malformed content", path=path, field="job", cause=str(error))


def _line_of(data: bytes, field: str) -> int | None:
    at = data.find(json.dumps(field).encode())
    return None if at < 0 else data.count(b"\n", 0, at) + 1


def _malformed(path: str, what: str, field: str | None = None) -> StateFileError:
    return StateFileError(what, path=path, field=field, hint="remove it if its job is over, and apply the job again")


def _unbounded(place: str, value: Any) -> tuple[str, str] | None:
    """What no job has written: problem and field of a number or of a nesting beyond all bounds."""
    pending: list[tuple[str, Any, int]] = [(place, value, 1)]
    while pending:
        place, value, depth = pending.pop()
        if isinstance(value, int | float) and not -_LARGEST <= value < _LARGEST:
            return "has a number that is too large", place
        inside: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            inside = _items(value)
        elif isinstance(value, list):
            inside = list(enumerate(value))  # pyright: ignore[reportUnknownArgumentType]
        if inside and depth >= _DEEPEST:
            return "is nested too deeply", place
        pending += [(f"{place}.{key}" if place else str(key), item, depth + 1) for key, item in inside]
    return None


def _refuse_pickle(data: bytes, path: str) -> None:
    # Every pickle since protocol 2 begins with 0x80; one of protocol 0 or 1 ends with a dot, which JSON cannot.
    if data[:1] == b"\x80" or (data[-1:] == b"." and not data.lstrip().startswith(b"{")):
        raise StateFileError(
            "is a pickle, and loading one would run whatever code is in it",
            path=path,
            hint="end its job with the scheduler's own command, remove the file and apply the job again",
        )


def no_such_job(path: str) -> StateFileError:
    """The error for a job whose file is missing."""
    return StateFileError("no such job", path=path, code=NO_JOB, hint="`monarch apply MODULE.ATTRIBUTE`, or the script, makes one")


def read(path: str) -> bytes:
    """The contents of the file; a missing one is a `StateFileError` with code `no_such_job`."""
    data = read_if_there(path)
    if data is None:
        raise StateFileError("no such job", path=path, code=NO_JOB)
    return data


def apply_id_of(data: bytes, path: str) -> str | None:
    """The allocation that a state file is about, whatever class its job is of."""
    return parse(data, path).apply_id


def read_if_there(path: str) -> bytes | None:
    """The contents of the file; None without one."""
    try:
        _check_link(path)
        # A pipe with this name must not block the reader.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise os_error("cannot be read", path, e) from None
    try:
        _check_file(path, os.fstat(fd))
        return os.read(fd, _LIMIT)
    finally:
        os.close(fd)


def _check_file(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise StateFileError("is not a file", path=path)
    _check_owner(path, found, "and who can write it decides which machines are used")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        raise StateFileError(f"is writable by others (mode {mode:o})", path=path, hint=f"look at it, then: chmod 600 {path}")
    if found.st_size > _LIMIT:
        raise StateFileError(f"is no state file: {found.st_size} bytes", path=path)


def _check_link(path: str) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        _check_owner(path, found, "and is a symlink")


def _check_owner(path: str, found: os.stat_result, why: str) -> None:
    if found.st_uid != os.geteuid():
        raise StateFileError(
            f"belongs to another user (uid {found.st_uid}), {why}", path=path, hint="work in a directory of your own, or remove the file"
        )


def write(path: str, data: bytes) -> str:
    """Replaces the file in one step, 0600; follows a symlink. Returns where the file really is."""
    try:
        real = _replaceable(path)
        os.makedirs(os.path.dirname(real), 0o700, exist_ok=True)
        replace(real, data)
    except OSError as e:
        raise os_error("cannot be written", path, e) from None
    return real


def _replaceable(path: str) -> str:
    """Where the file really is; `StateFileError` for one of another user."""
    try:
        _check_link(path)
    except FileNotFoundError:
        pass
    real = os.path.realpath(path)
    try:
        found = os.lstat(real)
    except FileNotFoundError:
        return real
    _check_owner(path, found, "and is not replaced")
    if not stat.S_ISREG(found.st_mode):
        raise StateFileError("is not a file", path=path)
    return real


def replace(path: str, data: bytes) -> None:
    """Puts a private file in the place of what is there, in one step."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def remove(path: str, apply_id: str | None) -> None:
    """Removes the file if it still is of this allocation."""
    try:
        data = read_if_there(path)
        if data is None or apply_id_of(data, path) != apply_id:
            return
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise os_error("cannot be removed", path, e) from None


def os_error(what: str, path: str, error: OSError) -> StateFileError:
    return StateFileError(what, path=path, cause=error.strerror or str(error))
