"""Files of the client on every host, and files of the hosts on the client: the public names. Each is loaded on first use."""

from __future__ import annotations

from monarch.extension.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.fs._gather.gather_mount import GatherMount as GatherMount
    from monarch.fs._gather.gather_mount import gather as gather
    from monarch.fs._hosts.host_answer import HostMountStatus as HostMountStatus
    from monarch.fs._hosts.host_answer import MountStatus as MountStatus
    from monarch.fs._hosts.host_answer import RefreshReport as RefreshReport
    from monarch.fs._hosts.mount import Mount as Mount
    from monarch.fs._hosts.mount import mount as mount
    from monarch.fs._push.push import push as push
    from monarch.fs._push.push_counts import PushReport as PushReport
    from monarch.fs._tree.operations import Attr as Attr
    from monarch.fs._tree.operations import Entry as Entry
    from monarch.fs._tree.operations import MountBackend as MountBackend
    from monarch.fs._tree.operations import MountOptions as MountOptions
    from monarch.fs._tree.operations import StatFs as StatFs
    from monarch.fs._tree.operations import TreeOperations as TreeOperations
    from monarch.fs.errors import FsError as FsError
    from monarch.fs.errors import MountBusyError as MountBusyError
    from monarch.fs.errors import PreflightError as PreflightError
    from monarch.fs.errors import SourceGoneError as SourceGoneError
    from monarch.fs.errors import StaleSourceError as StaleSourceError

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "_gather.gather_mount": ("GatherMount", "gather"),
    "_hosts.host_answer": ("HostMountStatus", "MountStatus", "RefreshReport"),
    "_hosts.mount": ("Mount", "mount"),
    "_push.push": ("push",),
    "_push.push_counts": ("PushReport",),
    "_tree.operations": ("Attr", "Entry", "MountBackend", "MountOptions", "StatFs", "TreeOperations"),
    "errors": ("FsError", "MountBusyError", "PreflightError", "SourceGoneError", "StaleSourceError"),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES)
