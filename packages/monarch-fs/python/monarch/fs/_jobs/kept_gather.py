"""Gathered directories that the keeper of a job shows: one view for each mesh, below a directory of its name where there are several."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import monarch.fs
from monarch.fs._jobs.kept_mount import chosen
from monarch.job import KeptService

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.fs import GatherMount

GATHER = "gather"


class KeptGather(KeptService):
    """`config` has `remote`, `local` and `meshes` (names or None)."""

    def __init__(self) -> None:
        self._views: dict[str, tuple[HostMesh, GatherMount]] = {}

    def start(self, hosts: Mapping[str, HostMesh], config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Mounts; again: mounts anew the view of a mesh whose hosts were healed. The answer has the mount points by mesh."""
        wanted = chosen(hosts, config["meshes"])
        local: str = config["local"]
        places = {name: local if len(hosts) == 1 else os.path.join(local, name) for name in wanted}
        made: list[str] = []
        try:
            for name, mesh in wanted.items():
                old = self._views.get(name)
                if old is not None and old[0] is mesh:
                    continue
                if old is not None:
                    del self._views[name]
                    old[1].close()
                os.makedirs(os.path.dirname(places[name]), exist_ok=True)
                self._views[name] = mesh, monarch.fs.gather(mesh, config["remote"], places[name])
                made.append(name)
        except BaseException:
            for name in made:
                self._views.pop(name)[1].close()
            raise
        return {"local": places}

    def stop(self) -> None:
        """Unmounts all views."""
        views, self._views = self._views, {}
        for _, view in views.values():
            view.close()

    def status(self) -> Mapping[str, Any]:
        """The meshes that are shown."""
        return {"meshes": list(self._views)}

    def busy(self) -> bool:
        """A view is served as long as it is mounted."""
        return bool(self._views)
