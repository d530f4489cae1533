"""Edit, sync, call: the code changes, and the processes that run it stay."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from monarch.actor import Actor, Workspace, endpoint
from monarch.actor.testing import local_hosts


class Trainer(Actor):
    """Keeps its state, and takes its behaviour from a module that is being edited."""

    def __init__(self) -> None:
        self.steps = 0

    @endpoint
    def step(self) -> str:
        import recipe  # type: ignore[import-not-found]  # the module is written below

        self.steps += 1
        return f"step {self.steps}: {recipe.describe()}"


async def edit_sync_call() -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        project.mkdir()
        sys.path.insert(0, str(project))
        (project / "recipe.py").write_text("def describe():\n    return 'learning rate 0.1'\n")

        # Two hosts, here agents on this machine; `attach_to_workers` would return the hosts of a cluster.
        async with local_hosts(2) as hosts:
            workspace = Workspace([project])
            trainers = hosts.spawn_procs(per_host={"gpus": 2}).spawn("trainers", Trainer)

            # Every host gets a copy. The copy is importable at once, also in running processes.
            await hosts.sync_workspace(workspace)
            print(set((await trainers.step.call()).values()))

            # One edited file is sent, and the processes load it again. The actors keep their state.
            (project / "recipe.py").write_text("def describe():\n    return 'learning rate 0.01'\n")
            await hosts.sync_workspace(workspace, auto_reload=True)
            print(set((await trainers.step.call()).values()))


def main() -> None:
    asyncio.run(edit_sync_call())


if __name__ == "__main__":
    main()
