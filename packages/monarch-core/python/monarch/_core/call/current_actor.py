"""The actor of the message in progress on this thread or task, and its name as a creator of meshes."""

from __future__ import annotations

from _contextvars import ContextVar

from monarch._core.process.current import current_process, known_process
from monarch._core.shape.shape import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core.process.parts import RunningActor
    from monarch._core.process.process import LocalProcess

UNITY = Extent((), ())
ORIGIN = Point(0, UNITY)

# The `Context` of the message in progress.
current: ContextVar[Any] = ContextVar("monarch_context")
set_context = current.set


class CreatorInstance:
    """The creator of an actor: `name`, `class_name`, `rank`, and its own `creator` (None for the root)."""

    __slots__ = ("class_name", "creator", "name", "rank")

    def __init__(self, name: str, class_name: str | None, rank: Point, creator: CreatorInstance | None) -> None:
        self.name = name
        self.class_name = class_name
        self.rank = rank
        self.creator = creator

    def __reduce__(self) -> tuple[Any, ...]:
        return (CreatorInstance, (self.name, self.class_name, self.rank, self.creator))

    def __repr__(self) -> str:
        return f"<creator {self.name}>"


def current_instance_actor() -> RunningActor | None:
    """The current actor; None outside any actor. Never starts a client."""
    found = current.get(None)
    return None if found is None else found.actor_instance.__core__


def current_local_actor() -> RunningActor | None:
    """The current actor, and outside of any that of a proc with one actor; None for the root client, which starts if needed."""
    found = current.get(None)
    if found is None:
        return only_actor(current_process())
    if known_process() is None:  # this process was forked since
        current_process()
    return found.actor_instance.__core__


def only_actor(process: LocalProcess) -> RunningActor | None:
    """The actor of a proc that has one: a thread of the user there acts for it."""
    if not process.is_client and len(process.actors) == 1:
        # The loop needs a copy: other threads add to the dictionary.
        for actor in list(process.actors.values()):
            return actor
    return None


def current_display() -> str | None:
    """The display name of the current actor; None outside any actor. Never starts a client."""
    actor = current_instance_actor()
    if actor is None and current.get(None) is None:
        process = known_process()
        actor = None if process is None else only_actor(process)
    return None if actor is None else actor.display


def current_mailbox() -> int:
    """The mesh of the current actor; 0 outside any actor. Never starts a client."""
    actor = current_instance_actor()
    return 0 if actor is None else actor.info.uid


def name_of(process: LocalProcess, actor: RunningActor | None) -> str:
    if actor is not None:
        return actor.info.name
    return "root" if process.is_client else process.name


def display_of(process: LocalProcess, actor: RunningActor | None) -> str:
    """The name in texts: of the actor, of the root, or of the proc."""
    if actor is not None:
        return actor.display
    return "<root>" if process.place.info is None or process.is_client else process.place.info.display(process.place.rank)


def creator_bytes(process: LocalProcess, actor: RunningActor | None) -> bytes:
    """The actor, or the process without one, as the `creator` of the meshes that it spawns, pickled."""
    key = process if actor is None else actor
    if key.creator_bytes is None:
        from _pickle import dumps

        name = name_of(process, actor)
        root = CreatorInstance(name, None, ORIGIN, None)
        creator = root if actor is None else CreatorInstance(name, actor.info.class_name, actor.point, actor.creator)
        key.creator_bytes = dumps(creator, 5)
    return key.creator_bytes
