"""Hosts: shapes of spawned meshes, the right to stop them, their interpreter."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys

import pytest
from fresh import lines, run
from mesh_actors import Probe

from monarch._core.hosts.host_mesh import HostMesh
from monarch.actor import ActorError, SupervisionError, context, get_or_spawn_controller, this_host, this_proc


@pytest.fixture(scope="module")
def pair():
    mesh = this_host().spawn_procs({"gpus": 2}, name="pair")
    yield mesh
    mesh.stop().get()


@pytest.fixture(scope="module")
def probe(pair):
    return pair.spawn("probe", Probe)


def test_this_host_is_one_host_without_dimensions():
    host = this_host()
    assert (len(host), host.sizes, host.extent.labels) == (1, {}, [])
    assert host.initialized.get() is True
    assert host.is_fake_in_process is False
    assert host.region.labels == []
    assert list(host.region.slice()) == [0]


def test_this_host_is_equal_and_hashable():
    assert this_host() == this_host()
    assert hash(this_host()) == hash(this_host())
    assert this_host() != this_host().flatten("host")
    assert this_host() != 3


def test_slice_of_the_whole_mesh_is_the_mesh():
    hosts = this_host().flatten("hosts")
    assert hosts.slice(hosts=slice(None)) is hosts
    assert this_host().slice() is this_host()


def test_one_proc_per_host_without_per_host():
    with this_host().spawn_procs() as mesh:
        assert (mesh.sizes, len(mesh)) == ({}, 1)
        assert mesh.initialized.get() is True


def test_dimensions_are_of_hosts_first_then_per_host():
    with this_host().flatten("hosts").spawn_procs({"rows": 1, "gpus": 2}) as mesh:
        assert mesh.sizes == {"hosts": 1, "rows": 1, "gpus": 2}
        points = mesh.spawn("probe", Probe).rank.call().get()
        assert [dict(v[0]) for v in points.values()] == [{"hosts": 0, "rows": 0, "gpus": i} for i in range(2)]


def test_shared_label_is_refused():
    with pytest.raises(ValueError, match="overlap with host labels"):
        this_host().flatten("gpus").spawn_procs({"gpus": 2})


@pytest.mark.parametrize("size", [-1, 1.5, "2", None])
def test_invalid_size_is_refused(size):
    with pytest.raises((ValueError, TypeError)):
        this_host().spawn_procs({"gpus": size})


def test_proc_bind_needs_one_entry_per_proc():
    with pytest.raises(ValueError, match=r"proc_bind length \(1\) must equal procs_per_host \(4\)"):
        this_host().spawn_procs({"gpus": 4}, proc_bind=[{"cpus": "0"}])


def test_proc_bind_with_an_unknown_key_is_refused():
    with pytest.raises(ValueError, match="cores"):
        this_host().spawn_procs(proc_bind=[{"cores": "0"}])


def test_default_name_is_anon():
    with this_host().spawn_procs() as mesh:
        assert "anon" in repr(mesh)


def test_real_processes_of_their_own(probe):
    pids = list(probe.pid.call().get().values())
    assert len({*pids, os.getpid()}) == 3


def test_this_proc_of_the_client_is_the_client():
    actor = this_proc().spawn("here", Probe)
    assert actor.pid.call_one().get() == os.getpid()
    actor.stop().get()


def test_this_host_inside_an_actor_is_a_reference(probe, pair):
    (first, *_) = probe.slice(gpus=0).try_on_references.call(pair).get().values()
    cannot = "RuntimeError: cannot shut down `HostMesh` that is a reference instead of owned"
    owned = "ValueError: ProcMesh is not owned; must be stopped by an owner"
    assert first == [owned, cannot, cannot, owned, "RuntimeError"]


def test_slice_and_pickled_host_mesh_are_references():
    hosts = this_host().flatten("hosts")
    for reference in (hosts, hosts.slice(hosts=0), pickle.loads(pickle.dumps(this_host()))):
        for action in (reference.stop, reference.shutdown):
            with pytest.raises(RuntimeError, match="cannot shut down `HostMesh` that is a reference instead of owned"):
                action()
        with pytest.raises(RuntimeError):
            asyncio.run(reference.sync_workspace(None))
    assert pickle.loads(pickle.dumps(this_host())) == this_host()


def test_procs_can_be_spawned_on_a_reference(probe):
    with this_host().flatten("hosts").slice(hosts=0).spawn_procs() as mesh:
        assert mesh.spawn("probe", Probe).pid.call_one().get() != os.getpid()


def test_stop_ends_only_what_this_object_spawned(pair, probe):
    copy = this_host().with_python_executable(sys.executable)
    assert copy == this_host()
    mesh = copy.spawn_procs(name="mine")
    actor = mesh.spawn("probe", Probe)
    actor.pid.call_one().get()
    assert copy.stop().get() is None
    with pytest.raises(SupervisionError, match="stopped"):
        actor.pid.call_one().get()
    assert len(probe.pid.call().get()) == 2
    assert copy.stop().get() is None
    with copy.spawn_procs() as again:
        assert again.initialized.get()


def test_stop_waits_for_spawns_in_progress():
    copy = this_host().with_python_executable(sys.executable)
    mesh = copy.spawn_procs({"gpus": 2})
    copy.stop()
    assert mesh.stop().get() is None
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        mesh.spawn("late", Probe)


def test_shutdown_once_then_refused():
    copy = this_host().with_python_executable(sys.executable)
    with copy as entered:
        assert entered is copy
        copy.spawn_procs()
        copy.shutdown().get()
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        copy.spawn_procs()
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        copy.shutdown()


def test_async_with_shuts_down():
    async def main():
        async with this_host().with_python_executable(sys.executable) as hosts:
            actor = hosts.spawn_procs().spawn("probe", Probe)
            assert await actor.pid.call_one() != os.getpid()
        with pytest.raises(RuntimeError, match="already been shut down"):
            hosts.spawn_procs()

    asyncio.run(main())


def test_meshes_stopped_by_hand_are_not_kept():
    copy = this_host().with_python_executable(sys.executable)
    for _ in range(3):
        copy.spawn_procs().stop().get()
    copy.spawn_procs()
    assert len(copy.__core__.spawned) == 1
    copy.shutdown().get()


def test_python_executable_is_inherited_by_hosts_inside(tmp_path):
    link = tmp_path / "python"
    link.write_text(f'#!/bin/sh\nexport THROUGH_WRAPPER=yes\nexec {sys.executable} "$@"\n')
    link.chmod(0o755)
    with this_host().with_python_executable(str(link)).spawn_procs() as mesh:
        actor = mesh.spawn("probe", Probe)
        assert actor.environment.call_one("THROUGH_WRAPPER").get() == ["yes"]
        # A spawn of an actor there uses it too.
        nested = actor.evaluate.call_one("__import__('monarch.actor').actor.this_host()").get()
        assert isinstance(nested, HostMesh)
        inner = nested.spawn_procs().spawn("probe", Probe)
        assert inner.environment.call_one("THROUGH_WRAPPER").get() == ["yes"]


def test_hosts_inside_actors_are_this_machine(probe):
    hosts = probe.evaluate.call("__import__('monarch.actor').actor.this_host()").get()
    assert all(host == this_host() for host in hosts.values())


def test_client_context_is_made_once_for_all_threads():
    done = run("""
        import threading
        from monarch.actor import context, this_host, this_proc
        found = []
        gate = threading.Barrier(8)
        def look():
            gate.wait()
            found.append(str(context().actor_instance.actor_id))
        threads = [threading.Thread(target=look) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print(len(set(found)), len(found), context().actor_instance)
    """)
    assert lines(done.stdout) == ["1 8 <root>"]
    assert done.stderr == ""


def test_root_context():
    root = context().actor_instance
    assert (root.name, root.class_name, root.creator, str(root)) == ("root", None, None, "<root>")
    assert root.actor_id.label == "client"
    assert root.actor_id.is_root


@pytest.mark.parametrize("sizes", [{"gpus": 1 << 31}, {"gpus": 1 << 80}, {"rows": 1 << 16, "columns": 2}])
def test_too_many_processes_per_host_are_refused(sizes):
    with pytest.raises(ValueError, match="processes on each host, of at most 65,536"):
        this_host().spawn_procs(sizes)


def test_name_with_a_lone_surrogate_is_refused(pair, probe):
    with pytest.raises(ValueError, match=r"name 'n\\udc80' is not valid Unicode: a lone surrogate at position 1"):
        pair.spawn("n\udc80", Probe)
    with pytest.raises(ValueError, match=r"name 'n\\udc80' is not valid Unicode"):
        this_host().spawn_procs(name="n\udc80")
    with pytest.raises(ValueError, match=r"label 'n\\udc80' is not valid Unicode"):
        this_host().spawn_procs({"n\udc80": 2})
    with pytest.raises(ActorError, match=r"name 'n\\udc80' is not valid Unicode"):
        get_or_spawn_controller("n\udc80", Probe).get()
    assert probe.pid.call().get().size() == 2
