"""Mounts that the keeper of a job serves: one for each mesh, all of the same source at the same mount point.

A refresh asks each mount for its own refresh. Where hosts were healed the mesh is another object: the new hosts are mounted before the old
mount is closed, so that a machine that stays has no moment without its files.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import monarch.fs
from monarch.fs._jobs.mount_look import still_mounted
from monarch.job import KeptService

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.fs import Mount

MOUNT = "mount"


class Kept(NamedTuple):
    """A mount, and the hosts that it was made for."""

    hosts: HostMesh
    mount: Mount


def chosen(hosts: Mapping[str, HostMesh], meshes: Sequence[str] | None) -> dict[str, HostMesh]:
    """The meshes of these names, all by default; `ValueError` lists the names that exist."""
    if meshes is None:
        return dict(hosts)
    unknown = [name for name in meshes if name not in hosts]
    if unknown:
        raise ValueError(f"no mesh '{unknown[0]}' in this job, there is: {', '.join(hosts)}")
    return {name: hosts[name] for name in meshes}


class KeptMount(KeptService):
    """`config` has `source`, `target`, `meshes` (names or None), and in `options` further arguments of `monarch.fs.mount`."""

    def __init__(self) -> None:
        self._mounts: dict[str, Kept] = {}
        self._lock = threading.Lock()
        self._is_complete = False

    def start(self, hosts: Mapping[str, HostMesh], config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Mounts, or refreshes; the answer has the generation of each mesh, and the number of changed entries of a refresh."""
        wanted = chosen(hosts, config["meshes"])
        options = dict(config["options"])
        old = self._kept()
        same = {name: kept for name, kept in old.items() if wanted.get(name) is kept.hosts}
        made: dict[str, Kept] = {}
        try:
            for name, mesh in wanted.items():
                if name not in same:
                    made[name] = Kept(mesh, monarch.fs.mount(mesh, config["source"], config["target"], **options))
            for kept in made.values():
                kept.mount.ready.get()
        except BaseException:
            _close(made.values())
            raise
        with self._lock:
            self._mounts = {name: made[name] if name in made else same[name] for name in wanted}
        _close(kept for name, kept in old.items() if name not in same)
        reports = [future.get() for future in [kept.mount.refresh() for kept in same.values()]]
        self._await_complete(config)
        return {
            "target": next(iter(self._kept().values())).mount.target,
            "generation": {name: kept.mount.generation for name, kept in self._kept().items()},
            "changed": max((report.changed for report in reports), default=0),
            "bytes_sent": sum(report.bytes_sent for report in reports),
        }

    def _await_complete(self, config: Mapping[str, Any]) -> None:
        """With `fetch="all"` the mounts need this process until every host has every byte."""
        self._is_complete = False
        if config["options"].get("fetch") != "all":
            return
        mounts = [kept.mount for kept in self._kept().values()]

        def wait() -> None:
            try:
                for mount in mounts:
                    mount.complete().get()
                self._is_complete = [kept.mount for kept in self._kept().values()] == mounts
            except Exception as e:  # it remains busy, so that reads are served
                print(f"{config['source']}: not complete on every host: {type(e).__name__}: {e}", flush=True)

        threading.Thread(target=wait, name="monarch-fs-complete", daemon=True).start()

    def _kept(self) -> dict[str, Kept]:
        with self._lock:
            return dict(self._mounts)

    def stop(self) -> None:
        """Unmounts on all hosts; the first error is raised when all have been tried."""
        with self._lock:
            mounts, self._mounts = self._mounts, {}
        errors = _close(mounts.values())
        if errors:
            raise errors[0]

    def status(self) -> Mapping[str, Any]:
        """The generation that the hosts of each mesh show."""
        return {"generation": {name: kept.mount.generation for name, kept in self._kept().items()}, "complete": self._is_complete}

    def busy(self) -> bool:
        """Hosts may ask for bytes until they have all of them."""
        return bool(self._kept()) and not self._is_complete

    def left(self, hosts: Mapping[str, HostMesh], config: Mapping[str, Any], seconds: float) -> str:
        """Hosts on which the mount point is in use: of another client, or of a keeper that was killed and is not given up yet."""
        return still_mounted(chosen(hosts, config["meshes"]), config["target"], seconds)


def _close(mounts: Any) -> list[Exception]:
    errors: list[Exception] = []
    closing: list[Any] = []
    for kept in mounts:
        try:
            closing.append(kept.mount.close())
        except Exception as e:
            errors.append(e)
    for future in closing:
        try:
            future.get()
        except Exception as e:
            errors.append(e)
    return errors
