"""What a scheduler has to offer to be used for jobs: entry-point group `monarch.launcher`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from monarch.job._plan import Plan
    from monarch.job._status import JobStatus


@runtime_checkable
class Launcher(Protocol):
    """Talks to one scheduler, never to hosts: joining, certificates, re-attaching and healing are common code.

    `ids` is what `submit` returned, plain JSON; it is all that another process needs to go on with the allocation.
    """

    kind: str

    def plan(self) -> Plan:
        """What will be submitted; nothing is touched."""
        ...

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        """Submits the plan and returns at once. Whatever it raises, Ctrl-C included, nothing half-made is left."""
        ...

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        """One look at the scheduler; hosts are `waiting`, or `lost` where the scheduler knows that their worker ended."""
        ...

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        """Per mesh, by rank, where the worker listens; None: not yet."""
        ...

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Starts the workers of these (mesh, rank) again, and gives those for which that was possible; changes `ids` in place."""
        ...

    def cancel(self, ids: dict[str, Any]) -> None:
        """Ends the allocation; one that is over is fine."""
        ...
