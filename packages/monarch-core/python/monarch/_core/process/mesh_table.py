"""The meshes that a process owns, and those that it knows by a handle.

`owned` has the meshes of all owners in this process; `Supervision`, in native code, decides the owner that each failure reaches. `known`
has one `MeshInfo` for each mesh that some handle refers to. So handles of one mesh agree on its failures, and a mesh without one is
forgotten, except the last failed ones: a handle that returns in a message must not be treated as healthy.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import Supervision
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.parts import Owned

# The number of failed ranks that are kept for meshes without a handle, some kilobytes each.
FAILED_RANKS = 1024


class MeshTable:
    """Meshes by their ids."""

    __slots__ = ("_failed", "known", "owned", "supervision")

    def __init__(self, supervision: Supervision) -> None:
        self.supervision = supervision
        self.owned: dict[int, Owned] = {}
        self.known: WeakValueDictionary[int, MeshInfo] = WeakValueDictionary()
        # The last failed meshes that are no longer owned.
        self._failed: list[MeshInfo] = []

    def remember_failed(self, info: MeshInfo) -> None:
        """Keeps a failed mesh that is no longer owned."""
        self._failed.append(info)
        while len(self._failed) > 1 and sum(len(one.failed) for one in self._failed) > FAILED_RANKS:
            del self._failed[0]

    def forget_failed(self) -> None:
        self._failed.clear()
