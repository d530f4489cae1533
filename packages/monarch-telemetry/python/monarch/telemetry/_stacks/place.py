"""Where a proc is in its job, from the name it is displayed with.

`<root>.<workers{'hosts': 1/2, 'gpus': 0/4}>` is rank 4 of the mesh `workers`. A mesh without dimensions has one proc and no point. The
client and the agents of hosts are in no mesh.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_DISPLAY = re.compile(r"(?P<creator>.*)\.<(?P<name>.*?)(?P<point>\{[^{}]*\})?>", re.DOTALL)
_COORDINATE = re.compile(r": (\d+)/(\d+)(?=[,}])", re.ASCII)
# The points of all meshes of a display.
_POINT = re.compile(r"\{[^{}]*\}(?=>)")


class Place(NamedTuple):
    """`path` has the mesh and its creators without ranks, or is the name of a process without a mesh. `rank` is None without dimensions."""

    path: str
    mesh: str | None
    rank: int | None

    @property
    def shown(self) -> str:
        """The name of the mesh where its creator is the client, else the path."""
        return self.mesh if self.mesh is not None and self.path == f"<root>.<{self.mesh}>" else self.path

    def is_of(self, mesh: str) -> bool:
        """Whether the proc is in the mesh of this given name or of this path."""
        return mesh in (self.mesh, self.path)


@lru_cache(maxsize=4096)
def parse_place(display: str) -> Place:
    """The place of the proc with this displayed name."""
    match = _DISPLAY.fullmatch(display)
    if match is None:
        return Place(display, None, None)
    rank: int | None = None
    for coordinate, extent in _COORDINATE.findall(match["point"] or ""):
        rank = (rank or 0) * int(extent) + int(coordinate)
    return Place(_POINT.sub("", display), match["name"], rank)
