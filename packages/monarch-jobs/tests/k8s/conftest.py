"""A real Kubernetes cluster for the tests: one for all of them, restored after each, and a namespace for each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes_jobs import Jobs, host_template

from tools.k8s.administration import Administration
from tools.k8s.cluster import KubeCluster, missing

# Seconds. On a busy machine most of it is the start of the cluster, before the first test, and after some tests the end of the namespace.
LIMIT_S = 300
# Seconds: controllers that were without the API server query it again after up to 30 s (client-go's reflectors), here one after another:
# pods, then the objects of the garbage collector and the namespace controller.
NAMESPACE_END_S = 150
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


class Shared(Administration):
    """A cluster that is not the tests' own: what would kill something in it is missing, and skips the test."""

    def restore(self) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        if hasattr(KubeCluster, name):
            pytest.skip(f"a cluster that others use as well has no '{name}'")
        raise AttributeError(name)


@pytest.fixture(scope="session")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    """A cluster for all tests, or the one that `python -m tools.k8s up` has started in the folder MONARCH_K8S_CLUSTER."""
    if directory := os.environ.get("MONARCH_K8S_CLUSTER"):
        yield cast("KubeCluster", Shared(Path(directory)))
        return
    if lacking := missing():
        pytest.skip(lacking)
    with KubeCluster(tmp_path_factory.mktemp("k8s")) as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubeCluster]:
    """Two nodes that are Ready; what a test has killed or cut off is there again after it."""
    monkeypatch.setenv("KUBECONFIG", str(started_cluster.kubeconfig))
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield started_cluster
    started_cluster.restore()


@pytest.fixture(scope="session")
def ended(started_cluster: KubeCluster) -> Iterator[dict[str, str]]:
    """The namespaces of tests that are over, and the tests: none of them is there in the end. No test waits for that of another one."""
    names: dict[str, str] = {}
    yield names
    # One command for all that are left: each takes half a second of a processor.
    while left := names.keys() & set(started_cluster.kubectl("get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}").split()):
        spaces = [f"namespace/{name}" for name in left]
        try:
            started_cluster.kubectl("wait", "--for=delete", *spaces, f"--timeout={NAMESPACE_END_S}s", timeout=NAMESPACE_END_S + 30)
        except BaseException as error:
            error.add_note("the namespaces are those of " + ", ".join(f"{names[name]} ({name})" for name in left))
            raise


@pytest.fixture
def namespace(cluster: KubeCluster, ended: dict[str, str], request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an empty namespace; it and all in it are removed after the test."""
    name = f"t-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    # Pods are made when it is there.
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=60s")
    yield name
    cluster.restore()  # a node that is gone would keep its pods
    ended[name] = request.node.nodeid
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    # Controllers that were without the API server take their finalizers off pods late.
    cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false", "-n", name)


@pytest.fixture
def pod_template() -> dict[str, Any]:
    """A template whose container `worker` has this checkout and its Python, as `python` on PATH, and no command yet."""
    return host_template()


@pytest.fixture
def jobs(cluster: KubeCluster, namespace: str, pod_template: dict[str, Any]) -> Iterator[Jobs]:
    made = Jobs(cluster, namespace, pod_template)
    yield made
    for job in made.made:
        job.kill()
