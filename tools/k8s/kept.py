"""Programs with a long build: built once, kept in the user's cache folder, checked by a hash at each use.

A program's folder is named by the hash of its recipe, so that a changed recipe is another program. It gets its name only when it is
complete: the leftovers of an aborted build never count, and the next build removes them. The programs of other recipes with the same name
are removed once they have not been used for a while.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_SUMS = "sums.json"
_NAME = "name"
_UNUSED_S = 14 * 24 * 3600.0


def cache_folder() -> Path:
    """The folder of the programs: `monarch/k8s` below XDG_CACHE_HOME, which defaults to ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monarch" / "k8s"


class Kept(NamedTuple):
    """A kept program: `recipe` is all its inputs, `make(folder)` writes its files below `folder/bin`.

    `make` may use `folder` for other files meanwhile; only `bin` stays. `unused` is the time, in seconds, for which another recipe's files
    stay after their last use.
    """

    name: str
    recipe: str
    make: Callable[[Path], None]
    unused: float = _UNUSED_S

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256(f"{self.name}\n{self.recipe}".encode()).hexdigest()
        return cache_folder() / digest[:16]

    def damage(self) -> str:
        """The problem of the kept files; empty if all are there and unchanged since the build."""
        try:
            sums: dict[str, str] = json.loads((self.folder / _SUMS).read_text())
        except FileNotFoundError:
            return f"{self.name} has not been built"
        except ValueError:
            return f"{self.folder / _SUMS} is damaged"
        for name, expected in sums.items():
            path = self.folder / "bin" / name
            if not path.exists() or _sum(path) != expected:
                return f"{path} is damaged"
        return ""

    def bin(self) -> Path | None:
        """The folder of the programs; None if there is no complete one."""
        if self.damage():
            return None
        os.utime(self.folder / _SUMS)  # records the use
        return self.folder / "bin"

    def build(self) -> Path:
        """The folder of the programs, built if it is missing or damaged. A second process waits for the first one's build."""
        if found := self.bin():
            return found
        with _only_one():
            if found := self.bin():
                return found
            for name in (".building", self.folder.name):
                _remove(cache_folder() / name)
            work = cache_folder() / ".building"
            try:
                (work / "bin").mkdir(parents=True)
                self.make(work)
                done = work / "done"
                done.mkdir()
                (work / "bin").rename(done / "bin")
                sums = {path.name: _sum(path) for path in sorted((done / "bin").iterdir()) if not path.is_symlink()}
                (done / _SUMS).write_text(json.dumps(sums, indent=1))
                (done / _NAME).write_text(self.name)
                done.rename(self.folder)
                _remove_unused(self.name, self.unused)
            finally:
                _remove(work)
            return self.folder / "bin"


@contextmanager
def _only_one() -> Generator[None]:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_unused(name: str, unused: float) -> None:
    for sums in cache_folder().glob(f"*/{_SUMS}"):
        owner = sums.parent / _NAME
        if owner.exists() and owner.read_text() == name and sums.stat().st_mtime < time.time() - unused:
            _remove(sums.parent)


def _remove(folder: Path) -> None:
    # Go makes the folders of its module cache read-only, which -modcacherw prevents.
    if folder.exists():
        shutil.rmtree(folder)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
