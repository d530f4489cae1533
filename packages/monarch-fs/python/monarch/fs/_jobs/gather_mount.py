"""The feature behind `job.gather_mount`: directories of the hosts of a job on the client, shown by the job's keeper.

The keeper mounts, so the view goes on when the script has ended; `kill()` unmounts it.
"""

from __future__ import annotations

import os
from typing import Any

from monarch.fs._jobs.keeper_failure import raised_here
from monarch.fs._jobs.kept_gather import GATHER
from monarch.fs._jobs.kept_mount import chosen
from monarch.fs._tree.point_key import remote_path
from monarch.job import FeatureHosts, JobFeature, Keeper, Offer


class GatherMountFeature(JobFeature):
    """`remote_mount_point` of the hosts of `meshes`, by default all, below `local_mount_point`.

    A job with several meshes has a directory for each: `<local>/<mesh>/<key>`. `$SUBDIR` in the remote path is the key. `ValueError` for a
    remote path that is not absolute, and for no mesh.
    """

    several = True
    needs_hosts = True

    def __init__(self, remote_mount_point: str, local_mount_point: str, meshes: list[str] | None = None) -> None:
        self._remote, local = os.fspath(remote_mount_point), os.fspath(local_mount_point)
        remote_path(self._remote, "key")
        if not local or "\0" in local:
            raise ValueError(f"the mount point {local!r} is no path")
        if meshes is not None and not meshes:
            raise ValueError("gather_mount() with no mesh: leave out `meshes` for all of them")
        self._local = os.path.abspath(local)
        self._meshes = None if meshes is None else list(meshes)
        self._apply_id: str | None = None

    def dump(self) -> dict[str, Any]:
        """The arguments, and the allocation whose keeper has the view."""
        saved: dict[str, Any] = {"remote": self._remote, "local": self._local, "meshes": self._meshes}
        return saved if self._apply_id is None else {**saved, "apply_id": self._apply_id}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> GatherMountFeature:
        """The feature of what `dump` gave."""
        self = cls(saved["remote"], saved["local"], saved["meshes"])
        self._apply_id = saved.get("apply_id")
        return self

    def start(self, hosts: FeatureHosts) -> Offer:
        """Mounts, unless the view of these hosts is mounted; raises what `monarch.fs.gather` raises."""
        offer = self.promised(hosts)
        self.keep(hosts)
        return offer

    def promised(self, hosts: FeatureHosts) -> Offer:
        """Nothing but the check of the arguments."""
        chosen(hosts.meshes, self._meshes)
        if hosts.keeper is None:
            raise ValueError("gather_mount needs the keeper of a job")
        self._apply_id = hosts.apply_id
        return Offer()

    def keep(self, hosts: FeatureHosts) -> None:
        """Has the keeper mount."""
        assert hosts.keeper is not None
        config = {"remote": self._remote, "local": self._local, "meshes": self._meshes}
        with raised_here():
            hosts.keeper.serve(GATHER, self._local, config)

    def stop(self) -> None:
        """Unmounts, also what another process has mounted; without a keeper nothing is mounted."""
        if self._apply_id is not None:
            with raised_here():
                Keeper(self._apply_id).stop(GATHER, self._local)
