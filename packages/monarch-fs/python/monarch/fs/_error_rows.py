"""The errors of this wheel, by its entry point of the group `monarch.errors`."""

from __future__ import annotations

from monarch.extension import ErrorRow
from monarch.fs.errors import FsError, MountBusyError, PreflightError, SourceGoneError, StaleSourceError

ROWS = (
    ErrorRow("fs_failed", FsError, "anything below; the base of what `monarch.fs` raises", "{what}"),
    ErrorRow("fs_preflight", PreflightError, "a host lacks what a mount needs; nothing is mounted", "{what}"),
    ErrorRow("fs_busy", MountBusyError, "another file system is mounted there, or a mount point is in use", "{what}"),
    ErrorRow("fs_stale", StaleSourceError, "files of the source have changed or were removed since it was indexed", "{what}"),
    ErrorRow("fs_source_gone", SourceGoneError, "the process that serves the source ended before all bytes were delivered", "{what}"),
)
