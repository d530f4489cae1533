"""One mesh in one process, shared by all its handles: its ranks and its failed ranks."""

from __future__ import annotations

from monarch._core._native.events import mesh_made
from monarch._core.process.identity import to_base58, to_label
from monarch._core.shape.shape import Extent, Point, plain_or_quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from monarch._core.call.runs import Runs
    from monarch._core.errors.failure import MeshFailure
    from monarch._core.shape.shape import Shape


def shape_json(extent: Extent) -> str:
    """Labels and sizes as a JSON object, in their order."""
    from json import dumps

    return dumps(dict(zip(extent.labels, extent.sizes, strict=True)))


def view_of(shape: Shape) -> tuple[int, str]:
    """The part of a mesh as events have it: its first rank, and its dimensions, each with its size and stride."""
    ranks = shape.ndslice
    dims = zip(shape.labels, ranks.sizes, ranks.strides, strict=True)
    return ranks.offset, " ".join([f"{plain_or_quoted(label)}={size}:{stride}" for label, size, stride in dims])


class MeshInfo:
    """A spawned mesh: of procs or of actors."""

    __slots__ = (
        "__weakref__",
        "agents",
        "class_name",
        "cls",
        "creator",
        "extent",
        "failed",
        "job",
        "mailbox",
        "name",
        "owner_agent",
        "owner_proc",
        "payload",
        "procs",
        "stopped",
        "uid",
        "unspawned",
    )

    def __init__(
        self,
        uid: int,
        name: str,
        creator: str,
        extent: Extent,
        procs: tuple[int, ...],
        class_name: str = "",
        payload: bytes = b"",
        agents: Runs = (),
        owner_proc: int = 0,
        owner_agent: int = 0,
        job: int = 0,
        mailbox: int = 0,
    ) -> None:
        self.uid = uid
        # The mailbox of the actors: that of the mesh they were spawned as. This mesh may be a view of it.
        self.mailbox = mailbox or uid
        self.name = name
        self.creator = creator
        self.extent = extent
        self.procs = procs
        self.class_name = class_name
        self.payload = payload
        # The hosts of the procs, in their order.
        self.agents = agents
        # The process of the owner, and its host.
        self.owner_proc = owner_proc
        self.owner_agent = owner_agent
        # The client whose job contains the mesh.
        self.job = job
        # Spawn rank to failure.
        self.failed: dict[int, MeshFailure] = {}
        self.stopped: str | None = None
        # Ranks that could not be spawned at all.
        self.unspawned: set[int] = set()
        self.cls: Any = None

    @property
    def unique_name(self) -> str:
        return f"{to_label(self.name)}-{to_base58(self.uid)}"

    def display(self, rank: int) -> str:
        """`{creator}.<{class} {name}{point}>`; a mesh of procs has no class."""
        point = str(Point(rank, self.extent)) if self.extent.labels else ""
        return f"{self.creator}.<{self.class_name + ' ' if self.class_name else ''}{self.name}{point}>"

    def made(self, parent: int, on: Shape) -> None:
        """Records that this process has spawned the mesh, on this part of a mesh of procs or of hosts."""
        mesh_made(self.uid, parent, self.class_name, self.name, self.creator, shape_json(self.extent), *view_of(on))

    def state(self) -> tuple[Any, ...]:
        wire = self.extent.to_wire()
        owner = (self.owner_proc, self.owner_agent)
        return (
            self.uid,
            self.name,
            self.creator,
            wire,
            self.procs,
            self.class_name,
            self.payload,
            self.agents,
            owner,
            self.job,
            self.mailbox,
        )

    def first_failure(self, ranks: Iterable[int]) -> MeshFailure | None:
        """The failure of the lowest of these spawn ranks that has failed."""
        failed = self.failed
        if not failed:
            return None
        return next((failed[r] for r in ranks if r in failed), None)
