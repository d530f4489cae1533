"""Hosts of another machine from the view of code sync: processes here, each with a `WORKSPACE_DIR` of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from monarch._core.process.current import current_process
from monarch._core.sync.path import VARIABLES, keep
from monarch._core.sync.sync import sync_workspace
from monarch.actor import Actor, BootstrapCommand, ProcMesh, Workspace, endpoint, this_host


class OtherHosts:
    """Replaces a `HostMesh` with one host per directory."""

    def __init__(self, directories: list[Path], first: int = 1) -> None:
        self.directories = directories
        # No agent has such an id.
        self.__core__ = SimpleNamespace(agents=tuple(range(first, first + len(directories))), spawned=[])
        self._procs: list[ProcMesh] = []

    def stop(self) -> None:
        for procs in self._procs:
            procs.stop().get()

    def __len__(self) -> int:
        return len(self.directories)

    def spawn_procs(self, name: str, by_command: bool = False) -> ProcMesh:
        """Procs whose agent has exported the directory: forked from it, or started by a command."""
        directories = [str(directory) for directory in self.directories]

        def forked() -> None:
            keep(directories[current_process().place.rank])

        def command(point):
            return BootstrapCommand(sys.executable, env=dict.fromkeys(VARIABLES, directories[point.rank]))

        procs = this_host().spawn_procs(
            {"hosts": len(self)}, None if by_command else forked, name, bootstrap_command=command if by_command else None
        )
        self.__core__.spawned.append(list(this_host().__core__.spawned)[-1])
        self._procs.append(procs)
        return procs

    def sync(self, workspace: Workspace, auto_reload: bool = False) -> None:
        asyncio.run(sync_workspace(self, workspace, False, auto_reload))


class Reader(Actor):
    """Reads its process's state, and modules."""

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
