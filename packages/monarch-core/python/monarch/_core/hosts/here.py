"""The current process and the current machine as meshes."""

from __future__ import annotations

from monarch._core.call.context import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.hosts.host_mesh import HostMesh
    from monarch._core.hosts.proc_mesh import ProcMesh


def this_proc() -> ProcMesh:
    """The current process as a mesh; for the root client, the client's own process."""
    return context().actor_instance.proc


def this_host() -> HostMesh:
    """The current machine, a 0-dimensional mesh."""
    process = context().actor_instance._process  # pyright: ignore[reportPrivateUsage]
    # The zygote of a new client starts during this import.
    from monarch._core.hosts.host_mesh import local_host

    return local_host(process)
