"""Functions that layers above this one provide to the layers below them.

Imports go downwards only. Where a lower layer needs a function of a higher one (a call starts the client, a mesh of hosts syncs code), the
lower layer names the function here and the composition root, `start/composition_root.py`, provides it. The root is the only module that a
lower layer names, and it is loaded with the first use.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ROOT = "monarch._core.start.composition_root"


class Provided:
    """The provided functions. Types of higher layers are `Any` here."""

    if TYPE_CHECKING:
        start_client: Callable[..., Any]
        # The mesh of a single process, and the mesh on which an actor was spawned.
        own_proc: Callable[[Any], Any]
        received_proc_mesh: Callable[..., Any]
        # Functions of a host mesh.
        spawn_procs: Callable[..., Any]
        sync_workspace: Callable[..., Any]
        # The choice of the bulk transport, before the first large message to another host.
        choose_bulk_transport: Callable[[], None]
        # Functions of a simulated process: its housekeeping thread, and the bootstrap of a proc.
        housekeeping: Callable[[Any], Any]
        prepare_proc: Callable[[Any, dict[str, Any], int], bool]
    else:

        def __getattr__(self, name):
            functions = import_module(_ROOT).PROVIDED
            if name not in functions:
                raise AttributeError(f"no higher layer provides {name!r}")
            self.__dict__.update(functions)
            return functions[name]


provided = Provided()
