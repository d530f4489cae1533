"""`remotemount` and its handler: a mount of `monarch.fs` that is opened and closed by hand."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from monarch.actor import HostMesh
from monarch.fs import FsError, Mount, mount


class MountHandler:
    """A mount that `open` makes on all hosts and `close` ends; a context manager."""

    __module__ = "monarch.remotemount"

    def __init__(self, host_mesh: HostMesh, sourcepath: str, mntpoint: str | None = None) -> None:
        self.sourcepath = os.path.abspath(sourcepath)
        self.mntpoint = self.sourcepath if mntpoint is None else mntpoint
        self._hosts = host_mesh
        self._mount: Mount | None = None
        self._pid = os.getpid()

    def open(self, via_gateway: bool = False) -> None:
        """Mounts, and waits until every host shows the source. `via_gateway` has no effect: no host needs a route to the client."""
        if self._mount is not None:
            raise FsError("it is open already", path=self.mntpoint)
        made = mount(self._hosts, self.sourcepath, self.mntpoint, pyc="as-is")
        made.ready.get()
        self._mount = made

    def refresh(self, sourcepath: str | None = None) -> None:
        """Shows the source as it is now. The argument has no effect, as in 0.7."""
        if self._mount is None:
            raise FsError("it is not open", path=self.mntpoint)
        self._mount.refresh().get()

    def close(self) -> None:
        """Unmounts. Again: no effect."""
        made, self._mount = self._mount, None
        if made is not None:
            made.close().get()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # In a forked child the mount belongs to the parent.
        if self._pid == os.getpid():
            self.close()


def remotemount(host_mesh: HostMesh, sourcepath: str, mntpoint: str | None = None) -> MountHandler:
    """A handler for a mount of `sourcepath` on all hosts, at `mntpoint` or the same path; nothing is mounted before `open`.

    `$SUBDIR` in `mntpoint` is the key of each host (`hosts_0`).
    """
    return MountHandler(host_mesh, sourcepath, mntpoint)
