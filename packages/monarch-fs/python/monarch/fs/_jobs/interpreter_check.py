"""An interpreter that is a symbolic link out of the mounted tree: the machine of each host has to have its target."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from monarch.actor import Actor, endpoint

if TYPE_CHECKING:
    from monarch.actor import HostMesh


def leaves_tree(source: str, path: str) -> bool:
    """Does the path resolve outside the directory `source`?"""
    root = os.path.realpath(source)
    return os.path.commonpath([root, os.path.realpath(path)]) != root


class InterpreterCheck(Actor):
    """Looks for an interpreter on its host."""

    @endpoint
    def missing(self, path: str) -> tuple[str, str] | None:
        """Host name and the resolved path where that is no executable file; None where it is one."""
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return None
        return os.uname().nodename, os.path.realpath(path)


def check_on_hosts(hosts: Mapping[str, HostMesh], path: str) -> None:
    """`ValueError` names the hosts on which `path` is not executable."""
    lacking: list[str] = []
    for name, mesh in hosts.items():
        procs = mesh.spawn_procs(name="interpreter_check")
        try:
            found = procs.spawn("interpreter_check", InterpreterCheck).missing.call(path).get()
            for point, one in found.items():
                if one is not None:
                    lacking.append(f"{name}[{point.rank}] ({one[0]}) has no {one[1]}")
        finally:
            procs.stop().get()
    if lacking:
        raise ValueError(f"python_exe {path} leaves the mounted tree, and its target is missing:\n  " + "\n  ".join(lacking))
