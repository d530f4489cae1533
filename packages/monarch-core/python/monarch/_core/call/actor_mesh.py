"""Handles of spawned actors. Their public attributes are those of `HANDLE_ATTRIBUTES` and the endpoints of the class."""

from __future__ import annotations

from monarch._core._native.protocol import DEADLINE, FIRST_ERROR, OK
from monarch._core.call.actor import HANDLE_ATTRIBUTES, ActorClass, NotAnEndpoint, actor_class
from monarch._core.call.actor_ranks import ActorRanks
from monarch._core.call.answer import spawn_error
from monarch._core.call.call_target import CallTarget, mark_retrieved
from monarch._core.call.coroutine_function import is_coroutine_function
from monarch._core.call.endpoint import Endpoint
from monarch._core.call.future import Future, done_future, failed_future, new_future
from monarch._core.call.received_mesh import received_mesh
from monarch._core.call.shared_handle import share_if_plain
from monarch._core.process.current import current_process
from monarch._core.process.process import PING
from monarch._core.shape.generic import Generic
from monarch._core.shape.mesh import MeshTrait
from monarch._core.shape.shape import Shape
from monarch._core.shape.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from typing_extensions import TypeVar

    from monarch._core._native import PendingCall
    from monarch._core.call.value_mesh import ValueMesh
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.supervise.supervision import OwnedMesh

    A = TypeVar("A", default=Any)
else:
    A = None

# The attributes in the dictionary of a handle: endpoints cannot have these names.
FIELDS = frozenset({"__core__", "_owned"})
_ABSENT = object()


def check_names(kind: ActorClass, cls: type) -> None:
    """Raises `ValueError` for a class with an endpoint whose name its handle needs."""
    if kind.has_free_names:
        return
    for name in kind.endpoints:
        if name in HANDLE_ATTRIBUTES or name in FIELDS or hasattr(ActorMesh, name):
            raise ValueError(f"{cls.__qualname__}.{name}: ActorMesh has an attribute that collides with an endpoint name: {name}")
    kind.has_free_names = True


class ActorMesh(MeshTrait, Generic[A]):
    """The actors of one spawn, or some of them. The handle that `spawn` returned is owned; slices and unpickled handles are references.

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

    def __init__(self, ranks: ActorRanks, owned: OwnedMesh | None = None) -> None:
        own = vars(self)
        own["__core__"] = ranks
        own["_owned"] = owned
        own["__name__"] = ranks.info.class_name.rpartition(".")[2]

    if TYPE_CHECKING:
        __core__: ActorRanks
        _owned: OwnedMesh | None

    # ---- shape

    @property
    def _ndslice(self) -> Slice:
        return self.__core__.shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self.__core__.shape.labels)

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(ActorRanks(self.__core__.info, shape))

    # ---- endpoints

    @property
    def actor_class(self) -> type[A]:
        """The class of the actors.

        Returns:
            The class that was given to `spawn`. A process that received the handle unpickles it with the first use.

        Raises:
            ImportError: this process cannot import the module of the class.

        ```python
        from monarch.actor import Actor, endpoint, this_host

        class Worker(Actor):
            LARGEST = 4

            @endpoint
            def work(self) -> None: ...

        with this_host().spawn_procs({"procs": 1}) as procs:
            assert procs.spawn("workers", Worker).actor_class.LARGEST == 4
        ```
        """
        return _loaded_class(self.__core__.info)

    @property
    def _class(self) -> type[A]:
        """The name of `actor_class` in torchmonarch 0.7, which programs read."""
        return self.actor_class

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__" and not self._is_endpoint(name):
            raise AttributeError(name)
        cls = _loaded_class(self.__core__.info)
        prop = actor_class(cls).endpoints.get(name)
        if prop is not None:
            found = vars(self)[name] = endpoint_of(self, name, prop.method, prop.is_explicit, prop.propagator, prop.timeout)
            return found
        method = getattr(cls, name, _ABSENT)
        if method is _ABSENT:
            known = ", ".join(actor_class(cls).endpoints) or "none"
            raise AttributeError(f"actor class {self.__core__.info.class_name} has no attribute {name!r}; its endpoints: {known}")
        return NotAnEndpoint(self, name, cls.__name__, method)

    def _is_endpoint(self, name: str) -> bool:
        """Whether a special name is an endpoint. Protocols look for such names, also on a handle without fields, or without its class."""
        core = vars(self).get("__core__")
        try:
            return core is not None and name in actor_class(_loaded_class(core.info)).endpoints
        except Exception:  # of the module of the class
            return False

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot set {name!r}: the attributes of an actor handle are its endpoints")

    def __dir__(self) -> list[str]:
        """The attributes of the handle with its endpoints, for the completion of interactive shells."""
        return sorted({*super().__dir__(), *actor_class(_loaded_class(self.__core__.info)).endpoints})

    # ---- life

    @property
    def initialized(self) -> Future[None]:
        """Done when the actors exist on their procs; does not wait for `__init__`. Raises `SpawnError` otherwise."""
        process = current_process()
        ranks = self.__core__.base_ranks()
        info = self.__core__.info
        lost = next((r for r in ranks if r in info.unspawned), None)
        if lost is not None:
            return failed_future(spawn_error(info, lost))
        procs = [info.procs[r] for r in ranks]
        cell = process.native.cell(FIRST_ERROR, len(procs), procs, info.uid)
        mesh = info.uid.to_bytes(8, "little")
        for rank, proc in enumerate(procs):
            process.native.request(proc, PING, rank.to_bytes(4, "little") + mesh, cell.slot)
        cell.limit()
        return new_future(cell, self._initialized_result)

    def _initialized_result(self, cell: PendingCall) -> None:
        error = cell.error()
        if error is not None and error.status == DEADLINE:
            target = CallTarget(self.__core__, "initialized", None)
            raise target.expired(cell)
        if error is not None:
            from monarch._core.call.answer import not_spawned_failure

            ranks = self.__core__.base_ranks()
            rank = ranks[error.rank]
            # Several ranks may fail for one cause, and this method raises once.
            others = [ranks[i] for i, r in enumerate(cell.results()) if r is None or r.status != OK]
            failure = self.__core__.info.failed.setdefault(rank, not_spawned_failure(self.__core__.info, rank, error))
            mark_retrieved(self.__core__.info.uid, cell, failure, others)
            raise spawn_error(self.__core__.info, rank)

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
        return done_future(self.__core__.info.unique_name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ActorMesh):
            return NotImplemented
        return self.__core__.info.uid == other.__core__.info.uid and self.__core__.shape == other.__core__.shape

    def __hash__(self) -> int:
        return hash((self.__core__.info.uid, self.__core__.shape))

    def __repr__(self) -> str:
        return f"<ActorMesh {self.__core__.info.class_name} {self.__core__.info.name} {self.extent}>"

    def __reduce__(self) -> tuple[Any, ...]:
        share_if_plain()
        return (received_actor_mesh, (self.__core__.info.state(), self.__core__.shape))

    def __copy__(self) -> ActorMesh:
        return self

    def __deepcopy__(self, memo: Any) -> ActorMesh:
        return self


def _loaded_class(info: MeshInfo) -> Any:
    """The class of a mesh's actors, unpickled with the first use in this process."""
    if info.cls is None:
        from monarch._core.pickle.actor_class import loads_class

        info.cls = loads_class(info.payload)
    return info.cls


def received_actor_mesh(state: tuple[Any, ...], shape: Shape) -> ActorMesh:
    """A reference that arrived in a message."""
    return ActorMesh(ActorRanks(received_mesh(current_process(), state), shape))


def endpoint_of(
    mesh: ActorMesh, name: str, method: Any, is_explicit: bool = False, propagator: Any = None, timeout: float | None = None
) -> Endpoint[Any, Any]:
    """The endpoint of a method of the actors."""

    def rref(endpoint: Endpoint[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from monarch._core.call.mesh_methods import implementation

        found = implementation("rref", "rref")
        target.check(args, kwargs)
        return found(EndpointCall(endpoint, mesh, name, propagator, args, kwargs))

    target = CallTarget(mesh.__core__, name, method, is_explicit, timeout)
    return Endpoint(target, rref)


class EndpointCall:
    """A call of an endpoint whose result stays with the actors, as `Endpoint.rref` passes it on; immutable.

    `endpoint` has the adverbs that send the call, `mesh` is the called actors, `name` the method, `propagate` the argument of the
    endpoint's declaration. The arguments fit the signature of the method.
    """

    __slots__ = ("args", "endpoint", "kwargs", "mesh", "name", "propagate")

    endpoint: Endpoint[Any, Any]
    mesh: ActorMesh
    name: str
    propagate: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(
        self, endpoint: Endpoint[Any, Any], mesh: ActorMesh, name: str, propagate: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        for field, value in zip(self.__slots__, (args, endpoint, kwargs, mesh, name, propagate), strict=True):
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"EndpointCall.{name} cannot be set: a call is immutable")

    def through(self, function: Callable[..., Any], async_function: Callable[..., Any], *given: Any) -> Future[ValueMesh[Any]]:
        """Sends the call. In place of `method(*args, **kwargs)` the actors run `function(*given, method, *args, **kwargs)`.

        The answer of an actor is the result of that function. An async method is given to `async_function`, which is awaited. The messages
        of a caller stay in order, these and others. `TypeError` for an endpoint that answers by a port.
        """
        target = self.endpoint.__core__
        if target.is_explicit:
            raise TypeError(f"{target.title} answers by a port, and not with what it returns")
        is_async = is_coroutine_function(target.method)
        sent = CallTarget(target.ranks, "_await_through" if is_async else "_call_through", None, timeout=target.timeout)
        return sent.call((async_function if is_async else function, given, self.name, *self.args), self.kwargs, sent.mesh_result)

    def __repr__(self) -> str:
        return f"<EndpointCall {self.name} of {self.mesh!r}>"
