"""Hosts by a name that the configuration of a program gives them, from the wheel that knows jobs."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.hosts.host_mesh import HostMesh


def hosts_from_config(name: str) -> HostMesh:
    """The hosts `name` of the current job, so that one script runs on a laptop and on a cluster.

    Args:
        name: the name of a mesh of the current job (`monarch apply`). Without a current job the result is two hosts of this machine, which
            end with this process.

    Returns:
        The hosts.

    Raises:
        NotImplementedError: the wheel monarch-jobs is not installed.
        TypeError: `name` is not a string.

    ```python
    from monarch.actor import hosts_from_config

    hosts = hosts_from_config("workers")
    assert hosts.spawn_procs(per_host={"procs": 1}).size() == hosts.size()
    ```
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"hosts_from_config: expected the name of a mesh, not {type(name).__name__}")
    from monarch._core.call.mesh_methods import implementation

    return implementation("hosts_from_config", "hosts_from_config", "monarch-jobs")(name)
