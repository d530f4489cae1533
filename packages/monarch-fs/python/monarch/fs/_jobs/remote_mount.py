"""The feature behind `job.remote_mount`: a directory of the client on the hosts of a job, served by the job's keeper.

The keeper mounts, so the mount goes on when the script has ended, and the next `state()` refreshes it. Procs of the meshes that `state()`
returns start with the interpreter of the mounted tree.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import monarch.fs
from monarch.fs._jobs.interpreter_check import check_on_hosts, leaves_tree
from monarch.fs._jobs.keeper_failure import raised_here
from monarch.fs._jobs.kept_mount import MOUNT, chosen
from monarch.fs._tree.point_key import SUBDIR
from monarch.job import FeatureHosts, JobFeature, Keeper, Offer

if TYPE_CHECKING:
    from monarch.actor import HostMesh


class RemoteMountFeature(JobFeature):
    """`source` is shown at `mntpoint`, by default its own path, on the hosts of `meshes`, by default all.

    `$SUBDIR` in `mntpoint` is the key of each host in its mesh (`hosts_0`), and `python_exe` is None then.

    `python_exe` is the path of the interpreter relative to `source`; None leaves the interpreter of the hosts. Other arguments are those
    of `monarch.fs.mount`. The default for `python_exe` has to exist as any other: a source without an environment takes None.
    `ValueError` for a missing interpreter, a relative mount point or no mesh, `TypeError` for an argument that `mount` does not have, and
    `FileNotFoundError` or `NotADirectoryError` for the source.
    """

    several = True
    needs_hosts = True
    _source: str
    _target: str
    _meshes: list[str] | None
    _python: str | None
    _options: dict[str, Any]
    _apply_id: str | None

    def __init__(
        self,
        source: str | os.PathLike[str],
        mntpoint: str | None = None,
        meshes: list[str] | None = None,
        python_exe: str | None = ".venv/bin/python",
        **options: Any,
    ) -> None:
        self._source = os.path.abspath(os.fspath(source))
        self._target = self._source if mntpoint is None else mntpoint
        self._meshes = None if meshes is None else list(meshes)
        self._python = python_exe
        # The options in the form that they have after a round trip through JSON.
        self._options = json.loads(json.dumps(options))
        self._apply_id = None
        self._check()

    def _check(self) -> None:
        known = set(inspect.signature(monarch.fs.mount).parameters) - {"hosts", "source", "target"}
        for name in self._options:
            if name not in known:
                raise TypeError(f"remote_mount() has no argument '{name}'; monarch.fs.mount has: {', '.join(sorted(known))}")
        if not os.path.isabs(self._target):
            raise ValueError(f"the mount point {self._target} is not absolute")
        if self._meshes is not None and not self._meshes:
            raise ValueError("remote_mount() with no mesh: leave out `meshes` for all of them")
        if not os.path.exists(self._source):
            raise FileNotFoundError(f"the source {self._source} does not exist")
        if not os.path.isdir(self._source):
            raise NotADirectoryError(f"the source {self._source} is no directory")
        if self._python is None:
            return
        if SUBDIR in self._target:
            raise ValueError(
                f"the mount point {self._target} differs by host, and procs of a mesh have one interpreter: pass python_exe=None"
            )
        path = os.path.normpath(os.path.join(self._source, self._python))
        if os.path.isabs(self._python) or ".." in self._python.split("/") or not path.startswith(self._source.rstrip("/") + "/"):
            raise ValueError(f"python_exe {self._python} is not a path below the source {self._source}")
        if not os.path.lexists(path) or (not leaves_tree(self._source, path) and not os.access(path, os.X_OK)):
            raise ValueError(f"python_exe {self._python} is no executable below {self._source}: pass its path, or python_exe=None")

    def dump(self) -> dict[str, Any]:
        """The arguments, and the allocation whose keeper has the mount."""
        saved: dict[str, Any] = {"source": self._source, "target": self._target, "meshes": self._meshes, "python_exe": self._python}
        saved["options"] = self._options
        return saved if self._apply_id is None else {**saved, "apply_id": self._apply_id}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> RemoteMountFeature:
        """Checks nothing: the source may be gone by the time the job is killed."""
        self = cls.__new__(cls)
        self._source, self._target, self._meshes = saved["source"], saved["target"], saved["meshes"]
        self._python, self._options, self._apply_id = saved["python_exe"], saved["options"], saved.get("apply_id")
        return self

    def start(self, hosts: FeatureHosts) -> Offer:
        """Mounts or refreshes on all hosts of the meshes; raises what `monarch.fs.mount` raises."""
        offer = self.promised(hosts)
        self.keep(hosts)
        if self._python is not None and leaves_tree(self._source, os.path.join(self._source, self._python)):
            check_on_hosts(chosen(hosts.meshes, self._meshes), os.path.join(self._target, self._python))
        return offer

    def promised(self, hosts: FeatureHosts) -> Offer:
        """The meshes with their interpreter, before anything is mounted."""
        wanted = chosen(hosts.meshes, self._meshes)
        if hosts.keeper is None:
            raise ValueError("remote_mount needs the keeper of a job")
        self._apply_id = hosts.apply_id
        return Offer(meshes=self._with_interpreter(wanted))

    def keep(self, hosts: FeatureHosts) -> None:
        """Has the keeper mount or refresh."""
        assert hosts.keeper is not None
        config = {"source": self._source, "target": self._target, "meshes": self._meshes, "options": self._options}
        with raised_here():
            hosts.keeper.serve(MOUNT, self._target, config)

    def _with_interpreter(self, hosts: Mapping[str, HostMesh]) -> dict[str, HostMesh]:
        if self._python is None:
            return {}
        path = os.path.join(self._target, self._python)
        return {name: mesh.with_python_executable(path) for name, mesh in hosts.items()}

    def stop(self) -> None:
        """Unmounts, also what another process has mounted; without a keeper nothing of this client is mounted."""
        if self._apply_id is not None:
            with raised_here():
                Keeper(self._apply_id).stop(MOUNT, self._target)
