"""The mesh and the stream that are active in a thread."""

from __future__ import annotations

import threading
from typing import Any


class Active(threading.local):
    """`mesh` is None outside of every activation, and inside of `no_mesh.activate()`."""

    # A `DeviceMesh` and a `Stream`: classes of a package that needs this one.
    mesh: Any = None
    stream: Any = None


active = Active()
