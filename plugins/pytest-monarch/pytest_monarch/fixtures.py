"""Meshes and simulated runtimes as fixtures, and failures without an owner as failures of the test.

Nothing of Monarch is imported before a test uses a fixture. The meshes end with the test, before the failures are counted.
"""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from monarch.actor import HostMesh, MeshFailure, ProcMesh
    from monarch.actor.testing import Universe

_MARKS = (
    "procs(**sizes): the dimensions of the fixture proc_mesh",
    "hosts(count): the number of hosts of the fixture host_mesh",
    "universe(**options): the arguments of Universe for the fixture universe",
)


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)


# The failures that no owner has handled. The hook stays in place between tests: for a late failure, the default one would end the run.
_failures: SimpleQueue[MeshFailure] = SimpleQueue()


@pytest.fixture
def unhandled_failures(request: pytest.FixtureRequest) -> Generator[SimpleQueue[MeshFailure]]:
    """Collects the failures that no owner handles. They fail a test that does not request `mesh_failures`."""
    import monarch.actor

    monarch.actor.unhandled_fault_hook = _failures.put
    yield _failures
    found: list[MeshFailure] = []
    while not _failures.empty():
        found.append(_failures.get())
    if found and "mesh_failures" not in request.fixturenames:
        pytest.fail("\n".join(failure.report() for failure in found), pytrace=False)


@pytest.fixture
def mesh_failures(unhandled_failures: SimpleQueue[MeshFailure]) -> SimpleQueue[MeshFailure]:
    """The failures that no owner handles: `get(timeout=10)` waits for the next one. A test that requests them passes in spite of them."""
    return unhandled_failures


@pytest.fixture
def proc_mesh(request: pytest.FixtureRequest, unhandled_failures: SimpleQueue[MeshFailure]) -> Generator[ProcMesh]:
    """Processes of this machine, which end with the test: `@pytest.mark.procs(gpus=4)`, and two without the mark."""
    from monarch.actor import this_host

    with this_host().spawn_procs(_keywords(request, "procs") or {"procs": 2}) as procs:
        yield procs


@pytest.fixture
def host_mesh(request: pytest.FixtureRequest, unhandled_failures: SimpleQueue[MeshFailure]) -> Generator[HostMesh]:
    """Hosts, as agents on this machine, which end with the test: `@pytest.mark.hosts(3)`, and two without the mark."""
    from monarch.actor.testing import local_hosts

    mark = request.node.get_closest_marker("hosts")
    with local_hosts(*(mark.args if mark is not None else (2,))) as hosts:
        yield hosts


@pytest.fixture
def universe(request: pytest.FixtureRequest) -> Generator[Universe]:
    """A runtime inside the process of the test, with simulated time; the mark `universe` has the arguments."""
    from monarch.actor.testing import Universe

    with Universe(**_keywords(request, "universe")) as found:
        yield found


def _keywords(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    mark = request.node.get_closest_marker(name)
    return {} if mark is None else dict(mark.kwargs)
