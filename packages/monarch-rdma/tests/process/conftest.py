"""Pairs of processes for every path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from memory_actors import Owner, Reader
from other_hosts import other_hosts
from process_fabric import process_fabric

from monarch.actor import this_host


class Pair(NamedTuple):
    """An owner of memory and a reader of it, with the path that lies between."""

    path: str
    owner: Any
    reader: Any
    # A second reader of the same kind, if there is room for it.
    near: Any


PATHS = ("local", "shm", "cma", "shm-staged", "tcp", "verbs:near")


@contextlib.contextmanager
def make_pair(path: str) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(process_fabric()) if path.startswith("verbs") else None
        near = hosts = this_host()
        if fabric is not None:
            hosts = stack.enter_context(other_hosts(**fabric.devices("far")))
        elif path == "tcp":
            hosts = stack.enter_context(other_hosts())
        meshes = [hosts.spawn_procs(name="owner")]
        if fabric is not None:
            near = stack.enter_context(other_hosts(**fabric.devices("near")))
        if path != "local":
            meshes.append(near.spawn_procs(name="reader"))
        owner = meshes[0].spawn("owner", Owner, path == "shm")
        reader = meshes[-1].spawn("reader", Reader, path == "shm-staged")
        yield Pair(path, owner, reader, near)
        for mesh in meshes:
            mesh.stop().get()


@pytest.fixture(params=PATHS, scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both live as long as the module."""
    with make_pair(request.param) as made:
        yield made


@pytest.fixture(params=PATHS[1:])
def mortals(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A pair in two processes, for one test, which may kill them."""
    with make_pair(request.param) as made:
        yield made
