"""The owner of the meshes that this thread or task spawns."""

from __future__ import annotations

from monarch._core._native import block_if_exiting
from monarch._core.call.current_actor import current_local_actor
from monarch._core.process.current import current_process, has_exited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.owner import Owner


def current_owner() -> Owner:
    """The owner on whose behalf this thread or task acts."""
    actor = current_local_actor()
    return actor.owner if actor is not None else current_process().owner


def spawning_owner() -> Owner:
    """The current owner, for a new mesh; `RuntimeError` if this is the root and its client has ended."""
    owner = current_owner()
    exited = has_exited() if owner.process.execution.world is None else owner.process.closed
    if owner.actor is None and exited:
        block_if_exiting()
        raise RuntimeError("the Monarch client of this process has been shut down and cannot be started again")
    return owner
