"""Memory of services: shared with procs and services of the same host and of another one, and theirs with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from other_hosts import other_hosts
from store_service import Store, declare

from monarch.actor import this_host
from monarch.extension import service
from monarch.rdma import RDMABuffer

pytestmark = pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning")


@pytest.fixture(scope="module", params=[True, False], ids=["shared", "of one job"])
def members(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """A service and a proc on each of two hosts, and a proc of the client's."""
    with other_hosts(2) as hosts:
        stores = service(hosts, declare(f"store, {request.param}", request.param))
        far, near = hosts.spawn_procs().spawn("far", Store, 100_000), this_host().spawn_procs(name="near").spawn("near", Store, 100_000)
        members = {"near": near}
        for host in range(2):
            members[f"service {host}"] = stores.slice(hosts=host)
            members[f"proc {host}"] = far.slice(hosts=host)
        yield members


PATHS = ("local", "cma", "shm-staged", "tcp", "routed")


@pytest.mark.parametrize("owner", ["service 0", "service 1", "proc 0", "near"])
def test_memory_is_read_and_written_by_all(members: dict[str, Any], owner: str) -> None:
    buffer: RDMABuffer = members[owner].share.call_one().get()
    content = members[owner].content.call_one().get()
    copy = bytearray(buffer.size())
    buffer.read_into(memoryview(copy)).get(timeout=20)
    assert copy == content
    for name, reader in members.items():
        found, path = reader.fetch.call_one(buffer).get(timeout=30)
        assert found == content and path in PATHS, (name, path)
        assert (path == "tcp") == (name[-1] != owner[-1]) or "near" in (name, owner), (name, owner, path)
    for value, name in enumerate(members):
        members[name].put.call_one(buffer, value).get(timeout=30)
        assert members[owner].content.call_one().get() == bytes([value]) * buffer.size(), name


def test_handle_of_a_service_is_passed_on(members: dict[str, Any]) -> None:
    buffer = members["service 0"].share.call_one().get()
    content = members["service 0"].content.call_one().get()
    for first, second in [("proc 1", "near"), ("proc 0", "proc 1"), ("service 1", "proc 1"), ("proc 1", "service 1")]:
        assert members[first].pass_on.call_one(members[second], buffer).get(timeout=30)[0] == content, (first, second)
