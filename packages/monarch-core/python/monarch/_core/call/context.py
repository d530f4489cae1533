"""The current actor: the actor of the message in progress, or the root client."""

from __future__ import annotations

from monarch._core.call.current_actor import ORIGIN, CreatorInstance, creator_bytes, current, display_of, name_of, only_actor
from monarch._core.process.current import current_process, known_process
from monarch._core.process.provided import provided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.hosts.host_mesh import ProcMesh
    from monarch._core.process.identity import ActorAddr
    from monarch._core.process.parts import RunningActor
    from monarch._core.process.process import LocalProcess
    from monarch._core.shape.shape import Point


class Instance:
    """The current actor, or the root client."""

    __slots__ = ("__core__", "_process")

    def __init__(self, process: LocalProcess, actor: RunningActor | None) -> None:
        self._process = process
        self.__core__ = actor

    @property
    def actor_id(self) -> ActorAddr:
        if self.__core__ is None:
            from monarch._core.process.identity import addr_of

            return addr_of(self._process, "client" if self._process.is_client else "proc", 0)
        return self.__core__.addr

    @property
    def proc_id(self) -> str:
        return self.actor_id.proc_name

    @property
    def rank(self) -> Point:
        """Position of the actor in the spawn space."""
        return ORIGIN if self.__core__ is None else self.__core__.point

    @property
    def proc(self) -> ProcMesh:
        """The mesh of the one process in which the actor runs."""
        return provided.own_proc(self._process)

    @property
    def proc_mesh(self) -> ProcMesh:
        """The whole mesh on which the actor was spawned."""
        return self.proc if self.__core__ is None else self.__core__.proc_mesh

    @property
    def name(self) -> str:
        return name_of(self._process, self.__core__)

    @property
    def class_name(self) -> str | None:
        return None if self.__core__ is None else self.__core__.info.class_name

    @property
    def creator(self) -> CreatorInstance | None:
        return None if self.__core__ is None else self.__core__.creator

    def abort(self, reason: str | None = None) -> None:
        """Fails this actor after the message in progress has been answered."""
        if self.__core__ is None:
            raise RuntimeError("the root client cannot be aborted")
        self.__core__.abort(reason)

    kill = abort

    def stop(self, reason: str | None = None) -> None:
        """Ends this actor gracefully, after the messages that are queued."""
        if self.__core__ is None:
            raise RuntimeError("the root client cannot be stopped: use shutdown_context()")
        self.__core__.stop_self(reason or "stopped by itself")

    def creator_bytes(self) -> bytes:
        """This actor as the `creator` of the meshes that it spawns, pickled."""
        return creator_bytes(self._process, self.__core__)

    def __str__(self) -> str:
        return display_of(self._process, self.__core__)

    def __repr__(self) -> str:
        return f"<Instance {self}>"


class Context:
    """`actor_instance`: the actor that runs; `message_rank`: its position in the mesh that the caller addressed."""

    __slots__ = ("actor_instance", "message_rank")

    def __init__(self, actor_instance: Instance, message_rank: Point) -> None:
        self.actor_instance = actor_instance
        self.message_rank = message_rank


def context() -> Context:
    """The context of the current message. Outside any actor it is that of the root client, which starts if needed.

    Returns:
        A `Context`: `actor_instance` is the actor that runs, `message_rank` its position in the mesh that the caller addressed.

    Raises:
        RuntimeError: this process is a fork of a process that used Monarch.

    ```python
    from monarch.actor import Actor, context, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def where(self) -> tuple[str, int]:
            return context().actor_instance.name, context().message_rank["gpus"]

    with this_host().spawn_procs({"gpus": 2}) as procs:
        names = procs.spawn("workers", Worker).where.call().get()
        assert [gpu for _, gpu in names.values()] == [0, 1]
    ```
    """
    try:
        found: Context = current.get()
    except LookupError:
        return _outside()
    if known_process() is None:  # this process was forked since
        current_process()
    return found


def has_context() -> bool:
    """Whether this process has a context. `context()` would start a client otherwise; this function never starts one.

    if has_context():
        print(context().actor_instance)
    """
    return known_process() is not None


def _outside() -> Context:
    process = current_process()
    actor = only_actor(process)
    return Context(Instance(process, None), ORIGIN) if actor is None else actor.context


def current_rank() -> Point:
    """The position of this actor in the mesh that the caller addressed.

    Returns:
        A `Point`: a mapping from label to index, with `rank`, the row-major position. Outside any actor it has no dimensions.

    ```python
    from monarch.actor import Actor, current_rank, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def rank(self) -> int:
            return current_rank().rank

    with this_host().spawn_procs({"gpus": 4}) as procs:
        workers = procs.spawn("workers", Worker)
        assert workers.slice(gpus=slice(2, 4)).rank.call().get().values() == [0, 1]
    ```
    """
    return context().message_rank


def current_size() -> dict[str, int]:
    """The shape of the mesh that the caller addressed.

    Returns:
        Label to size, in the order of the dimensions.

    ```python
    from monarch.actor import Actor, current_size, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def called(self) -> dict[str, int]:
            return current_size()

    with this_host().spawn_procs({"hosts": 2, "gpus": 2}) as procs:
        assert procs.spawn("workers", Worker).called.choose().get() == {"hosts": 2, "gpus": 2}
    ```
    """
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    return str(context().actor_instance.actor_id)
