"""KubernetesJob as data: what it takes, what a state file has of it, what it can run. No request leaves this process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_stand_in import Answer, ApiStandIn, Asked
from memory_cluster import JOB, MemoryCluster, running

from monarch.config import configured
from monarch.job import BackendMissingError, CredentialsError, SubmitError, job_loads
from monarch.job._client.keeper import Keeper
from monarch.job._job.launcher import Host
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.connection import ApiConnection, Endpoint
from monarch.job.kubernetes.access.identity import Identity
from monarch.job.kubernetes.job import GatewayPod

IMAGE = ImageSpec("registry.example.com/monarch:1", {"cpu": 2})


def _job(**arguments: Any) -> KubernetesJob:
    job = KubernetesJob("research", **arguments)
    job.add_mesh("trainers", 2, image_spec=IMAGE)
    return job


def test_missing_extra_names_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import monarch.job.kubernetes as module

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendMissingError, match=r"pip install 'monarch-jobs\[kubernetes\]'"):
        module.__getattr__("KubernetesJob")


def test_official_client_is_not_imported() -> None:
    code = "import sys; from monarch.job.kubernetes import KubernetesJob; KubernetesJob('a').status(); print('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: KubernetesJob("No Namespace"), ValueError, "No Namespace"),
        (lambda: KubernetesJob("a", timeout=0), ValueError, "timeout"),
        (lambda: KubernetesJob("a", kubeconfig="path"), TypeError, "kubeconfig is a KubeConfig"),  # pyright: ignore[reportArgumentType]
        (lambda: KubernetesJob("a", workload="pod"), ValueError, "workload"),  # pyright: ignore[reportArgumentType]
        (lambda: KubernetesJob("a", attach_to="nonsense"), ValueError, "attach_to: .*nonsense"),
        (lambda: KubernetesJob("a", attach_to=""), ValueError, "attach_to"),
        (lambda: KubernetesJob("a", idle_timeout=-1), ValueError, "idle_timeout"),
        (lambda: KubernetesJob("a").add_mesh("A-b", 1), ValueError, "A-b"),
        (lambda: KubernetesJob("a").add_mesh("a", 0), ValueError, "a"),
        (lambda: _job().add_mesh("trainers", 1), ValueError, "a mesh 'trainers' already"),
        (lambda: KubernetesJob("a").add_mesh("b", 1, image_spec=IMAGE, pod_template={"spec": {}}), ValueError, "exclude each other"),
    ],
)
def test_bad_arguments_are_refused_by_name(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_work_ends_while_the_keeper_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper forwards the port through which hosts are asked to end it."""
    job, order = _job(), list[str]()
    job.__core__.apply_id, job.__core__.active, job.cluster_ = JOB, True, MemoryCluster()
    monkeypatch.setattr(KubernetesJob, "_stop_work", lambda self: order.append("work"))
    monkeypatch.setattr(Keeper, "end", lambda self: order.append("keeper"))
    monkeypatch.setattr(KubernetesJob, "_kill", lambda self: order.append("pods"))
    job.kill()
    assert order == ["work", "keeper", "pods"]


def test_job_without_a_mesh_is_refused() -> None:
    with pytest.raises(ValueError, match="without a mesh"):
        KubernetesJob("a").plan()


def test_saved_job_equals_the_original() -> None:
    job = _job(idle_timeout=60, timeout=5)
    copy = job_loads(job.dumps())
    assert isinstance(copy, KubernetesJob) and copy.plan() == job.plan() and copy.dumps() == job.dumps()
    assert copy.can_run(_job(idle_timeout=60))
    other = _job()
    other.add_mesh("judges", 1, image_spec=IMAGE)
    assert not copy.can_run(other)
    elsewhere = KubernetesJob("else")
    elsewhere.add_mesh("trainers", 2, image_spec=IMAGE)
    assert not copy.can_run(elsewhere)


def test_submitted_job_takes_no_further_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job()
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(MemoryCluster()))
    job.apply()
    with pytest.raises(RuntimeError, match="is submitted"):
        job.add_mesh("judges", 1, image_spec=IMAGE)
    job.kill()


def _in_memory(cluster: MemoryCluster) -> Callable[[KubernetesJob], Cluster]:
    return lambda job: cluster


def test_failed_submission_leaves_no_credentials(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    cluster = MemoryCluster()

    def refuse(verb: str, kind: str, name: str) -> None:
        if kind == "batch/v1/Job" and verb == "apply":
            raise SubmitError("no", title=cluster.title)

    cluster.refuse = refuse
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(cluster))
    job = _job()
    with pytest.raises(SubmitError, match="no"):
        job.apply()
    assert not job.active and cluster.objects == {}
    assert list((folder.parent / "home").glob("jobs/*")) == []


def test_attached_pods_need_a_secret_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONARCH_JOB_SECRET_FILE", raising=False)
    cluster = MemoryCluster()
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(cluster))
    job = KubernetesJob("research")
    job.add_mesh("old", 1)
    with pytest.raises(SubmitError, match="by which secret the pods of mesh 'old' are joined(.|\n)*MONARCH_TRUST_ALL=1 for a program"):
        job.apply()
    assert not any(verb == "apply" for verb, _, _ in cluster.requests)


def test_attached_pods_need_no_secret_under_trust_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONARCH_JOB_SECRET_FILE", raising=False)
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(MemoryCluster()))
    job = KubernetesJob("research")
    job.add_mesh("old", 1)
    with configured(trust_all=True):
        job.apply()
    assert job.active and job._trust("old") == {}
    job.kill()


def test_missing_or_incomplete_join_secret_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster()
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(cluster))
    job = _job(join_secret="shared")
    with pytest.raises(CredentialsError, match="Secret research/shared: is missing"):
        job._trust("trainers")
    cluster.objects["v1/Secret", "shared"] = {"metadata": {"name": "shared"}, "data": {"other": "eA=="}}
    with pytest.raises(CredentialsError, match="has no key 'secret'"):
        job._trust("trainers")
    cluster.objects["v1/Secret", "shared"]["data"]["secret"] = "MDEyMzQ1Njc4OWFiY2RlZgo="
    assert job._trust("trainers") == {"secret": b"0123456789abcdef"}


@pytest.fixture
def two_clusters(tmp_path: Path) -> Iterator[tuple[ApiStandIn, ApiStandIn]]:
    """Servers that take everything and have nothing."""

    def answer(asked: Asked) -> Answer:
        version = {"major": "1", "minor": "36"} if asked.path == "/version" else {}
        return Answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {"uid": "u", "name": "x"}, "items": [], **version})

    for name in "ab":
        (tmp_path / name).mkdir()
    with ApiStandIn(tmp_path / "a", answer) as a, ApiStandIn(tmp_path / "b", answer) as b:
        yield a, b


def test_job_of_another_cluster_is_refused(
    two_clusters: tuple[ApiStandIn, ApiStandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_clusters
    # `kubectl config use-context` does this: the same file, another cluster.
    config = a.kubeconfig(tmp_path / "config", {"token": "t"})
    monkeypatch.setenv("KUBECONFIG", str(config))
    job = _job()
    job.apply()
    text = job.dumps()
    b.kubeconfig(config, {"token": "t"})
    for verb in ("status", "heal", "kill", "state"):
        other = job_loads(text)
        with pytest.raises(CredentialsError) as raised:
            getattr(other, verb)()
        assert a.url in str(raised.value) and b.url in str(raised.value) and str(config) in str(raised.value), verb
        assert other.active
    # The process that has submitted the job stays with its cluster, and so does one that returns to it.
    assert job.status().phase != "none"
    a.kubeconfig(config, {"token": "t"})
    job_loads(text).kill()
    assert b.requests == []


def test_refused_kill_leaves_the_credentials(
    two_clusters: tuple[ApiStandIn, ApiStandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_clusters
    config = a.kubeconfig(tmp_path / "config", {"token": "t"})
    monkeypatch.setenv("KUBECONFIG", str(config))
    job = _job()
    job.apply()
    secret, text = job._secret(), job.dumps()
    b.kubeconfig(config, {"token": "t"})
    with pytest.raises(CredentialsError, match="was submitted to"):
        job_loads(text).kill()
    config.unlink()
    with pytest.raises(CredentialsError, match="cannot be read"):
        job_loads(text).kill()
    assert job._secret() == secret
    a.kubeconfig(config, {"token": "t"})
    job_loads(text).kill()
    with pytest.raises(CredentialsError):
        job._secret()


def test_password_in_a_server_url_is_not_saved() -> None:
    connection = ApiConnection(Endpoint("https://ada:s3cret@api.example:6443/path/", "file"), Identity())
    assert connection.server == "https://api.example:6443/path" and "s3cret" not in repr(connection)


def test_given_configuration_is_in_no_file() -> None:
    class Configuration:
        host = "https://secret.example.com"

    job = _job(kubeconfig=KubeConfig.from_config(Configuration()))  # pyright: ignore[reportArgumentType]
    assert b"secret.example.com" not in job.dumps() and b'"given": true' in job.dumps()


def test_job_of_another_cluster_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script whose kubeconfig was changed gets no hosts of the cluster that it had before."""
    first, second = MemoryCluster(), MemoryCluster()
    second.connection = ApiConnection(Endpoint("https://other.example", "other", proxy=""), Identity())
    job = _job()
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(first))
    job.apply()
    assert job.can_run(_job())
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(second))
    assert not job.can_run(_job())
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(first))
    job.kill()


def test_worker_restarted_by_another_process_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a StatefulSet starts it: the pod, its address and its name stay."""
    cluster = MemoryCluster()
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(cluster))
    job = _job(workload="statefulset")
    job.apply()

    def pods(restarts: int) -> None:
        for rank in range(2):
            pod = cluster.pod("trainers", rank, name=f"trainers-{rank}", containerStatuses=[running(restarts=restarts if rank else 0)])
            pod["metadata"]["labels"] |= {"apps.kubernetes.io/pod-index": str(rank), "monarch.pytorch.org/job": job.apply_id}
            pod["spec"]["restartPolicy"] = "Always"

    pods(0)
    job.status()
    assert job._ids is not None
    job.attached_ = {Host(host.mesh, host.rank): host.address or "" for host in job.status().hosts}
    other = job_loads(job.dumps())
    assert isinstance(other, KubernetesJob) and other._ids is not None
    pods(1)
    other._launcher().renew(other._ids)
    other.status()
    job._take_over(other)
    assert job.is_stale_ and [address != "" for address in job.attached_.values()] == [True, False]
    job.attached_ = None
    job.kill()


def test_forward_follows_its_worker_until_the_jobs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Recorded:
        def __init__(self, cluster: Cluster, pod: str, port: int) -> None:
            self.pod = pod

        def start(self) -> int:
            made.append(f"start {self.pod}")
            return 7000 + len(made)

        def close(self) -> None:
            made.append(f"close {self.pod}")

    monkeypatch.setattr("monarch.job.kubernetes.access.forward.Forward", Recorded)
    monkeypatch.setattr(KubernetesJob, "_cluster", _in_memory(MemoryCluster()))
    job = _job()
    job._args = job._args.model_copy(update={"kubeconfig": {"given": True}})
    first, second = GatewayPod("trainers", "a", ("10.0.0.1", 26600)), GatewayPod("trainers", "b", ("10.0.0.1", 26600))
    assert job._forward(first) == job._forward(first) == 7001
    assert job._forward(second) == 7003
    job._kill()
    assert made == ["start a", "close a", "start b", "close b"]
