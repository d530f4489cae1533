"""The exceptions of mounts and trees. A message starts with the path and the host concerned."""

from __future__ import annotations

import errno as errnos
from collections.abc import Mapping, Sequence
from typing import Any, Self

from monarch.actor import MonarchError


class FsError(MonarchError, OSError):
    """The base of what `monarch.fs` raises at run time; misuse is a `ValueError` or a `TypeError` at the call.

    `path` is the file or mount point, `host` the name of the host or "" for the client, `reason` the cause in one sentence.
    """

    __module__ = "monarch.fs"
    _default_code = "fs_failed"
    host: str = ""
    path: str = ""
    reason: str = ""

    def __new__(cls, *args: Any, **_: Any) -> Self:  # pyright: ignore[reportInconsistentConstructor]
        return OSError.__new__(cls, *args[:1])

    def __init__(
        self, reason: str, *, path: str = "", host: str = "", hint: str | None = None, code: str | None = None, errno: int = errnos.EIO
    ) -> None:
        place = path if not host else f"{path} on {host}" if path else host
        lines = [f"{place}: {reason}" if place else reason]
        if hint:
            lines.append(f"hint: {hint}")
        text = "\n".join(lines)
        super().__init__(text, code=code, hint=hint)
        # `OSError` sets the arguments of `__new__`: those of a subclass, not the text.
        self.args = (text,)
        self.path, self.host, self.reason, self.errno = path, host, reason, errno

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args[0], self.__dict__ | {"errno": self.errno})


def _restored(kind: type[FsError], text: str, state: dict[str, Any]) -> FsError:
    error = kind.__new__(kind)
    error.args = (text,)
    error.__setstate__(state)
    return error


class PreflightError(FsError):
    """Hosts lack what a mount needs; nothing has been mounted. `missing` has what each host lacks, with the remedy."""

    __module__ = "monarch.fs"
    _default_code = "fs_preflight"

    def __init__(self, missing: Mapping[str, Sequence[str]], *, path: str = "") -> None:
        table = "\n".join(f"  {host}: {'; '.join(lines)}" for host, lines in missing.items())
        hosts = ", ".join(list(missing)[:3]) + (" and others" if len(missing) > 3 else "")
        super().__init__(
            f"{len(missing)} host{'s' if len(missing) != 1 else ''} cannot mount\n{table}", path=path, host=hosts, errno=errnos.ENODEV
        )
        self.missing = {host: list(lines) for host, lines in missing.items()}


class MountBusyError(FsError):
    """Another file system is mounted at the target, or the target could not be unmounted; the text names what or which processes."""

    __module__ = "monarch.fs"
    _default_code = "fs_busy"

    def __init__(self, reason: str, *, path: str = "", host: str = "", hint: str | None = None) -> None:
        super().__init__(reason, path=path, host=host, hint=hint, errno=errnos.EBUSY)


class StaleSourceError(FsError):
    """Files of the source have changed since it was indexed, or were removed: `paths`, relative to it. `refresh()` is the remedy.

    `removed` has those of the paths at which nothing is any more; the text names both groups apart.
    """

    __module__ = "monarch.fs"
    _default_code = "fs_stale"

    def __init__(self, paths: Sequence[str], *, removed: Sequence[str] = (), path: str = "", hint: str = "call refresh()") -> None:
        gone = set(removed)
        groups = {"changed": [name for name in paths if name not in gone], "removed": [name for name in paths if name in gone]}
        text = "; ".join(f"{_counted(names)} {what} since the index: {_listed(names)}" for what, names in groups.items() if names)
        super().__init__(text, path=path, hint=hint, errno=errnos.ESTALE)
        self.paths, self.removed = list(paths), groups["removed"]


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} file{'s' if len(names) != 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class SourceGoneError(FsError):
    """The process that serves the source ended before all bytes were delivered: `missing` has the bytes that each host lacks."""

    __module__ = "monarch.fs"
    _default_code = "fs_source_gone"

    def __init__(self, missing: Mapping[str, int], *, path: str = "") -> None:
        table = "\n".join(f"  {host}: {count} bytes missing" for host, count in missing.items())
        super().__init__(f"the source left before everything was delivered\n{table}", path=path, errno=errnos.EIO)
        self.missing = dict(missing)
