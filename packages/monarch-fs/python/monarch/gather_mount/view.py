"""`gather_mount`, with the arguments of 0.7."""

from __future__ import annotations

from monarch.actor import HostMesh
from monarch.fs import GatherMount, gather


def gather_mount(host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str) -> GatherMount:
    """Shows a directory of each host at `local_mount_point`, live and read-only; mounted on return."""
    return gather(host_mesh, remote_mount_point, local_mount_point)
