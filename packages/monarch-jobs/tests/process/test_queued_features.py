"""Features that need hosts, of a job that waits in a queue: `state()` does not wait, and the meshes wait for both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mesh_actors import Probe

from monarch import extension
from monarch.actor import HostMesh
from monarch.extension import LoadedEntry
from monarch.job import FeatureHosts, JobEndedError, JobFeature, JobStatus, Offer, ProcessJob

# Set when the scheduler starts the job.
runs = threading.Event()


class Mount(JobFeature):
    needs_hosts = True
    started = threading.Event()
    is_there = threading.Event()
    starts: list[str] = []
    error: Exception | None = None

    def __init__(self, **arguments: Any) -> None:
        self.source = arguments["source"]

    def dump(self) -> dict[str, Any]:
        return {"source": self.source}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Mount:
        return cls(**saved)

    def start(self, hosts: FeatureHosts) -> Offer:
        self.starts.append("start")
        return Offer()

    def promised(self, hosts: FeatureHosts) -> Offer:
        if self.source == "wrong":
            raise ValueError("no such mesh")
        return Offer({"telemetry_url": "promised"})

    def keep(self, hosts: FeatureHosts) -> None:
        self.starts.append("keep")
        self.started.set()
        self.is_there.wait()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.is_there.set()


class QueuedLauncher:
    kind = "queued"

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        return self._inner.poll(ids) if runs.is_set() else JobStatus("pending", "no node is free", [])

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        found = self._inner.addresses(ids)
        return found if runs.is_set() else {mesh: [None] * len(hosts) for mesh, hosts in found.items()}


class QueuedJob(ProcessJob):
    kind = ""

    def _launcher(self) -> Any:
        return QueuedLauncher(super()._launcher())


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueuedJob]:
    entry = LoadedEntry("monarch.job_feature", "remote_mount", "wheel 1.0", "wheel:x", Mount)
    monkeypatch.setattr(extension, "load_entry", lambda group, name: entry if name == "remote_mount" else None)
    monkeypatch.setattr(extension, "entry_names", lambda group: ["remote_mount"] if group == "monarch.job_feature" else [])
    for event in (runs, Mount.started, Mount.is_there):
        event.clear()
    Mount.starts.clear()
    Mount.error = None
    made = QueuedJob({"a": 2})
    yield made
    made.kill()


def is_pending(hosts: HostMesh) -> bool:
    assert hosts.__core__.attachment is not None
    return not hosts.__core__.attachment.cell.done()


def test_state_returns_while_the_job_is_queued(job: QueuedJob) -> None:
    job.remote_mount("there")
    state = job.state(cached_path=None)
    pids = state.a.spawn_procs().spawn("probe", Probe).pid.call()
    again = job.state(cached_path=None)
    assert Mount.starts == [] and state.telemetry_url == again.telemetry_url == "promised"
    runs.set()
    assert Mount.started.wait(20)
    assert is_pending(state.a) and is_pending(again.a), "the hosts have joined, and the mount is not there"
    Mount.is_there.set()
    assert len(pids.get(20)) == 2 and Mount.starts == ["keep"]
    job.state(cached_path=None)
    assert Mount.starts == ["keep", "start"], "what is there is refreshed at once"


def test_failed_mount_is_raised_by_the_meshes(job: QueuedJob) -> None:
    Mount.error = full_disk()
    job.remote_mount("there")
    state = job.state(cached_path=None)
    runs.set()
    Mount.is_there.set()
    with pytest.raises(JobEndedError, match="the disk is full"):
        state.a.initialized.get(20)
    # The next process starts the feature again, and waits, as the hosts are there.
    assert job.state(cached_path=None).a.initialized.get(20) is True and Mount.starts == ["keep", "start"]


def full_disk() -> Exception:
    return JobEndedError("the disk is full", title="mount", state="full")


def test_refused_feature_holds_nothing(job: QueuedJob) -> None:
    job.remote_mount("wrong")
    with pytest.raises(ValueError, match="no such mesh"):
        job.state(cached_path=None)
    runs.set()
    assert job.connection_ is not None and job.connection_.a.initialized.get(20) is True


def test_kill_ends_the_wait(job: QueuedJob) -> None:
    job.remote_mount("there")
    hosts = job.state(cached_path=None).a
    job.kill()
    with pytest.raises(JobEndedError, match="killed|ended"):
        hosts.initialized.get(20)
