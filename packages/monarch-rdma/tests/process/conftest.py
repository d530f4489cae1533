"""Failures that reach the root after a test do not end pytest; and pairs of processes for every path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from memory_actors import Owner, Reader
from other_host import other_hosts

import monarch.actor
from monarch.actor import this_host


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
        yield


class Pair(NamedTuple):
    """An owner of memory and a reader of it, with the path that lies between."""

    path: str
    owner: Any
    reader: Any


PATHS = ("local", "shm", "cma", "shm-staged", "tcp")


@contextlib.contextmanager
def make_pair(path: str) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(other_hosts()) if path == "tcp" else this_host()
        meshes = [hosts.spawn_procs(name="owner")]
        if path != "local":
            meshes.append(this_host().spawn_procs(name="reader"))
        owner = meshes[0].spawn("owner", Owner, path == "shm")
        reader = meshes[-1].spawn("reader", Reader, path == "shm-staged")
        yield Pair(path, owner, reader)
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
