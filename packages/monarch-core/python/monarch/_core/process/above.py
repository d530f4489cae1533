"""Functions that layers above this one provide to the layers below them.

Imports go downwards only. Where a lower layer needs a function of a higher one (a call starts the client, a mesh of hosts syncs code), the
lower layer names the function here and the composition root, `start/provided.py`, provides it. The root is the only module that a lower
layer names, and it is loaded with the first use.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ROOT = "monarch._core.start.provided"


class Above:
    """The provided functions. Types of higher layers are `Any` here."""

    if TYPE_CHECKING:
        start_client: Callable[..., Any]
        # The mesh of a single process, and the mesh on which an actor was spawned.
        own_proc: Callable[[Any], Any]
        received_proc_mesh: Callable[..., Any]
        # Functions of a host mesh.
        spawn_procs: Callable[..., Any]
        sync_workspace: Callable[..., Any]
        # Functions of a simulated process: its housekeeping thread, and the bootstrap of a proc.
        housekeeping: Callable[[Any], Any]
        prepare_proc: Callable[[Any, dict[str, Any], int], bool]
    else:

        def __getattr__(self, name):
            provided = import_module(_ROOT).PROVIDED
            if name not in provided:
                raise AttributeError(f"nothing above provides {name!r}")
            self.__dict__.update(provided)
            return provided[name]


above = Above()
