"""Jobs over named machines: the base of jobs that log in to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.job._job.job_state import check_mesh_names
from monarch.job._job.launcher_job import LauncherJob

if TYPE_CHECKING:
    from collections.abc import Mapping


class LoginJob(LauncherJob):
    """Meshes of machines that are there already, and that a worker is started on by logging in."""

    __module__ = "monarch.job"

    def __init__(self) -> None:
        super().__init__()
        self._meshes: dict[str, list[str]] = {}

    def add_mesh(self, name: str, hosts: list[str]) -> None:
        """Adds a mesh of these machines, in this order."""
        add_mesh(self._meshes, name, hosts)

    def _sizes(self) -> dict[str, int]:
        return {name: len(hosts) for name, hosts in self._meshes.items()}


def add_mesh(meshes: dict[str, list[str]], name: str, hosts: list[str]) -> None:
    """`TypeError` or `ValueError` for a bad or known name, and for what cannot be machines."""
    check_mesh_names([name])
    if name in meshes:
        raise ValueError(f"there is a mesh '{name}' already")
    if isinstance(hosts, str):
        raise TypeError(f"mesh '{name}': hosts are several names, not one text")
    for host in hosts:
        if not isinstance(host, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"mesh '{name}': the name of a host is text, not {type(host).__name__}")
        # A name that begins with a dash would be an option of any command that takes it.
        if not host or host.startswith("-") or any(letter.isspace() or letter == "\0" for letter in host):
            raise ValueError(f"mesh '{name}': '{host}' names no host")
    if not hosts:
        raise ValueError(f"mesh '{name}' needs at least one host")
    meshes[name] = list(hosts)


def check_meshes(meshes: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """A copy of meshes that are given all at once."""
    found: dict[str, list[str]] = {}
    for name, hosts in meshes.items():
        add_mesh(found, name, hosts)
    if not found:
        raise ValueError("a job has at least one mesh")
    return found
