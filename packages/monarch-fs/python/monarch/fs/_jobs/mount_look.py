"""A look at mount points of hosts: whether the mount of a job has gone there, or another client uses it too."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from monarch.actor import Actor, MonarchError, current_rank, endpoint
from monarch.fs._kernel.mount_table import mount_row
from monarch.fs._tree.point_key import path_on, point_key

if TYPE_CHECKING:
    from monarch.actor import HostMesh

# Seconds for the answers, in addition to the time to wait.
_ANSWER_SECONDS = 10.0


class MountLook(Actor):
    """Looks at the mounts of its host."""

    @endpoint
    def staying(self, target: str, seconds: float) -> tuple[str, str] | None:
        """The path and this host's name where a mount of Monarch is there after `seconds`; None once there is none."""
        target = path_on(target, point_key(current_rank()))
        end = time.monotonic() + seconds
        changed = select.poll()
        with open("/proc/self/mounts") as f:
            changed.register(f, select.POLLPRI)
            while True:
                row = mount_row(target)
                if row is None or row.kind != "fuse.monarch":
                    return None
                if time.monotonic() >= end:
                    return target, os.uname().nodename
                changed.poll(max(end - time.monotonic(), 0.0) * 1000)


def still_mounted(hosts: Mapping[str, HostMesh], target: str, seconds: float) -> str:
    """A line for each host that has a mount at the path after `seconds`, or that does not answer; "" for none."""
    lines: list[str] = []
    looks = {name: mesh.spawn_procs(name="mount_look") for name, mesh in hosts.items()}
    asked = {name: procs.spawn("mount_look", MountLook).staying.call(target, seconds) for name, procs in looks.items()}
    for name, future in asked.items():
        try:
            for point, found in future.get(seconds + _ANSWER_SECONDS).items():
                if found is not None:
                    lines.append(f"{found[0]} is still mounted on {name}[{point.rank}] ({found[1]}): another client uses it")
        except (MonarchError, TimeoutError) as e:
            lines.append(f"{target} may still be mounted on hosts of {name}: {str(e).splitlines()[0]}")
    for procs in looks.values():
        procs.stop()
    return "\n".join(lines)
