"""The controllers of this process: one for each mesh of procs that was activated, and its slices."""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

from monarch.actor import ProcMesh, Slice
from monarch.extension import is_simulated
from monarch.extension.mesh import mesh_view
from monarch.tensor._controller.active import active
from monarch.tensor._controller.controller import Controller
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from monarch.extension import ProcId

_lock = threading.Lock()
_controllers: list[tuple[dict[ProcId, int], Controller]] = []
_process = os.getpid()


def controller_of(procs: ProcMesh, kind: type[Controller] | None = None) -> tuple[Controller, Slice]:
    """The controller whose workers are on these procs, which is started if there is none, and where they are among its ranks.

    `kind` is that of the active mesh, unless it is given.
    """
    if kind is None:
        running: Controller | None = None if active.mesh is None else active.mesh.controller
        kind = Controller if running is None else type(running)
    view = mesh_view(procs)
    if not view.procs:
        raise ValueError(f"{procs!r} has no ranks to activate")
    if kind.has_workers and is_simulated():
        raise TensorMeshError(
            f"{procs!r} are procs of a Universe, which have no workers. `monarch.actor.testing.patch_tensor_engine` of the actor, or "
            "`monarch.tensor.simulator.simulated(procs)` in the place of `procs.activate()`, simulates the mesh."
        )
    sizes = list(procs.sizes.values())
    with _lock:
        global _process
        if _process != os.getpid():  # a fork has no connection to the workers
            _controllers.clear()
            _process = os.getpid()
        for _, controller in _controllers:
            controller.end_if_stopped()
        _controllers[:] = [pair for pair in _controllers if pair[1].failed is None]
        for ranks, controller in _controllers:
            if type(controller) is kind and all(proc in ranks for proc in view.procs):
                found = _affine([ranks[proc] for proc in view.procs], sizes)
                if found is not None:
                    return controller, found
        controller = kind(procs)
        _controllers.append(({proc: rank for rank, proc in enumerate(view.procs)}, controller))
        return controller, Slice.new_row_major(sizes)


def _affine(ranks: list[int], sizes: list[int]) -> Slice | None:
    """The ranks as an offset, sizes and strides; None if they do not lie so."""
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, ranks[step] - ranks[0] if size > 1 else 1)
        step *= size
    found = Slice(offset=ranks[0], sizes=sizes, strides=strides)
    lies = [ranks[0] + sum(i * s for i, s in zip(place, strides, strict=True)) for place in itertools.product(*map(range, sizes))]
    return found if lies == ranks and min(strides, default=1) > 0 else None


def controllers() -> list[Any]:
    """Those that are in use."""
    with _lock:
        return [controller for _, controller in _controllers]
