"""Files of the client on every host, and files of the hosts on the client. The names here are the public ones."""

from monarch.fs.errors import FsError, MountBusyError, PreflightError, SourceGoneError, StaleSourceError

__all__ = ["FsError", "MountBusyError", "PreflightError", "SourceGoneError", "StaleSourceError"]
