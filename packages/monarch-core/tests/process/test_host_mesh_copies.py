"""Several objects over the same hosts: copies, slices, handles of actors there."""

from __future__ import annotations

import asyncio
import copy
import sys
from typing import Any

import pytest
from fresh_script import run, wait_for_end
from mesh_actors import Probe
from worker_processes import Workers

from monarch.actor import HostMesh, SupervisionError, this_host

THIS_HOST = "__import__('monarch.actor').actor.this_host()"

# Lets the script end with 0: the failure of a proc that ends with its agent would end it with 1, now or at its end.
ENDS = """
from monarch.actor import SupervisionError, attach_to_workers
hosts = attach_to_workers(workers={workers})
with_python = hosts.with_python_executable(sys.executable)
piece = hosts.slice(hosts=0)
again = attach_to_workers(workers={workers})
{before}
echo = {through}.spawn_procs().spawn("echo", Echo)
echo.echo.call_one(1).get()
{ends}.shutdown().get()
try:
    echo.echo.call_one(1).get()
except SupervisionError as e:
    say(str("host mesh shut down" in str(e)))
"""


@pytest.mark.parametrize(
    ("before", "through", "ends"),
    [
        ("", "with_python", "hosts"),
        ("", "hosts", "with_python"),
        ("hosts.stop().get()", "piece", "hosts"),
        ("", "piece.with_python_executable(sys.executable)", "hosts"),
        ("", "again", "hosts"),
    ],
)
def test_shutdown_stops_procs_of_all_objects(before: str, through: str, ends: str):
    with Workers(1) as workers:
        done = run(ENDS.format(workers=workers.addresses, before=before, through=through, ends=ends))
        assert (done.code, done.out.split(), done.err) == (0, ["True"], "")
        assert workers.processes[0].wait() == 0


def test_slice_made_before_a_stop_is_stopped():
    with Workers(1) as workers, workers.attach() as hosts:
        first = hosts.slice(hosts=0)
        hosts.stop().get()
        probe = first.spawn_procs().spawn("probe", Probe)
        pid = probe.pid.call_one().get()
        hosts.stop().get()
        assert wait_for_end(pid)
        with pytest.raises(SupervisionError, match="host mesh stopped"):
            probe.pid.call_one().get()


def test_stop_leaves_procs_of_copies():
    original = copy.copy(this_host())
    other = original.with_python_executable(sys.executable)
    mine, others = (mesh.spawn_procs().spawn("probe", Probe) for mesh in (original, other))
    mine.pid.call_one().get()
    original.stop().get()
    assert others.pid.call_one().get()
    original.shutdown().get()
    with pytest.raises(SupervisionError, match="host mesh shut down"):
        others.pid.call_one().get()


def test_copies_cannot_be_used_after_shutdown():
    original = copy.copy(this_host())
    other, piece = original.with_python_executable(sys.executable), original.flatten("hosts")
    original.shutdown().get()
    for mesh in (original, other, piece):
        with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
            mesh.spawn_procs()


def test_shut_down_hosts_cannot_be_entered():
    mesh = copy.copy(this_host())
    mesh.shutdown().get()

    async def enter() -> None:
        async with mesh:
            pass

    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        asyncio.run(enter())
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"), mesh:
        pass


def test_shutdown_after_a_failed_spawn_ends_all_procs():
    mesh = copy.copy(this_host())
    bad = mesh.spawn_procs(bootstrap=lambda: 1 / 0)
    with pytest.raises(Exception, match="division by zero"):
        bad.initialized.get()
    good = mesh.spawn_procs().spawn("probe", Probe)
    pid = good.pid.call_one().get()
    mesh.shutdown().exception()
    assert wait_for_end(pid)


def test_this_host_of_an_actor_equals_its_slice():
    with Workers(2) as workers, workers.attach() as hosts:
        probes = hosts.spawn_procs({"gpus": 2}).spawn("probe", Probe)
        found: Any = probes.evaluate.call(THIS_HOST).get()
        for point, host in found.items():
            assert isinstance(host, HostMesh)
            same, other = hosts.slice(hosts=point["hosts"]), hosts.slice(hosts=1 - point["hosts"])
            assert host == same and hash(host) == hash(same)
            assert host != other and host != this_host()
        assert set(found.values()) == {hosts.slice(hosts=n) for n in range(2)}
        # Dimensions are part of the identity of a mesh.
        assert hosts.slice(hosts=slice(0, 1)) != hosts.slice(hosts=0)
