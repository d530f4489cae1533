"""The folder of one allocation on the shared file system, reached from here or through the login node.

Nothing in it is believed more than needed: what workers publish is read as JSON of a bounded size, and a file that does not parse is one
that is not there yet.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
from typing import NamedTuple

from monarch.job._job.allocation import tail
from monarch.job._job.worker_address import published_address
from monarch.job._machine.commands import Commands, Result

_READ_KINDS = (".json", ".exit", ".failed")
MAX_FILE = 16 * 1024
TAIL_LINES = 20


class Worker(NamedTuple):
    """The record of the worker of a rank in the folder: where it listens, or how it ended; `failed` is the exit code of its srun."""

    address: str | None = None
    exit_code: int | None = None
    failed: int | None = None


class Contents(NamedTuple):
    """The nodes in the order of their ranks, what is known about the worker of each rank, and how often the job had been requeued then."""

    nodes: list[str]
    workers: dict[int, Worker]
    restarts: int | None


# All files about workers in one read: a line `name content` for each.
_READ = (
    'cd "$1" 2>/dev/null || exit 0; for f in restarts nodes hosts/*.json hosts/*.exit hosts/*.failed; do'
    ' [ -f "$f" ] && echo "$f $(head -c 1000000 "$f" | tr "\\n" " ")"; done; :'
)
_WRITE = 'umask 077; mkdir -p "${1%/*}" && base64 -d >"$1.new" && chmod 600 "$1.new" && mv -f "$1.new" "$1"'
_REQUEST = 'cd "$1" && rm -f hosts/"$2".json hosts/"$2".exit hosts/"$2".failed && echo "$3" >.wanted."$2" && mv -f .wanted."$2" wanted/"$2"'


class JobDirectory:
    """`path` is the folder of the allocation; its parent holds the logs where there is no other place for them."""

    def __init__(self, path: str, commands: Commands) -> None:
        self.path = path
        self._commands = commands

    def write(self, name: str, content: bytes) -> None:
        """Makes the folder (0700) and a file in it (0600, complete from the first moment); `OSError` where that fails."""
        if self._commands.login:
            self._shell(_WRITE, f"{self.path}/{name}", stdin=base64.b64encode(content).decode())
            return
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        _replace(f"{self.path}/{name}", content)

    def remove_secret(self) -> None:
        if self._commands.login:
            self._shell('rm -f "$1"', f"{self.path}/secret")
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}/secret")

    def read(self) -> Contents:
        """The files of the job; empty before it runs."""
        nodes: list[str] = []
        workers: dict[int, Worker] = {}
        restarts: int | None = None
        for name, content in self._files():
            if name == "nodes":
                nodes = content.split()
            if name == "restarts" and content.strip().isdecimal():
                restarts = int(content)
            stem, kind = os.path.splitext(os.path.basename(name))
            if not stem.isdecimal():
                continue
            known = workers.get(int(stem), Worker())
            if kind == ".json" and (address := published_address(content)):
                workers[int(stem)] = known._replace(address=address)
            elif kind == ".exit" and content.strip().isdecimal():
                workers[int(stem)] = known._replace(exit_code=int(content))
            elif kind == ".failed" and content.strip().isdecimal():
                workers[int(stem)] = known._replace(failed=int(content))
        return Contents(nodes, workers, restarts)

    def request(self, rank: int, node: str) -> None:
        """Asks the script of the job to start the worker of `rank` again, on `node`."""
        if self._commands.login:
            self._shell(_REQUEST, self.path, str(rank), node)
            return
        for kind in ("json", "exit", "failed"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.path}/hosts/{rank}.{kind}")
        _replace(f"{self.path}/wanted/{rank}", f"{node}\n".encode(), f"{self.path}/.wanted.{rank}")

    def tail(self, path: str) -> str:
        """The last lines of a log; empty where there is none."""
        if self._commands.login:
            return self._commands.run("tail", "-n", str(TAIL_LINES), "--", path).out
        return tail(path, TAIL_LINES, MAX_FILE)

    def make(self, *folders: str) -> None:
        """Makes folders that must exist before the job starts."""
        if self._commands.login:
            self._shell('umask 077; mkdir -p -- "$@"', *folders)
            return
        for folder in folders:
            os.makedirs(folder, mode=0o700, exist_ok=True)

    def remove(self) -> None:
        """Removes the folder; what workers and the job have printed stays."""
        if self._commands.login:
            self._shell('rm -rf -- "$1"', self.path)
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    def _files(self) -> list[tuple[str, str]]:
        if self._commands.login:
            lines = (line.partition(" ") for line in self._shell(_READ, self.path).out.splitlines())
            return [(name, content) for name, _, content in lines]
        found: list[tuple[str, str]] = []
        names = ["restarts", "nodes", *(f"hosts/{name}" for name in _listed(f"{self.path}/hosts") if name.endswith(_READ_KINDS))]
        for name in names:
            with contextlib.suppress(OSError), open(f"{self.path}/{name}", errors="replace") as file:
                found.append((name, file.read() if name == "nodes" else file.read(MAX_FILE)))
        return found

    def _shell(self, text: str, *arguments: str, stdin: str = "") -> Result:
        result = self._commands.run("sh", "-c", text, "sh", *arguments, stdin=stdin)
        if result.code:
            raise OSError(f"{self._commands.login}: {result.words or f'exit code {result.code}'}")
        return result


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _replace(path: str, content: bytes, through: str = "") -> None:
    through = through or f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(through)
    descriptor = os.open(through, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(through, path)
