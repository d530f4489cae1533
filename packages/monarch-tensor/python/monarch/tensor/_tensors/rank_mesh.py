"""A mesh of ranks, as the functions on which `DeviceMesh` is built see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.tensor._controller.controller import Controller
    from monarch.tensor._protocol.commands import Grid


class RankMesh(Protocol):
    """A `DeviceMesh`."""

    controller: Controller
    grid: Grid
    key: Any
    ranks_in_order: tuple[int, ...]

    @property
    def sizes(self) -> Mapping[str, int]: ...
    def dims_of(self, dims: Any) -> tuple[str, ...]: ...
