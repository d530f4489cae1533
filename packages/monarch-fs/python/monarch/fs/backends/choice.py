"""Which back end serves a mount.

The process that serves decides, because the daemon of a machine may run with another interpreter than the client that mounts.
"""

from __future__ import annotations

from monarch.fs._kernel.interposer import InterposerError
from monarch.fs._kernel.preflight import require_pyfuse3
from monarch.fs._tree.operations import AUTO, DEVICE, PYFUSE3
from monarch.fs.backends.serving import ServingBackend


def make_backend(name: str, fd: int, *, resumed: bool = False) -> ServingBackend:
    """The back end of this name on an open descriptor of a mount.

    `auto` is pyfuse3 where pyfuse3 and its interposer can be loaded, and the device itself otherwise. `ValueError` for another name,
    `ImportError` where `pyfuse3` is asked for and cannot be imported.
    """
    if name in (AUTO, PYFUSE3):
        try:
            if name == AUTO:
                require_pyfuse3()
            from monarch.fs.backends.pyfuse3 import Pyfuse3Backend

            return Pyfuse3Backend(fd, resumed=resumed)
        except (ImportError, InterposerError):
            if name == PYFUSE3:
                raise
    elif name != DEVICE:
        raise ValueError(f"no back end {name!r}: there are {PYFUSE3}, {DEVICE} and {AUTO}")
    from monarch.fs.backends.device import DeviceBackend

    return DeviceBackend(fd, resumed=resumed)
