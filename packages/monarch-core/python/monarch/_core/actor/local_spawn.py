"""The start of an actor in its process, at the request of its owner."""

from __future__ import annotations

import marshal

from monarch._core._native import thread_limit
from monarch._core.actor.local_actor import LocalActor
from monarch._core.call.received_mesh import received_mesh
from monarch._core.process.runtime_log import event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.process import LocalProcess


def spawn_local(process: LocalProcess, mailbox: int, spec: bytes) -> None:
    """Starts an actor in this process, on a new thread that builds the instance. Called on the housekeeping thread."""
    rank = int.from_bytes(spec[:4], "little")
    state, owner_proc, owner_mailbox, origin = marshal.loads(memoryview(spec)[4:])
    info = received_mesh(process, state)
    try:
        actor = LocalActor(process, info, rank, owner_proc, owner_mailbox, origin)
    except RuntimeError:  # the actor was stopped before it began
        return
    process.actors[mailbox] = actor
    process.meshes.supervision.actor_started(mailbox, owner_proc)
    from monarch._core.actor import actor_logging
    from monarch._core.call import failure_imports

    del failure_imports
    actor_logging.install()
    event("actor.start", actor=actor.display, mesh=info.unique_name, rank=rank)
    try:
        process.execution.start_actor(actor)
    except (RuntimeError, MemoryError, OSError) as e:
        actor.not_started(f"no thread can be started for the actor: {e}{thread_limit()}")
