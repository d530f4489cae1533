"""Handles of spawned actors. Their public attributes are those of `HANDLE_ATTRIBUTES` and the endpoints of the class."""

from __future__ import annotations

from monarch._core._native.protocol import FIRST_ERROR, OK
from monarch._core.call.actor import HANDLE_ATTRIBUTES, ActorClass, NotAnEndpoint, actor_class
from monarch._core.call.answer import spawn_error
from monarch._core.call.endpoint import endpoint_of
from monarch._core.call.future import Future, done_future, failed_future, new_future
from monarch._core.call.received_mesh import received_mesh
from monarch._core.call.shared_handle import share_if_plain
from monarch._core.process.current import current_process
from monarch._core.process.mesh_info import MeshInfo
from monarch._core.process.process import PING
from monarch._core.shape.generic import Generic
from monarch._core.shape.mesh import MeshTrait
from monarch._core.shape.shape import Extent, Shape
from monarch._core.shape.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from typing_extensions import TypeVar

    from monarch._core._native import PendingCall, Targets
    from monarch._core.errors.errors import MeshFailure
    from monarch._core.supervise.supervision import OwnedMesh

    A = TypeVar("A", default=Any)
else:
    A = None

# The attributes in the dictionary of a handle: endpoints cannot have these names.
FIELDS = frozenset({"_info", "_shape", "_owned", "_cached"})
_ABSENT = object()


def check_names(kind: ActorClass, cls: type) -> None:
    """Raises `ValueError` for a class with an endpoint whose name its handle needs."""
    for name in kind.endpoints:
        if name in HANDLE_ATTRIBUTES or name in FIELDS or hasattr(ActorMesh, name):
            raise ValueError(f"{cls.__qualname__}.{name}: ActorMesh has an attribute that collides with an endpoint name: {name}")


class ActorMesh(MeshTrait, Generic[A]):
    """The actors of one spawn, or some of them. What `spawn` returned is owned; slices and unpickled handles are references.

    The attributes of a handle are the endpoints of its class. A handle can be an argument of calls. Only the owner can stop the actors.

    ```python
    from monarch.actor import Actor, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def double(self, x: int) -> int:
            return 2 * x

    with this_host().spawn_procs({"gpus": 4}) as procs:
        workers = procs.spawn("workers", Worker)
        first = workers.slice(gpus=0)
        assert (first.size(), workers.sizes) == (1, {"gpus": 4})
        assert first.double.call_one(21).get() == 42
    ```
    """

    def __init__(self, info: MeshInfo, shape: Shape, owned: OwnedMesh | None = None) -> None:
        own = vars(self)
        own["_info"] = info
        own["_shape"] = shape
        own["_owned"] = owned
        own["_cached"] = {}
        own["__name__"] = info.class_name.rpartition(".")[2]

    # ---- shape

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self._info, shape)

    def _base_ranks(self) -> list[int]:
        """Spawn ranks, in the order of this handle."""
        ranks = self._cached.get("ranks")
        if ranks is None:
            ranks = self._cached["ranks"] = list(self._shape.ranks())
        return ranks

    def _targets(self) -> Targets:
        targets = self._cached.get("targets")
        if targets is None:
            from monarch._core._native import Targets

            procs = self._info.procs
            targets = Targets(current_process().native, [procs[r] for r in self._base_ranks()], self._info.mailbox)
            self._cached["targets"] = targets
        return targets

    def _addressed_extent(self) -> bytes:
        """The addressed shape in the form for receivers; empty if it is the spawn shape, which they know."""
        extent, info = self._shape.extent, self._info
        if info.mailbox == info.uid and extent == info.extent and self._base_ranks() == list(range(len(self._info.procs))):
            return b""
        return extent.to_wire()

    def _dense_shape(self) -> Shape:
        shape = self._cached.get("dense")
        if shape is None:
            shape = self._cached["dense"] = Shape(self._shape.labels, Slice.new_row_major(self._shape.ndslice.sizes))
        return shape

    # ---- endpoints

    def _class(self) -> type:
        info = self._info
        if info.cls is None:
            from monarch._core.pickle.actor_class import loads_class

            info.cls = loads_class(info.payload)
        return info.cls

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        cls = self._class()
        prop = actor_class(cls).endpoints.get(name)
        if prop is not None:
            found = vars(self)[name] = endpoint_of(self, name, prop)
            return found
        method = getattr(cls, name, _ABSENT)
        if method is _ABSENT:
            known = ", ".join(actor_class(cls).endpoints) or "none"
            raise AttributeError(f"actor class {self._info.class_name} has no attribute {name!r}; its endpoints: {known}")
        return NotAnEndpoint(self, name, cls.__name__, method)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot set {name!r}: the attributes of an actor handle are its endpoints")

    def __dir__(self) -> list[str]:
        """The attributes of the handle with its endpoints, for the completion of interactive shells."""
        return sorted({*super().__dir__(), *actor_class(self._class()).endpoints})

    # ---- life

    def _failure(self) -> MeshFailure | None:
        """The reason to refuse calls to this handle: a failed rank in it, or the stop of the whole mesh."""
        info = self._info
        failure = info.first_failure(self._base_ranks())
        if failure is not None or info.stopped is None:
            return failure
        from monarch._core.call.answer import stopped_failure

        ranks = self._base_ranks()
        return stopped_failure(current_process(), info, ranks[0] if ranks else 0, info.stopped)

    @property
    def initialized(self) -> Future[None]:
        """Done when the actors exist on their procs; does not wait for `__init__`. Raises `SpawnError` otherwise."""
        process = current_process()
        ranks = self._base_ranks()
        info = self._info
        lost = next((r for r in ranks if r in info.unspawned), None)
        if lost is not None:
            return failed_future(spawn_error(info, lost))
        procs = [info.procs[r] for r in ranks]
        cell = process.native.cell(FIRST_ERROR, len(procs), procs, info.uid)
        mesh = info.uid.to_bytes(8, "little")
        for rank, proc in enumerate(procs):
            process.native.request(proc, PING, rank.to_bytes(4, "little") + mesh, cell.slot)
        return new_future(cell, self._initialized_result)

    def _initialized_result(self, cell: PendingCall) -> None:
        error = cell.error()
        if error is not None:
            from monarch._core.call.answer import not_spawned_failure
            from monarch._core.call.endpoint import mark_retrieved

            ranks = self._base_ranks()
            rank = ranks[error.rank]
            # Several ranks may fail for one cause, and this method raises once.
            others = [ranks[i] for i, r in enumerate(cell.results()) if r is None or r.status != OK]
            failure = self._info.failed.setdefault(rank, not_spawned_failure(self._info, rank, error))
            mark_retrieved(self._info.uid, cell, failure, others)
            raise spawn_error(self._info, rank)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stops the actors: queued messages are handled first, owned meshes are stopped, then `__cleanup__` of each actor runs.

        The stop begins with this call, also if the Future is not awaited.

        Args:
            reason: the text of the `SupervisionError` that later calls raise.

        Returns:
            A Future that is done when all actors have ended.

        Raises:
            NotImplementedError: the mesh is a slice or an unpickled handle.
            SupervisionError: from the Future: an actor ended otherwise, as by a `__cleanup__` that exceeded `cleanup_timeout`.

        ```python
        from monarch.actor import Actor, endpoint, this_host

        class Worker(Actor):
            @endpoint
            def work(self) -> None: ...

        with this_host().spawn_procs({"procs": 2}) as procs:
            workers = procs.spawn("workers", Worker)
            workers.work.broadcast()
            workers.stop("work is done").get()
        ```
        """
        if self._owned is None:
            raise NotImplementedError("Cannot call stop on an ActorMeshRef, requires an owned ActorMesh")
        return self._owned.stop(reason)

    @property
    def _name(self) -> Future[str]:
        return done_future(self._info.unique_name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ActorMesh):
            return NotImplemented
        return self._info.uid == other._info.uid and self._shape == other._shape

    def __hash__(self) -> int:
        return hash((self._info.uid, self._shape))

    def __repr__(self) -> str:
        return f"<ActorMesh {self._info.class_name} {self._info.name} {self.extent}>"

    def __reduce__(self) -> tuple[Any, ...]:
        share_if_plain()
        return (received_actor_mesh, (self._info.state(), self._shape))

    def __copy__(self) -> ActorMesh:
        return self

    def __deepcopy__(self, memo: Any) -> ActorMesh:
        return self


def received_actor_mesh(state: tuple[Any, ...], shape: Shape) -> ActorMesh:
    """A reference that arrived in a message."""
    return ActorMesh(received_mesh(current_process(), state), shape)


def whole_shape(extent: Extent) -> Shape:
    return Shape(extent.labels, Slice.new_row_major(extent.sizes))
