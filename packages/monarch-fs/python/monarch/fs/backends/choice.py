"""Which back end serves a mount."""

from __future__ import annotations

from monarch.fs._tree.operations import DEVICE, PYFUSE3
from monarch.fs.backends.serving import ServingBackend


def make_backend(name: str, fd: int, *, resumed: bool = False) -> ServingBackend:
    """The back end of this name on an open descriptor of a mount.

    `ValueError` for another name, `ImportError` where it is not installed.
    """
    if name == DEVICE:
        from monarch.fs.backends.device import DeviceBackend

        return DeviceBackend(fd, resumed=resumed)
    if name == PYFUSE3:
        from monarch.fs.backends.pyfuse3 import Pyfuse3Backend

        return Pyfuse3Backend(fd, resumed=resumed)
    raise ValueError(f"no back end {name!r}: there are {DEVICE} and {PYFUSE3}")
