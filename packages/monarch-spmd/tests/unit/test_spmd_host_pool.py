"""The hosts of a run: places, spare hosts, and the meshes of both."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Extent
from monarch.spmd.host_pool import HostPool


class Mesh:
    """Hosts by their coordinates; a slice is what it was asked for."""

    def __init__(self, *sizes: int) -> None:
        self.extent = Extent(["racks", "hosts"][-len(sizes) :], list(sizes))

    def slice(self, **place: Any) -> Any:
        return place


def pool(count: int, most: int) -> HostPool:
    mesh: Any = Mesh(count)
    return HostPool(mesh, most)


def test_hosts_beyond_the_number_are_spare() -> None:
    hosts = pool(5, 3)
    assert (hosts.left, hosts.spares, hosts.missing) == ([0, 1, 2], [3, 4], 0)
    hosts.lose([3])
    assert (hosts.left, hosts.spares, hosts.missing) == ([0, 1, 2], [4], 0)


def test_spare_host_gets_the_lost_hosts_place() -> None:
    hosts = pool(5, 3)
    hosts.lose([0, 2])
    assert (hosts.left, hosts.spares, hosts.missing) == ([1], [3, 4], 2)
    hosts.use(3)
    assert (hosts.left, hosts.spares, hosts.missing) == ([3, 1], [4], 1)
    hosts.use(4)
    hosts.lose([3])
    assert (hosts.left, hosts.spares, hosts.missing) == ([1, 4], [], 1)
    assert hosts.lost_text() == "hosts 0, 2, 3 are lost"


@pytest.mark.parametrize(
    ("missing", "left", "spares"),
    [([], [3, 1, 2], [0]), ([0], [3, 1, 2], []), ([2], [3, 1, 0], []), ([2, 0], [3, 1], []), ([3], [0, 1, 2], []), ([0, 3, 1], [2], [])],
)
def test_healed_hosts(missing: list[int], left: list[int], spares: list[int]) -> None:
    hosts = pool(4, 3)
    hosts.lose([0])
    hosts.use(3)
    hosts.lose([2])
    healed: Any = Mesh(4)
    hosts.replace(healed, missing)
    assert hosts.mesh is healed
    assert (hosts.left, hosts.spares, hosts.missing) == (left, spares, 3 - len(left))


@pytest.mark.parametrize(
    ("numbers", "parts"),
    [
        ([], []),
        ([2], [({"hosts": slice(2, 3)}, 0)]),
        ([0, 1, 3], [({"hosts": slice(0, 2)}, 0), ({"hosts": slice(3, 4)}, 2)]),
        ([0, 3, 2], [({"hosts": slice(0, 1)}, 0), ({"hosts": slice(3, 4)}, 1), ({"hosts": slice(2, 3)}, 2)]),
        ([3, 1, 2], [({"hosts": slice(3, 4)}, 0), ({"hosts": slice(1, 3)}, 1)]),
    ],
)
def test_hosts_as_meshes(numbers: list[int], parts: list[Any]) -> None:
    assert pool(4, 4).parts(numbers) == parts


def test_hosts_of_several_dimensions() -> None:
    mesh: Any = Mesh(2, 2)
    hosts = HostPool(mesh, 4)
    assert hosts.parts([0, 1, 2, 3]) == [(mesh, 0)]
    assert hosts.parts([1, 2]) == [({"racks": 0, "hosts": 1}, 0), ({"racks": 1, "hosts": 0}, 1)]
