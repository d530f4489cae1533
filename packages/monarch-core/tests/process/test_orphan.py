"""References to meshes whose owner's process ends, also before it has started their actors."""

from __future__ import annotations

import pytest
from mesh_actors import Probe

from monarch.actor import SupervisionError, this_host
from monarch.actor.testing import fault

pytestmark = pytest.mark.usefixtures("faults")

VANISHED = r"timed out reaching controller.*for mesh grandchild"


@pytest.fixture
def owned():
    """The mesh of an owner whose messages are delayed so long that the owner dies before it sends the spawn request."""
    with this_host().spawn_procs({"procs": 1}) as owners, this_host().spawn_procs({"procs": 2}) as procs:
        owner = owners.spawn("owner", Probe)
        owner.rank.call_one().get()
        procs.initialized.get()
        with fault(owners, "delay", by="100ms"):
            # The answer takes one delay. The spawn request takes three: the process must first request a link and receive it.
            yield owners, procs, owner


def spawn_in(owner, procs):
    return owner.spawn_only.call_one(procs).get()


def test_calls_that_wait_fail(owned):
    owners, procs, owner = owned
    mesh = spawn_in(owner, procs)
    call, stream = mesh.echo.call(1), list(mesh.echo.stream(2))
    fault(owners, "kill")
    with pytest.raises(SupervisionError, match=VANISHED):
        call.get()
    for future in stream:
        with pytest.raises(SupervisionError, match=VANISHED):
            future.get()


def test_later_calls_are_refused(owned):
    owners, procs, owner = owned
    mesh = spawn_in(owner, procs)
    first = mesh.echo.call(1)
    fault(owners, "kill")
    with pytest.raises(SupervisionError):
        first.get()
    with pytest.raises(SupervisionError, match=VANISHED):
        mesh.echo.call(1).get()
    with pytest.raises(SupervisionError, match=VANISHED):
        mesh.slice(procs=1).echo.broadcast(1)


def test_third_process_is_notified_of_the_owners_end(owned):
    owners, procs, owner = owned
    mesh = spawn_in(owner, procs)
    with this_host().spawn_procs() as others:
        other = others.spawn("other", Probe)
        call = other.call_on_or_text.call_one(mesh, "echo", 1)
        other.rank.call_one()
        fault(owners, "kill")
        assert "timed out reaching controller" in call.get()


def test_reference_received_after_the_end_is_dead(owned):
    owners, procs, owner = owned
    mesh = spawn_in(owner, procs)
    first = mesh.echo.call(1)
    fault(owners, "kill")
    with pytest.raises(SupervisionError):
        first.get()
    with this_host().spawn_procs() as others:
        text = others.spawn("other", Probe).call_on_or_text.call_one(mesh, "echo", 1).get()
    assert "timed out reaching controller" in text


def test_wait_for_credit_ends_with_the_owner(owned):
    owners, procs, owner = owned
    mesh = spawn_in(owner, procs)
    first = mesh.echo.call(1)
    with this_host().spawn_procs() as others:
        # The data exceeds the mailbox of an actor that never starts.
        flood = others.spawn("other", Probe).flood.call_one(mesh, 1 << 20, 40)
        fault(owners, "kill")
        with pytest.raises(SupervisionError):
            first.get()
        assert flood.get() in ("sent", "SupervisionError")


def test_end_of_its_own_process_is_the_reason():
    with this_host().spawn_procs({"procs": 1}) as procs:
        owner = procs.spawn("owner", Probe)
        mesh = owner.spawn_only.call_one(procs).get()
        mesh.pid.call().get()
        call = mesh.evaluate.call("signal.pause()")
        fault(procs, "kill")
        with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
            call.get()
        with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
            mesh.pid.call().get()
