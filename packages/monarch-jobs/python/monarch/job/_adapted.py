"""A job out of a launcher that another wheel offers: entry-point group `monarch.launcher`, name -> factory(arguments)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.job import _kinds
from monarch.job._launched import LauncherJob
from monarch.job._launcher import Launcher
from monarch.job.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Mapping


class AdaptedJob(LauncherJob):
    """`arguments` are the factory's, plain JSON; `arguments["meshes"]` has the number of hosts per mesh."""

    def __init__(self, kind: str, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.kind = kind
        self._given = dict(arguments)

    @classmethod
    def of_kind(cls, kind: str) -> AdaptedJob:
        """An empty one, for `_load`."""
        self = cls.__new__(cls)
        self.kind = kind
        return self

    def _launcher(self) -> Launcher:
        found = _kinds.launcher_factory(self.kind)(dict(self._given))
        if not isinstance(found, Launcher):
            raise JobError(f"the factory of '{self.kind}' gave a {type(found).__name__}, which is no launcher", title=self._title)
        return found

    def _sizes(self) -> dict[str, int]:
        return dict(self._given["meshes"])

    def _arguments(self) -> dict[str, Any]:
        return self._given

    def _set_arguments(self, saved: dict[str, Any]) -> None:
        self._given = dict(saved)
