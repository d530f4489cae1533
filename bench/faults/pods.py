"""Programs on a real Kubernetes cluster of this machine, whose pods are taken away or cannot start. They need root.

`MONARCH_K8S_CLUSTER` names the folder of a cluster that runs (`python -m tools.k8s up`); without it each program starts its own.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.faults.actors import Trainer
from bench.faults.program import Fault, go_on, ready, until_closed
from tools.k8s.administration import Administration
from tools.k8s.cluster import KubeCluster, missing
from tools.project import ROOT

# Seconds for pods on a busy machine.
_PODS_S = 120.0
_SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"monarch.pytorch.org/mesh-name": "workers"}},
}


@contextmanager
def _cluster(folder: Path) -> Iterator[Administration]:
    if running := os.environ.get("MONARCH_K8S_CLUSTER"):
        kept = Administration(Path(running))
        # An earlier program may have cordoned a node.
        kept.kubectl("uncordon", "-l", "kubernetes.io/hostname")
        yield kept
        return
    with KubeCluster(folder / "cluster") as cluster:
        yield cluster


@contextmanager
def _job(image: str = "") -> Iterator[tuple[Any, Administration, str]]:
    """A job of a pod on each node, in a namespace of its own, with this image or that of the node's programs."""
    from monarch.job.kubernetes import KubernetesJob

    sys.path[:0] = [str(ROOT / "packages" / name / "tests" / kind) for name, kind in (("monarch-jobs", "k8s"), ("monarch-core", "process"))]
    from kubernetes_jobs import host_template

    go_on()
    until_closed()
    # Pods import the actors.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    with _cluster(folder) as cluster:
        os.environ.update(KUBECONFIG=str(cluster.kubeconfig), MONARCH_HOME=str(folder / "home"))
        namespace = f"faults-{secrets.token_hex(4)}"
        cluster.kubectl("create", "namespace", namespace)
        cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=60s")
        template = host_template()
        template["spec"]["topologySpreadConstraints"] = [_SPREAD]
        if image:
            template["spec"]["containers"][0] |= {"image": image, "imagePullPolicy": "IfNotPresent"}
        job = KubernetesJob(namespace)
        job.add_mesh("workers", 2, pod_template=template)
        try:
            yield job, cluster, namespace
        finally:
            job.kill()


def _training(break_it: Callable[[Administration, str, str], object]) -> None:
    """The pods train, and the script goes on after a failure, as one that heals its job."""
    with _job() as (job, cluster, namespace):
        hosts = job.state(cached_path=None).workers
        hosts.initialized.get(_PODS_S)
        trainers = hosts.spawn_procs(name="workers").spawn("trainer", Trainer)
        trainers.step.call().get()

        def train() -> None:
            while trainers.step.call(0.1).exception() is None:
                pass

        threading.Thread(target=train, daemon=True).start()
        break_it(cluster, namespace, job.status().hosts[1].name)
        ready()
        threading.Event().wait()


def _evict(cluster: Administration, namespace: str, pod: str) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def _drain(cluster: Administration, namespace: str, pod: str) -> None:
    node = cluster.kubectl("get", "pod", pod, "-n", namespace, "-o", "jsonpath={.spec.nodeName}")
    cluster.kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")


def _cordon(cluster: Administration, namespace: str, pod: str) -> None:
    cluster.kubectl("cordon", cluster.kubectl("get", "pod", pod, "-n", namespace, "-o", "jsonpath={.spec.nodeName}"))


def _missing_image() -> None:
    with _job("localhost/none:1") as (job, _, _):
        waiting = job.state(cached_path=None).workers.initialized
        ready()
        waiting.exception()
        threading.Event().wait()


_EVICTED = r"pod workers-\S+ on node\d.*EvictionByEvictionAPI: Eviction API: evicting"
FAULTS = (
    Fault("evicted_pod", partial(_training, _evict), _EVICTED, 3.0, lacks=missing),
    Fault("drained_node", partial(_training, _drain), _EVICTED, 3.0, lacks=missing),
    Fault("cordoned_node", partial(_training, _cordon), r"node node\d is cordoned: a drain would evict pod workers-", 1.0, lacks=missing),
    Fault(
        "missing_image",
        _missing_image,
        r"pod workers-\S+ on node\d, container worker: (ErrImagePull|ImagePullBackOff)",
        10.0,
        lacks=missing,
    ),
)
HEALTHY = (Fault("kubernetes_job", partial(_training, lambda *_: None), "", 1.0, lacks=missing),)
