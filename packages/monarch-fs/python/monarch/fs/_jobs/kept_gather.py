"""Views of host directories that the keeper of a job shows: one mount for all meshes of a job.

A view finds the services of its hosts by the handles of its meshes. Where hosts were healed the handles are others, so the view is mounted
anew. A view that was unmounted by hand, or whose processes were killed, is mounted again by the next `start`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import monarch.fs
from monarch.fs._jobs.kept_mount import chosen
from monarch.job import KeptService

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.fs import GatherMount

GATHER = "gather"


class Kept(NamedTuple):
    """A view, and the meshes that it was made for."""

    hosts: dict[str, HostMesh]
    view: GatherMount


class KeptGather(KeptService):
    """`config` has `remote`, `local` and `meshes` (names or None)."""

    def __init__(self) -> None:
        self._kept: Kept | None = None
        self._lock = threading.Lock()

    def start(self, hosts: Mapping[str, HostMesh], config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Mounts, unless the view of these hosts is mounted; the answer has the directory of each mesh."""
        wanted = chosen(hosts, config["meshes"])
        local: str = config["local"]
        # A job with several meshes has a directory for each, even if only one of them is shown: the layout belongs to the job.
        is_single = len(hosts) == 1
        kept = self._kept
        if kept is None or not _is_same(kept.hosts, wanted) or not kept.view.is_mounted:
            with self._lock:
                self._kept = None
            if kept is not None:
                kept.view.close()
            view = monarch.fs.gather(next(iter(wanted.values())) if is_single else wanted, config["remote"], local)
            with self._lock:
                self._kept = Kept(wanted, view)
        return {"local": {name: local if is_single else f"{local.rstrip('/')}/{name}" for name in wanted}}

    def stop(self) -> None:
        """Unmounts."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept.view.close()

    def status(self) -> Mapping[str, Any]:
        """The meshes that are shown, and whether the view is mounted."""
        with self._lock:
            kept = self._kept
        return {"shown": [] if kept is None else list(kept.hosts), "mounted": kept is not None and kept.view.is_mounted}

    def busy(self) -> bool:
        """A view is served as long as it is mounted."""
        with self._lock:
            kept = self._kept
        return kept is not None and kept.view.is_mounted


def _is_same(before: Mapping[str, HostMesh], now: Mapping[str, HostMesh]) -> bool:
    """Handles of the same hosts are the same objects."""
    return before.keys() == now.keys() and all(before[name] is now[name] for name in now)
