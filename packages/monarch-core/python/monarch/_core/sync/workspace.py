"""The content that is mirrored to hosts: directories of this machine, and their places below `WORKSPACE_DIR`."""

from __future__ import annotations

import os

from monarch._core.process.workspace_variables import ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    Local = str | os.PathLike[str]


class _Active:
    """Represents the active conda environment, if there is one."""

    def __repr__(self) -> str:
        return "<the active environment>"


_ACTIVE: Any = _Active()


class Workspace:
    """Directories of which hosts get a copy.

    `dirs` is a list of directories, each of which is copied to a directory of its own name, or a mapping from directories to their places,
    relative to `WORKSPACE_DIR`. `env` is a conda environment or a venv; by default the active conda environment.
    Paths may begin with `~` and are made absolute here. An empty path, one that leaves `WORKSPACE_DIR`, and places that overlap are a
    `ValueError`. Equal by content.

    ```python
    from monarch.actor import Workspace

    workspace = Workspace({".": "project"}, env=None)
    assert list(workspace.dirs.values()) == ["project"]
    assert workspace != Workspace.null()
    ```
    """

    __slots__ = ("dirs", "env")

    def __init__(self, dirs: Sequence[Local] | Mapping[Local, str] | None = None, env: Local | None = _ACTIVE) -> None:
        from collections.abc import Mapping

        if isinstance(dirs, str | os.PathLike):
            raise TypeError(f"dirs must be a list of directories or a mapping, not one path: [{dirs!r}]")
        pairs: list[tuple[Path, str]] = []
        if isinstance(dirs, Mapping):
            pairs = [(_absolute(local), _subdirectory(os.fspath(place))) for local, place in dirs.items()]
        elif dirs is not None:
            for local in dirs:
                path = _absolute(local)
                pairs.append((path, _subdirectory(path.name)))
        _check_apart(pairs)
        self.dirs: dict[Path, str] = dict(pairs)
        if len(self.dirs) < len(pairs):
            raise ValueError(f"a directory is twice in a workspace: {', '.join(str(local) for local, _ in pairs)}")
        if env is _ACTIVE:
            env = os.environ.get("CONDA_PREFIX") or None
        self.env: Path | None = None if env is None else _absolute(env)

    @staticmethod
    def null() -> Workspace:
        """The empty workspace: no directories, no environment."""
        return Workspace(None, env=None)

    def merge(self, outdir: Local) -> None:
        """Copies all directories into `outdir`, laid out as on a host, without what `.gitignore` leaves out; replaces files."""
        from monarch._core.sync.tree import copy_tree

        out = _absolute(outdir)
        for local, place in self.dirs.items():
            copy_tree(os.fsencode(local), os.fsencode(out / place))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workspace):
            return NotImplemented
        return self.dirs == other.dirs and self.env == other.env

    def __hash__(self) -> int:
        return hash((tuple(self.dirs.items()), self.env))

    def __repr__(self) -> str:
        return (
            f"Workspace({ {str(local): place for local, place in self.dirs.items()} }, env={None if self.env is None else str(self.env)!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (Workspace, ({str(local): place for local, place in self.dirs.items()}, None if self.env is None else str(self.env)))


def environment_of(workspace: Workspace) -> str:
    """The environment that `sync_workspace(conda=True)` mirrors; `ValueError` if there is none, or one in which no proc can run."""
    import sys

    from monarch._core.sync.environment_python import environment_python

    found = workspace.env or os.environ.get("CONDA_PREFIX") or (sys.prefix if sys.prefix != sys.base_prefix else None)
    if not found:
        raise ValueError(
            "no environment to sync: the workspace has no env, CONDA_PREFIX is not set, "
            f"and {sys.executable} is the interpreter of no venv\nhint: Workspace(env=...) names one"
        )
    path = str(_absolute(found))
    if not any(os.path.exists(os.path.join(path, name)) for name in ("conda-meta", "pyvenv.cfg")):
        raise ValueError(f"{path} is no environment: neither a folder conda-meta nor a file pyvenv.cfg is there")
    theirs, own = environment_python(path), sys.version_info[:2]
    if theirs is not None and theirs != own:
        raise ValueError(
            f"{path} is an environment of Python {theirs[0]}.{theirs[1]}, and procs are of the client's Python {own[0]}.{own[1]}"
            f"\nhint: Workspace(env=...) names an environment of Python {own[0]}.{own[1]}"
        )
    return path


def _absolute(path: Local) -> Path:
    from pathlib import Path

    text = os.fspath(path)
    if not text:
        raise ValueError("empty path in a workspace")
    return Path(os.path.abspath(os.path.expanduser(text)))


def _subdirectory(place: str) -> str:
    """The place of a directory, in its normal form."""
    if not place:
        raise ValueError("empty path in a workspace: name the directory below WORKSPACE_DIR")
    normal = os.path.normpath(place)
    if os.path.isabs(place) or normal == "." or normal.split("/")[0] in ("..", ".monarch", ENVIRONMENT) or "\0" in place:
        raise ValueError(f"invalid directory below WORKSPACE_DIR: {place!r}")
    return normal


def _check_apart(pairs: list[tuple[Path, str]]) -> None:
    places = sorted(place.split("/") for _, place in pairs)
    for one, next_ in zip(places, places[1:], strict=False):
        if next_[: len(one)] == one:
            raise ValueError(f"directories of a workspace overlap: {'/'.join(one)!r} and {'/'.join(next_)!r}")
