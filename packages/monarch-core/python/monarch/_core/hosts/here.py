"""The current process and the current machine as meshes."""

from __future__ import annotations

from monarch._core.call.context import context
from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.hosts.host_mesh import HostMesh, ProcMesh


def this_proc() -> ProcMesh:
    """The current process as a mesh of one; for the root client, the client's own process.

    Returns:
        A reference: its actors live in this process, and `stop` is refused.

    Raises:
        RuntimeError: this process is a fork of a process that used Monarch.

    ```python
    from monarch.actor import Actor, endpoint, this_proc

    class Local(Actor):
        @endpoint
        def double(self, x: int) -> int:
            return 2 * x

    assert this_proc().spawn("local", Local).double.call_one(4).get() == 8
    ```
    """
    return context().actor_instance.proc


def this_host() -> HostMesh:
    """The current machine, a mesh without dimensions.

    Returns:
        A mesh of one host, which can spawn procs.

    Raises:
        RuntimeError: this process is a fork of a process that used Monarch.

    ```python
    from monarch.actor import this_host

    with this_host().spawn_procs({"procs": 2}) as procs:
        assert procs.sizes == {"procs": 2}
    ```
    """
    process = current_process()
    # The zygote of a new client starts during this import.
    from monarch._core.hosts.host_mesh import local_host

    return local_host(process)
