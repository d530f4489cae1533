"""Files of the client on every host, and files of the hosts on the client. The names here are the public ones."""

from monarch.fs._gather.gather_mount import GatherMount, gather
from monarch.fs._hosts.host_answer import HostMountStatus, MountStatus, RefreshReport
from monarch.fs._hosts.mount import Mount, mount
from monarch.fs._push.push import push
from monarch.fs._push.push_counts import PushReport
from monarch.fs._tree.operations import Attr, Entry, MountBackend, MountOptions, StatFs, TreeOperations
from monarch.fs.errors import FsError, MountBusyError, PreflightError, SourceGoneError, StaleSourceError

__all__ = [
    "Attr",
    "Entry",
    "FsError",
    "GatherMount",
    "HostMountStatus",
    "Mount",
    "MountBackend",
    "MountBusyError",
    "MountOptions",
    "MountStatus",
    "PreflightError",
    "PushReport",
    "RefreshReport",
    "SourceGoneError",
    "StaleSourceError",
    "StatFs",
    "TreeOperations",
    "gather",
    "mount",
    "push",
]
