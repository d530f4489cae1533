"""The model of a chaos run for decisions: existing objects, and deaths that the script has caused. Observations are never part of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Procs:
    id: str
    size: int
    owner: tuple[str, int] | None
    handle: Any
    dead: set[int] = field(default_factory=set)
    stopped: bool = False
    # The number of a host other than the client's.
    host: int | None = None


@dataclass
class Mesh:
    id: str
    procs: Procs
    base: list[int]
    owner: tuple[str, int] | None
    mode: str
    handle: Any
    dead: set[int] = field(default_factory=set)
    stopped: bool = False

    def living(self) -> list[int]:
        return [] if self.stopped else [r for r in range(len(self.base)) if r not in self.dead]


class Model:
    """Existing objects and caused deaths."""

    def __init__(self) -> None:
        self.procs: dict[str, Procs] = {}
        self.meshes: dict[str, Mesh] = {}

    def kill_proc(self, procs: Procs, rank: int) -> None:
        procs.dead.add(rank)
        for mesh in list(self.meshes.values()):
            if mesh.procs is procs and rank in mesh.base:
                self.kill(mesh, mesh.base.index(rank))

    def kill(self, mesh: Mesh, rank: int) -> None:
        if rank not in mesh.living():
            return
        mesh.dead.add(rank)
        self._end_owned(mesh.id, rank)
        if mesh.owner is not None:
            owner = self.meshes[mesh.owner[0]]
            if owner.mode != "handle":
                self.kill(owner, mesh.owner[1])

    def stop(self, mesh: Mesh) -> None:
        if not mesh.stopped:
            mesh.stopped = True
            for rank in range(len(mesh.base)):
                self._end_owned(mesh.id, rank)

    def stop_procs(self, procs: Procs) -> None:
        procs.stopped = True
        for mesh in list(self.meshes.values()):
            if mesh.procs is procs:
                self.stop(mesh)

    def _end_owned(self, id: str, rank: int) -> None:
        for mesh in list(self.meshes.values()):
            if mesh.owner == (id, rank):
                self.stop(mesh)
        for procs in list(self.procs.values()):
            if procs.owner == (id, rank):
                self.stop_procs(procs)

    # ---- queries of decisions

    def living_procs(self) -> list[tuple[Procs, int]]:
        return [(p, rank) for p in self.procs.values() if not p.stopped for rank in range(p.size) if rank not in p.dead]

    def roots_procs(self) -> list[Procs]:
        return [p for p in self.procs.values() if p.owner is None and not p.stopped]

    def living_meshes(self, owned: bool) -> int:
        return sum((m.owner is not None) == owned and bool(m.living()) for m in self.meshes.values())
