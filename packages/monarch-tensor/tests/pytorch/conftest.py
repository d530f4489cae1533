"""Meshes for tests: processes of this machine, once for each module of tests."""

from __future__ import annotations

import pytest

from monarch.actor import this_host

SECONDS = 120  # the compiler of torch is imported on first use, on a busy machine


@pytest.fixture(scope="module")
def procs():
    """Two procs, as the dimension `gpus`."""
    found = this_host().spawn_procs({"gpus": 2})
    yield found
    found.stop().get(SECONDS)


@pytest.fixture(scope="module")
def four():
    """Four procs, as `hosts` by `gpus`."""
    found = this_host().spawn_procs({"hosts": 2, "gpus": 2})
    yield found
    found.stop().get(SECONDS)


@pytest.fixture
def mesh(procs):
    """The active mesh of the two procs."""
    with procs.activate() as found:
        yield found
        found.check()
