"""The procs of a handle: ranks of one spawn, and the spawn of actors on them.

A `ProcMesh` is a handle of a `ProcSet`; slices are handles of sets of their own. The spawner owns the actors (`call/owner.py`). Their first
message is sent before the request that makes them, because pickling it may raise; the procs hold it until the actor is there.
"""

from __future__ import annotations

import marshal
from _pickle import dumps

from monarch._core._native import Caller, block_if_exiting
from monarch._core._native.events import mesh_made
from monarch._core._native.protocol import NO_ANSWER
from monarch._core.call.actor import actor_class, class_name
from monarch._core.call.actor_mesh import ActorMesh, check_names
from monarch._core.call.actor_ranks import ActorRanks
from monarch._core.call.arguments import check_arguments
from monarch._core.call.current_actor import creator_bytes, current_local_actor
from monarch._core.call.owner import spawning_owner
from monarch._core.call.runs import each_of, runs_of
from monarch._core.hosts.host_set import local_host_set
from monarch._core.process.current import current_process
from monarch._core.process.identity import checked_name, new_uid
from monarch._core.process.loaded import loaded_module
from monarch._core.process.mesh_info import MeshInfo, shape_json, view_of
from monarch._core.shape.shape import Extent, Shape, whole_shape
from monarch._core.shape.slice import Slice
from monarch._core.supervise.supervision import OwnedMesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core._native import PendingCall
    from monarch._core._native.system import ProcessEnd
    from monarch._core.call.runs import Runs
    from monarch._core.process.process import LocalProcess


class SpawnPlace:
    """What the spawns of actors on a set of procs have in common, made with the first of them."""

    __slots__ = ("agents", "json", "procs", "shape", "view")

    def __init__(self, info: MeshInfo, shape: Shape) -> None:
        base = info.procs
        procs = self.procs = tuple([base[r] for r in shape.ranks()])
        if procs == base:
            self.agents: Runs = info.agents
        else:
            agents = each_of(info.agents)
            self.agents = runs_of([agents[r] for r in shape.ranks()])
        self.shape = whole_shape(shape.extent)
        # The shape and the place in the mesh of the procs, as events have them.
        self.json = shape_json(shape.extent)
        self.view = view_of(shape)


class ProcSet:
    """Ranks of the mesh `info`, in the shape of a handle. `hosts` is the state of their `HostSet`; None for this process's own host."""

    __slots__ = ("_place", "_reference", "hosts", "info", "owned", "ready", "shape")

    def __init__(
        self, info: MeshInfo, shape: Shape, hosts: Any, owned: OwnedMesh | None = None, ready: tuple[PendingCall, list[str]] | None = None
    ) -> None:
        self.info = info
        self.shape = shape
        self.hosts = hosts
        # The mesh as its owner has it; None for a reference.
        self.owned = owned
        # The call that the new procs answer, and the commands that started them.
        self.ready = ready
        self._reference: bytes | None = None
        self._place: SpawnPlace | None = None

    def part(self, shape: Shape) -> ProcSet:
        """Some of the procs, as a reference."""
        return ProcSet(self.info, shape, self.hosts, None, self.ready)

    def procs(self) -> list[int]:
        procs = self.info.procs
        return [procs[r] for r in self.shape.ranks()]

    def agents(self) -> list[int]:
        """The host of each process."""
        agents = each_of(self.info.agents)
        return [agents[r] for r in self.shape.ranks()]

    def state(self) -> tuple[Any, ...]:
        """The arguments of `received_proc_mesh` in another process."""
        return (self.info.state(), self.shape, self.hosts or local_host_set(current_process()).state())

    def spawn(self, name: str, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorMesh:
        from monarch._core.pickle.actor_class import dumps_class

        if self.info.stopped is not None:
            # If the end of the client has stopped the mesh, a thread of the user stays blocked: no code is left to handle an error.
            block_if_exiting()
            raise RuntimeError("`ProcMesh` has already been stopped")
        name = checked_name(str(name))
        check_names(actor_class(cls), cls)
        cls = replaced(cls)
        check_arguments(cls.__init__, 1, args, kwargs, cls.__qualname__)
        return self.spawn_actors(new_uid(), name, (class_name(cls), dumps_class(cls), cls), args, kwargs)

    def spawn_actors(self, uid: int, name: str, kind: tuple[str, bytes, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorMesh:
        """Spawns the actors. `kind`: the class by its name, by its pickle, and itself, if this process has it."""
        process = current_process()
        place = self._place
        if place is None:
            place = self._place = SpawnPlace(self.info, self.shape)
        job, procs, shape = self.info.job, place.procs, place.shape
        named, payload, cls = kind
        owner = spawning_owner()
        here = process.peers.host_in(job)
        info = MeshInfo(uid, name, owner.display, shape.extent, procs, named, payload, place.agents, process.uid, here, job)
        info.cls = cls
        ranks = ActorRanks(info, shape)
        # This message comes first, because pickling the arguments may raise; the receivers hold it until the actor is there.
        is_sent = None
        caller = Caller(ranks.targets(), "__init__", b"", False)
        try:
            cell = caller.send(args, kwargs, NO_ANSWER)
        except TypeError as e:
            from monarch._core.call.call_target import sent_again

            cell, is_sent = sent_again(e, ranks, caller, f"spawn of {named}", args, kwargs, NO_ANSWER)
        if cell is not None:  # the deadline has passed: an actor without this message would never begin
            from monarch._core.call.call_target import CallTarget

            raise CallTarget(ranks, "__init__", None).expired(cell)
        spec = marshal.dumps((info.state(), owner.process.uid, owner.mailbox, self._origin()))
        owned = OwnedMesh(process, owner, info, True)
        process.meshes.known[info.uid] = info
        mesh_made(uid, self.info.uid, named, name, owner.display, place.json, *place.view)
        native = process.native
        for rank, proc in enumerate(procs):
            native.spawn_actor(proc, info.uid, rank.to_bytes(4, "little") + spec)
            if proc in process.peers.ended:
                _lost(info, rank, process.peers.ended[proc])
        if is_sent is not None:
            is_sent()
        return ActorMesh(ranks, owned)

    def _origin(self) -> bytes:
        """Rarely needed context for actors spawned here: their creator and this mesh, pickled and cached."""
        if self._reference is None:
            self._reference = dumps(self.state(), 5)
        return marshal.dumps((creator_bytes(current_process(), current_local_actor()), self._reference))


def _lost(info: MeshInfo, rank: int, end: ProcessEnd) -> None:
    from monarch._core.call.answer import proc_ended_failure

    info.failed[rank] = proc_ended_failure(info, rank, end)
    info.unspawned.add(rank)


def own_proc_set(process: LocalProcess) -> ProcSet:
    """This process as a mesh of one."""
    info = process.place.info
    if info is None:
        agents = ((process.agent_uid, 1),)
        info = process.place.info = MeshInfo(
            process.uid, process.name, "<root>", Extent((), ()), (process.uid,), agents=agents, job=process.peers.job
        )
    return ProcSet(info, Shape((), Slice(offset=process.place.rank, sizes=(), strides=())), None)


def replaced(cls: Any) -> Any:
    """The class by which a test has replaced this one."""
    patches = loaded_module("monarch._core.testing.patching")
    return cls if patches is None else patches.get_actor_class(cls)
