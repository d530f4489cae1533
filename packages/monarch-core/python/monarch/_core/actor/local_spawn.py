"""The start of an actor in its process, at the request of its owner."""

from __future__ import annotations

from contextlib import suppress

from monarch._core._native import ActorMailbox, thread_limit
from monarch._core.actor import actor_logging
from monarch._core.actor.local_actor import LocalActor
from monarch._core.call import failure_imports
from monarch._core.call.received_mesh import received_mesh
from monarch._core.errors.failure import ExitReason, MeshFailure
from monarch._core.process.request_fields import MalformedRequest, fields
from monarch._core.process.runtime_log import INFO, event, is_taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.process import LocalProcess

# Only code for failures uses its modules, which a proc has before its first actor.
del failure_imports


def spawn_local(process: LocalProcess, mailbox: int, spec: bytes) -> None:
    """Starts an actor in this process, on a new thread that builds the instance. Called on the housekeeping thread."""
    rank = int.from_bytes(spec[:4], "little")
    state, owner_proc, owner_mailbox, origin = fields(memoryview(spec)[4:], tuple, int, int, bytes)
    try:
        info = received_mesh(process, state)
    except (ValueError, TypeError, OverflowError) as e:
        raise MalformedRequest from e
    try:
        actor = LocalActor(process, info, rank, owner_proc, owner_mailbox, origin)
    except RuntimeError:  # the actor was stopped before it began
        return
    process.actors[mailbox] = actor
    process.meshes.supervision.actor_started(mailbox, owner_proc)
    actor_logging.install()
    if is_taken(INFO):
        event("actor.start", actor=actor.display, mesh=info.unique_name, rank=rank)
    try:
        process.execution.start_actor(actor)
    except (RuntimeError, MemoryError, OSError) as e:
        actor.not_started(f"no thread can be started for the actor: {e}{thread_limit()}")


def refuse_spawn(process: LocalProcess, mailbox: int) -> None:
    """Fails the calls to an actor whose spawn request is malformed."""
    reason = ExitReason("not_started", detail="the request to spawn it is malformed")
    failure = MeshFailure(actor=process.name, reason=reason, host=process.host, pid=process.pid).to_wire()
    process.actors.unstarted[mailbox] = failure
    with suppress(RuntimeError):  # an actor with this id has ended
        ActorMailbox(process.native, mailbox).close(failure)
