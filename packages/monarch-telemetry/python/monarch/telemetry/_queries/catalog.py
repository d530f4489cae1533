"""The canned questions that there are: those of this wheel, and files of users that a folder or a variable names.

A file of a user takes the place of another one with its name: first the folders of `MONARCH_QUERY_PATH` in their order, then
`~/.config/monarch/queries`, then those of this wheel. A file that cannot be read is named and left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from monarch.telemetry._queries.canned import LONGEST_FILE, Canned, NotCanned, parse
from monarch.telemetry.errors import QueryError

PATH_VARIABLE = "MONARCH_QUERY_PATH"
_OWN = Path(__file__).parent
# The most questions of one folder: a folder that was named by mistake is not read completely.
MOST_FILES = 1000


class LeftOut(NamedTuple):
    """A file or folder that gives no question, and the reason."""

    path: str
    reason: str


class Catalog(NamedTuple):
    """Questions by name, in the order of their names, and what was left out."""

    queries: Mapping[str, Canned]
    left_out: tuple[LeftOut, ...] = ()

    def query(self, name: str) -> Canned:
        """The question of this name; `QueryError` with the nearest name where there is none."""
        found = self.queries.get(name)
        if found is not None:
            return found
        from difflib import get_close_matches

        broken = next((one for one in self.left_out if Path(one.path).stem == name), None)
        if broken is not None:
            raise QueryError(f"the canned query {name!r} is left out: {broken.path}: {broken.reason}")
        near = get_close_matches(name, self.queries, n=1, cutoff=0.5)
        raise QueryError(
            f"there is no canned query {name!r}",
            hint=f"the nearest name is {near[0]!r}" if near else "`monarch query --list` has the names",
        )

    def listing(self) -> str:
        """Every question with its sentence, one a line; a file of a user has its path behind it."""
        width = max((len(name) for name in self.queries), default=0)
        return "".join(f"{one.name:<{width}}  {one.what}{f' ({one.source})' if one.source else ''}\n" for one in self.queries.values())


def load(environment: Mapping[str, str] | None = None, home: Path | None = None) -> Catalog:
    """All questions. The environment and the home are those of the process by default."""
    variable = (os.environ if environment is None else environment).get(PATH_VARIABLE, "")
    queries: dict[str, Canned] = {}
    left_out: list[LeftOut] = []
    folders = [(Path(entry), True) for entry in variable.split(os.pathsep) if entry]
    if home is None:
        try:
            home = Path.home()
        except RuntimeError:
            pass  # a user without an entry has no folder
    if home is not None:
        folders.append((home / ".config" / "monarch" / "queries", False))
    for folder, must_exist in [*folders, (_OWN, True)]:
        for one in _folder(folder, must_exist):
            if isinstance(one, LeftOut):
                left_out.append(one)
            else:
                queries.setdefault(one.name, one)
    return Catalog(dict(sorted(queries.items())), tuple(left_out))


def _folder(folder: Path, must_exist: bool) -> Iterator[Canned | LeftOut]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".sql") and not entry.name.startswith("."))
    except OSError as error:
        if must_exist or not isinstance(error, FileNotFoundError):
            yield LeftOut(str(folder), error.strerror or str(error))
        return
    if len(names) > MOST_FILES:
        yield LeftOut(str(folder), f"{len(names):,} files, {MOST_FILES:,} are read at most")
    for name in names[:MOST_FILES]:
        path = folder / name
        try:
            yield parse(_text(path), name=path.stem, source="" if folder == _OWN else str(path))
        except OSError as error:
            yield LeftOut(str(path), error.strerror or str(error))
        except UnicodeDecodeError as error:
            yield LeftOut(str(path), f"no UTF-8 at byte {error.start}")
        except NotCanned as error:
            yield LeftOut(str(path), str(error))


def _text(path: Path) -> str:
    # Without O_NONBLOCK, opening a named pipe blocks until it has a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotCanned("this is no regular file")
        data = file.read(LONGEST_FILE + 1)
    if len(data) > LONGEST_FILE:
        raise NotCanned(f"more than {LONGEST_FILE:,} bytes")
    return data.decode("utf-8")
