"""The wait of a target for a version of all ranks of its source."""

from __future__ import annotations

from threading import Lock, Timer
from typing import TYPE_CHECKING

from monarch import extension
from monarch.actor import deadline_left
from monarch.rdma.errors import RDMATimeoutError
from monarch.rdma.weights.attaching import rank_name, source_error
from monarch.rdma.weights.published import ask, version_in

if TYPE_CHECKING:
    from monarch.actor import Future
    from monarch.extension.mesh import MeshView


def version_of_all(name: str, mesh: MeshView, version: int) -> Future[int]:
    """Done when all processes of the mesh have this version or a later one; the value is the newest that all have."""
    promise = extension.promise(f"version {version} of weights '{name}'")
    lock, found, left = Lock(), list[int](), len(mesh.procs)

    def fail(error: Exception) -> None:
        nonlocal left
        with lock:
            left, was = -1, left
        if was > 0:
            promise.set_exception(error)

    def arrived(rank: int, future: Future[bytes]) -> None:
        nonlocal left
        try:
            body = future.get()
        except extension.RequestError as e:
            fail(source_error(e, f"wait for weights '{name}'", rank_name(rank, mesh), name))
        else:
            with lock:
                found.append(version_in(body))
                left -= 1
                if left:
                    return
            promise.set_result(min(found))
        if timer is not None:
            timer.cancel()

    timer, limit = None, deadline_left()
    if limit is not None:
        timer = Timer(limit, lambda: fail(RDMATimeoutError(f"wait for version {version} of weights '{name}': the deadline has passed")))
        timer.daemon = True
        timer.start()
    for rank, proc in enumerate(mesh.procs):
        extension.when_done(ask(proc, "wait", name, version=version), lambda future, rank=rank: arrived(rank, future))
    return promise.future
