"""The replacement of lost hosts of a mesh: the job of the hosts sets it, and code that needs the hosts calls it."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Iterator
from copy import copy
from typing import Any
from weakref import ref

import pytest

from monarch.actor import this_host
from monarch.actor.testing import local_hosts
from monarch.extension.mesh import HealedHosts, healer_of, set_healer


@pytest.fixture(scope="module")
def meshes() -> Iterator[Any]:
    """Hosts, and others in their place."""
    with local_hosts(3) as hosts, local_hosts(3) as others:
        yield hosts, others


def healed(mesh: Any, seconds: float = 1.0) -> HealedHosts:
    heal = healer_of(mesh)
    assert heal is not None
    return heal(seconds)


def test_healed_slice_keeps_its_slice_and_interpreter(meshes: Any) -> None:
    hosts, others = meshes
    before = hosts.slice(hosts=slice(1, 3))
    limits: list[float] = []

    def heal(seconds: float) -> HealedHosts:
        limits.append(seconds)
        return HealedHosts(others, frozenset({0, 2}))

    set_healer(hosts, heal)
    assert healed(hosts, 7.0) == HealedHosts(others, frozenset({0, 2})) and limits == [7.0]
    for mesh in (before, hosts.slice(hosts=slice(1, 3))):
        assert healed(mesh) == HealedHosts(others.slice(hosts=slice(1, 3)), frozenset({1}))
    assert healed(before.slice(hosts=0)) == HealedHosts(others.slice(hosts=1), frozenset())
    # The job does not know the options that the caller has chosen for its mesh.
    found = healed(hosts.with_python_executable(sys.executable)).hosts
    assert pickle.loads(pickle.dumps(found)).__core__.executable == sys.executable
    set_healer(hosts, lambda seconds: HealedHosts(hosts))
    assert healed(before).hosts == before


def test_meshes_without_a_healer(meshes: Any) -> None:
    _, others = meshes
    assert healer_of(others) is None
    set_healer(this_host(), lambda seconds: HealedHosts(this_host()))
    assert healer_of(this_host()) is None
    set_healer(others, lambda seconds: HealedHosts(others))
    assert healer_of(pickle.loads(pickle.dumps(others))) is None


def test_slices_have_healers_of_their_own(meshes: Any) -> None:
    hosts, others = meshes
    first, rest = hosts.slice(hosts=slice(0, 1)), hosts.slice(hosts=slice(1, 3))
    set_healer(first, lambda seconds: HealedHosts(others.slice(hosts=slice(2, 3))))
    set_healer(rest, lambda seconds: HealedHosts(others.slice(hosts=slice(0, 2)), frozenset({1})))
    assert healed(hosts.slice(hosts=0)) == HealedHosts(others.slice(hosts=2))
    found = healed(hosts.slice(hosts=slice(2, 3)))
    assert found == HealedHosts(others.slice(hosts=slice(1, 2)), frozenset({0}))
    # A healed mesh is a mesh like any other: it has the healer of its own hosts.
    set_healer(others, lambda seconds: HealedHosts(hosts))
    assert healed(found.hosts).hosts == hosts.slice(hosts=slice(1, 2))
    # The last function that was set counts.
    set_healer(hosts, lambda seconds: HealedHosts(others))
    assert healed(rest).hosts == others.slice(hosts=slice(1, 3))


def test_wrong_healers(meshes: Any) -> None:
    hosts, others = meshes

    def fails(seconds: float) -> HealedHosts:
        raise OSError("the queue is closed")

    set_healer(hosts, fails)
    with pytest.raises(OSError, match="the queue is closed"):
        healed(hosts)
    set_healer(hosts, lambda seconds: HealedHosts(others.slice(hosts=slice(0, 2))))
    with pytest.raises(ValueError, match="the healer of 3 hosts has returned .*: expected all hosts of the mesh"):
        healed(hosts.slice(hosts=0))


def test_healer_is_kept_no_longer_than_its_meshes() -> None:
    class Job:
        def heal(self, seconds: float) -> HealedHosts:
            raise NotImplementedError

    with local_hosts(1) as hosts:
        mesh = copy(hosts)
        job = Job()
        set_healer(mesh.slice(hosts=0), job.heal)
        kept = ref(job)
        del job
        gc.collect()
        assert kept() is not None and healer_of(mesh.slice(hosts=0)) is not None
        del mesh, hosts
    gc.collect()
    assert kept() is None
