"""The cache of registrations, against a model: what is in use is registered, and the budget is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_provider import StubRail

from monarch.rdma.verbs.acceptor import Export
from monarch.rdma.verbs.memory import Range
from monarch.rdma.verbs.registration import Allocation, Registrations, budget


@pytest.fixture
def rail():
    made = StubRail("near", {})
    yield made
    made.close()


def test_once_per_allocation_rail_and_generation(rail):
    cache, other = Registrations(1000), StubRail("other", rail.fabric)
    first = cache.acquire(rail, Allocation(0, 100, 1))
    assert cache.acquire(rail, Allocation(0, 100, 1)).region is first.region
    assert cache.acquire(other, Allocation(0, 100, 1)).region is not first.region
    assert cache.acquire(rail, Allocation(0, 100, 2)).region is not first.region
    assert len(rail.fabric) == 3 and cache.pinned == 300
    other.close()


def test_registration_without_generation_is_used_once(rail):
    cache = Registrations(1000)
    lease = cache.acquire(rail, Allocation(0, 100))
    cache.release(lease)
    assert len(rail.fabric) == 1
    cache.trim()
    assert not rail.fabric and not cache.pinned


def test_least_recently_used_goes_first(rail):
    cache = Registrations(1000)
    leases = [cache.acquire(rail, Allocation(i * 1000, 300, 0)) for i in range(3)]
    for lease in leases:
        cache.release(lease)
    cache.release(cache.acquire(rail, Allocation(0, 300, 0)))
    cache.acquire(rail, Allocation(5000, 300, 0))
    assert {region.address for region in rail.fabric.values()} == {0, 2000, 5000}
    with pytest.raises(OSError, match="registering 800 bytes: 300 of 1,000 bytes that may be locked are in use"):
        cache.acquire(rail, Allocation(9000, 800, 0))


def test_trim_leaves_room(rail):
    cache = Registrations(1000)
    for i in range(10):
        cache.release(cache.acquire(rail, Allocation(i * 1000, 100, 0)))
    cache.trim()
    assert cache.pinned == 900


def test_memory_that_is_freed(rail):
    cache = Registrations(1000)
    used, unused = (cache.acquire(rail, Allocation(at, 100, 0)) for at in (0, 100))
    cache.release(unused)
    cache.forget(50, 100)
    assert [region.address for region in rail.fabric.values()] == [0]
    assert cache.acquire(rail, Allocation(0, 100, 0)).region is not used.region
    cache.release(used)
    cache.trim()
    assert len(rail.fabric) == 1


def test_memory_limit_used_by_others_is_reported(rail):
    cache = Registrations(1000)
    cache.release(cache.acquire(rail, Allocation(0, 100, 0)))
    rail.refuses_memory = True
    with pytest.raises(OSError, match="cannot allocate"):
        cache.acquire(rail, Allocation(1000, 100, 0))
    # Unused registrations were given up for it.
    assert not rail.fabric and not cache.pinned


def test_exports_are_all_or_nothing(rail):
    other = StubRail("other", rail.fabric)
    export = Export([rail, other], Range(4096, 100), writable=False)
    assert export.record.keys.keys() == {"near", "other"} and not any(region.write for region in rail.fabric.values())
    export.close()
    assert not rail.fabric
    other.refuses_memory = True
    with pytest.raises(OSError, match="cannot allocate"):
        Export([rail, other], Range(4096, 100), writable=True)
    assert not rail.fabric
    other.close()


@given(st.data())
@settings(deadline=None)
def test_model(data):
    rail = StubRail("near", {})
    cache, held = Registrations(1000), []
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["acquire", "acquire", "release", "trim", "forget"]))
        if what == "acquire":
            allocation = Allocation(
                data.draw(st.integers(0, 5)) * 1000, data.draw(st.sampled_from([100, 300, 500])), data.draw(st.sampled_from([None, 0, 1]))
            )
            try:
                held.append((cache.acquire(rail, allocation), allocation))
            except OSError:
                assert sum(region.nbytes for region in rail.fabric.values()) + allocation.nbytes > 1000
        elif what == "release" and held:
            cache.release(held.pop(data.draw(st.integers(0, len(held) - 1)))[0])
        elif what == "trim":
            cache.trim()
        elif what == "forget":
            cache.forget(data.draw(st.integers(0, 5)) * 1000, 1000)
        for lease, allocation in held:
            region = rail.fabric[lease.region.key]
            assert (region.address, region.nbytes) == allocation[:2]
        assert cache.pinned == sum(region.nbytes for region in rail.fabric.values()) <= 1000
    for lease, _ in held:
        cache.release(lease)
    cache.close()
    assert not rail.fabric and not cache.pinned
    rail.close()


def test_budget(tmp_path, monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 << 20, 8 << 20))
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    assert budget(str(status)) == int(0.8 * (8 << 20)) == budget(str(tmp_path / "nothing"))
    status.write_text("CapEff:\t0000000000004000\n")
    assert budget(str(status)) > 100 << 20
