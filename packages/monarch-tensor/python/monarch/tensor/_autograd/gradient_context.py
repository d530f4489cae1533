"""The mesh and the stream in which the parts of a backward run, for `grad`."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from monarch.tensor._controller.active import active
from monarch.tensor._tensors.activation import Activation
from monarch.tensor._tensors.dispatch import MeshMode
from monarch.tensor._tensors.mesh import Tensor, main_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.tensor._tensors.mesh import DeviceMesh, Stream

_Context = AbstractContextManager[Any]


def capture_context() -> Callable[[], _Context]:
    """A function whose contexts have the mesh and the stream that are active now, on any thread and inside of any activation."""
    return functools.partial(_within, active.mesh, active.stream)


def node_context(gradients: Sequence[Any]) -> _Context:
    """The mesh and the stream of the first mesh tensor among the gradients. Where all are local, no mesh."""
    for gradient in gradients:
        if type(gradient) is Tensor:
            place = gradient.__core__.place
            return _within(place.mesh, place.stream)
    return _within(None, active.stream)


class _Restored(Activation):
    """An activation inside of which the procs of another controller may have been active before."""

    def __init__(self, mesh: DeviceMesh | None, stream: Stream | None) -> None:
        super().__init__()
        self._mesh = mesh
        self._stream = stream

    def __enter__(self) -> None:
        self._enter(self._mesh, self._stream)


def _within(mesh: DeviceMesh | None, stream: Stream | None) -> _Context:
    # Torch's engine has the modes of its caller on its own threads, too. `active` belongs to one thread.
    place = _mode_place()
    if mesh is None:
        needed = place is not None
    else:
        needed = place is None or active.mesh is None or place.mesh != mesh or place.stream is not (stream or main_stream)
    return _Restored(mesh, stream) if needed else nullcontext()


def _mode_place() -> Any:
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if isinstance(mode, MeshMode):
            return mode.place
    return None
