"""The end of a job whose workers were started by other means: what it has spawned ends, the workers go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from eventually import eventually
from memory_cluster import MemoryCluster
from worker_processes import Workers

from monarch.actor import Actor, endpoint
from monarch.job import AttachJob, JobTrait
from monarch.job.kubernetes import KubernetesJob


class Where(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(2, "tls") as found:
        yield found


def _attach_job(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> JobTrait:
    return AttachJob({"a": workers.addresses[:1], "b": workers.addresses[1:]}, credentials=str(workers.secret))


def _kubernetes_job(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> JobTrait:
    """Pods whose network is this machine's."""
    monkeypatch.setenv("MONARCH_JOB_SECRET_FILE", str(workers.secret))
    job = KubernetesJob("research")
    job.cluster_ = cluster = MemoryCluster()
    for mesh, address in zip("ab", workers.addresses, strict=True):
        cluster.pod(mesh, 0, ip="127.0.0.1")["spec"]["containers"] = [{"name": "worker"}]
        port = int(address.rpartition(":")[2])
        job.add_mesh(mesh, 1, label_selector=f"monarch.pytorch.org/mesh-name={mesh}", port=port)
    return job


@pytest.mark.parametrize("make", [_attach_job, _kubernetes_job])
def test_attached_workers_outlive_what_was_spawned(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, make: Callable[[Workers, pytest.MonkeyPatch], JobTrait]
) -> None:
    job = make(workers, monkeypatch)
    state = job.state(None)
    procs = [pid for mesh in "ab" for pid in state[mesh].spawn_procs().spawn("where", Where).pid.call().get().values()]
    assert all(os.path.exists(f"/proc/{pid}") for pid in procs)
    job.kill()
    eventually("the procs are gone", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in procs))
    again = make(workers, monkeypatch).state(None)
    for mesh in "ab":
        assert len(list(again[mesh].spawn_procs().spawn("where", Where).pid.call().get())) == 1
    assert [process.poll() for process in workers.processes] == [None, None]
