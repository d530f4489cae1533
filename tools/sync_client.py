"""A client with a project of one module. Commands arrive as lines; one line answers each.

    python -P tools/sync_client.py FOLDER SECRET_FILE ADDRESS...

`sync N TEXT` writes the module and syncs it to the N-th host. `read N` spawns procs there and answers with their imported text. `put N`
makes a new proc write a file into its `WORKSPACE_DIR`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ != "__main__":

    class SyncClient:
        """The process that sends commands to the client."""

        def __init__(self, process: subprocess.Popen[str]) -> None:
            self.process = process

        @staticmethod
        def command(folder: Path, secret: Path, *addresses: str) -> list[str]:
            return [sys.executable, "-P", "-W", "error", str(Path(__file__)), str(folder), str(secret), *addresses]

        @classmethod
        def start(cls, folder: Path, secret: Path, *addresses: str) -> SyncClient:
            return cls(subprocess.Popen(cls.command(folder, secret, *addresses), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

        def ask(self, *words: object) -> Any:
            assert self.process.stdin is not None and self.process.stdout is not None
            print(*words, file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
            assert line, self.process.wait()
            return json.loads(line)

        def sync(self, text: str, host: int = 0) -> str:
            """The output of the sync at the client."""
            return self.ask("sync", host, text)

        def read(self, host: int = 0) -> str:
            """The module text in new procs, which must be from their own workspace."""
            text, file, workspace = self.ask("read", host)
            assert os.path.dirname(file) == f"{workspace}/project"
            return text

        def workspace(self, host: int = 0) -> Path:
            return Path(self.ask("read", host)[2])

        def end(self) -> None:
            out, _ = self.process.communicate()
            assert (self.process.returncode, out) == (0, "")

        def __enter__(self) -> SyncClient:
            return self

        def __exit__(self, *_: object) -> None:
            if self.process.returncode is None:
                self.process.kill()
                self.process.communicate()


def main(folder: str, secret: str, *addresses: str) -> None:
    import contextlib
    import io

    from monarch.actor import Actor, Workspace, attach_to_workers, endpoint

    class Reader(Actor):
        @endpoint
        def read(self) -> tuple[str, str, str]:
            from importlib import import_module

            module = import_module("project_module")
            return module.TEXT, str(module.__file__), os.environ["WORKSPACE_DIR"]

        @endpoint
        def put(self) -> str:
            path = Path(os.environ["WORKSPACE_DIR"], "results")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("of the program")
            return str(path)

    project = Path(folder, "project")
    project.mkdir(parents=True)
    sys.path.insert(0, str(project))
    meshes = [attach_to_workers(workers=[address], secret=secret) for address in addresses]
    for line in sys.stdin:
        verb, number, *rest = line.split()
        mesh = meshes[int(number)]
        answer: Any
        if verb == "sync":
            (project / "project_module.py").write_text(f"TEXT = {rest[0]!r}")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                asyncio.run(mesh.sync_workspace(Workspace([project], env=None)))
            answer = printed.getvalue()
        else:
            procs = mesh.spawn_procs()
            answer = getattr(procs.spawn("reader", Reader), verb).call_one().get()
            procs.stop().get()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
