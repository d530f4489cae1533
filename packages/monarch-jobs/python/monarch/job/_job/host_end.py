"""The end of a job on its hosts: agents that the job has started are asked to stop, all others keep running."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch.extension.mesh import stop_all_procs, stop_own_procs

if TYPE_CHECKING:
    from monarch.actor import Future, HostMesh

SHUTDOWN_SECONDS = 5.0


def shut_down(meshes: Iterable[HostMesh]) -> None:
    """Ends the procs of these hosts, then their agents."""
    futures: list[Future[None]] = []
    for mesh in meshes:
        try:
            futures.append(mesh.shutdown())
        except RuntimeError:
            continue  # the mesh has been shut down already
    _await(futures)


def stop_procs(meshes: Iterable[HostMesh]) -> None:
    """Ends the procs of these hosts; the agents stay."""
    _await([stop_all_procs(mesh) for mesh in meshes])


def leave(meshes: Iterable[HostMesh]) -> None:
    """Ends the procs that were spawned through these meshes and their copies; the agents stay."""
    _await([stop_own_procs(mesh) for mesh in meshes])


def _await(futures: list[Future[None]]) -> None:
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    for future in futures:
        try:
            future.get(max(deadline - time.monotonic(), 0.001))
        except Exception:
            continue  # the scheduler, or the loss of the client, ends a host that does not answer
