"""Hosts of another machine, as far as code sync is concerned: processes here, each with a `WORKSPACE_DIR` of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from monarch._core.workspace_path import _OF_HOST
from monarch._core.workspace_sync import sync_workspace
from monarch.actor import Actor, BootstrapCommand, ProcMesh, Workspace, endpoint, this_host


class OtherHosts:
    """Stands for a `HostMesh` of as many hosts as there are directories."""

    def __init__(self, directories: list[Path], first: int = 1) -> None:
        self.directories = directories
        # No agent has such an id.
        self._agents = tuple(range(first, first + len(directories)))
        self._spawned = []

    def __len__(self) -> int:
        return len(self.directories)

    def spawn_procs(self, name: str, env: dict[str, str] | None = None) -> ProcMesh:
        def command(point):
            here = str(self.directories[point.rank])
            return BootstrapCommand(sys.executable, env={**(env or {}), "WORKSPACE_DIR": here, _OF_HOST: here})

        host = this_host()
        before = len(host._spawned)
        procs = host.spawn_procs({"hosts": len(self)}, name=name, bootstrap_command=command)
        self._spawned += host._spawned[before:] or host._spawned[-1:]
        return procs

    def sync(self, workspace: Workspace, auto_reload: bool = False) -> None:
        asyncio.run(sync_workspace(self, workspace, False, auto_reload))


class Reader(Actor):
    """Looks at its process, and at modules."""

    @endpoint
    def call(self, module, function, *args):
        import importlib

        return getattr(importlib.import_module(module), function)(*args)

    @endpoint
    def keep(self, module, name):
        import importlib

        self.kept = getattr(importlib.import_module(module), name)()

    @endpoint
    def ask_kept(self):
        return self.kept.what()

    @endpoint
    def path(self):
        return sys.path, os.environ.get("WORKSPACE_DIR")

    @endpoint
    def die(self):
        os._exit(1)
