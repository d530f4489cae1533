"""The parts of a process that higher layers implement, as this layer and the other parts use them.

A process has actors, owned meshes, attached hosts and listeners. Their classes lie in the layers that implement them; only what other
layers use of them stands here. Objects whose types lie in higher layers are `Any`.
"""

from __future__ import annotations

from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Mapping
    from typing import Any

    from monarch._core._native import ActorMailbox, PendingCall
    from monarch._core._native.system import ProcessEnd
    from monarch._core.call.future import Future
    from monarch._core.errors.errors import MonarchError
    from monarch._core.errors.failure import MeshFailure
    from monarch._core.process.identity import ActorAddr
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.shape.shape import Point


class RunningActor(Protocol):
    """An actor of this process (`actor/local_actor.py`)."""

    info: MeshInfo
    display: str
    point: Point
    mailbox: ActorMailbox
    # The thread of the actor, and its event loop if it is async.
    thread: int
    loop_side: Any
    began: bool
    cleaning: bool
    given_up: bool
    # The class, the context of its messages, and the pickled creator of the meshes that it spawns.
    cls: Any
    context: Any
    creator_bytes: bytes | None
    # Answers that the actor owes through ports.
    owed: set[tuple[int, int, int]]

    @property
    def owner(self) -> Any:
        """The actor as an owner of meshes."""
        ...

    @property
    def addr(self) -> ActorAddr: ...
    @property
    def creator(self) -> Any: ...
    @property
    def proc_mesh(self) -> Any: ...
    def run(self) -> None: ...
    def not_started(self, why: str) -> None: ...
    def orphaned(self, info: MeshInfo) -> None: ...
    def owned_failed(self, failure: MeshFailure, ask: bool) -> None: ...
    def abort(self, reason: str | None) -> None: ...
    def stop_self(self, reason: str) -> None: ...


class MeshOwner(Protocol):
    """The owner of a mesh: an actor, or the process itself, which has no actor."""

    @property
    def display(self) -> str: ...
    @property
    def actor(self) -> object | None: ...


class Owned(Protocol):
    """A mesh that this process owns (`supervise/supervision.py`)."""

    info: MeshInfo
    is_actors: bool
    # The time of the spawn.
    since: float

    @property
    def owner(self) -> MeshOwner: ...
    def stop(self, reason: str, bounds: tuple[float, float] | None = None) -> Future[None]: ...
    def is_over(self) -> bool: ...
    def is_owned(self) -> bool: ...
    def forget(self) -> None: ...


class Attached(Protocol):
    """The hosts of one call of `attach_to_workers` (`hosts/attachment.py`), by their ranks."""

    ids: tuple[int, ...]
    addresses: list[str]
    # Ranks whose address is not known.
    unknown: set[int]
    cell: PendingCall
    given: Any
    has_dialled: bool
    # The errors of hosts that have no address.
    no_address: dict[int, MonarchError]
    explain: Callable[[], MonarchError | None] | None


class Listeners(Protocol):
    """The listeners of membership (`extension/listening.py`)."""

    def spawned(self, info: MeshInfo) -> None: ...
    def attaching(self, attachment: Attached, again: set[int]) -> None: ...
    def ended(self, ends: list[tuple[int, ProcessEnd]]) -> None: ...


class Console(Protocol):
    """In a notebook: writes the lines of procs to the cells."""

    def close(self) -> None: ...


class Cells(Protocol):
    """In an interactive shell: shows unhandled failures."""

    def interrupt(self) -> None: ...
    def show(self, head: str, report: str) -> None: ...


class World(Protocol):
    """The simulated world of a process (`testing/universe.py`)."""

    def root_failed(self, failure: MeshFailure, /) -> None: ...
    def shutdown(self) -> Future[None]: ...
    def new_event(self, process: Any, /) -> Any: ...
    def new_loop(self, process: Any, /) -> AbstractEventLoop: ...
    def run_main(self, process: Any, main: Any, /) -> Any: ...
    def abandon_loop(self, loop: AbstractEventLoop, /) -> None: ...


class ForkedProcess(Protocol):
    """A process, as a fork of it uses it."""

    @property
    def actors(self) -> Mapping[int, RunningActor]: ...
