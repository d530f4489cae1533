"""The one place where jobs meet core's `attach_to_workers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.actor import Future, HostMesh


def attach(workers: Sequence[str | Future[str]], name: str, secret: bytes | None) -> HostMesh:
    """Handles at once; `NotImplementedError` where the installed monarch-core cannot reach other hosts."""
    import monarch.actor

    core: Any = monarch.actor
    try:
        attach_to_workers = core.attach_to_workers
    except AttributeError:
        raise NotImplementedError("this version of monarch-core cannot attach to workers") from None
    mesh: HostMesh = attach_to_workers(workers=list(workers), name=name, secret=secret)
    return mesh
