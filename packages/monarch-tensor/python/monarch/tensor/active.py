"""The mesh and the stream that are active in a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from monarch.tensor.above import above
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from monarch.tensor.mesh import DeviceMesh
    from monarch.tensor.stream import Stream


class Active(threading.local):
    """`mesh` is None outside of every activation, and inside of `no_mesh.activate()`."""

    mesh: DeviceMesh | None = None
    stream: Stream | None = None


active = Active()


def get_active_mesh() -> DeviceMesh:
    """The innermost mesh that is active in this thread. `TensorMeshError` if there is none."""
    if active.mesh is None:
        raise TensorMeshError("no mesh is active in this thread: `with procs.activate():` makes one active")
    return active.mesh


def get_active_stream() -> Stream:
    """The stream that is active in this thread: the main one, unless another one was activated by `Stream.activate`."""
    main_stream = above("stream", "main_stream")

    return active.stream or main_stream
