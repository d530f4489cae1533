"""The process and the machine that this code runs in, as meshes."""

from __future__ import annotations

from monarch._core.call.context import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.hosts.host_mesh import HostMesh
    from monarch._core.hosts.proc_mesh import ProcMesh


def this_proc() -> ProcMesh:
    """The process this runs in; for the root client, the client's own process."""
    return context().actor_instance.proc


def this_host() -> HostMesh:
    """The machine this runs on, a 0-dimensional mesh."""
    process = context().actor_instance._process  # pyright: ignore[reportPrivateUsage]
    # The zygote of a new client starts while this is imported.
    from monarch._core.hosts.host_mesh import local_host

    return local_host(process)
