"""Jobs on Kubernetes of every kind: what the snapshots of plans show, and what a real API server is asked to accept."""

from __future__ import annotations

from typing import Any

from monarch.job.kubernetes.arguments import ImageSpec, KubernetesArguments, checked, checked_mesh

Object = dict[str, Any]

IMAGE = ImageSpec("registry.example.com/monarch:1")
GPUS = ImageSpec("registry.example.com/monarch:1-cuda", {"cpu": 16, "memory": "64Gi", "nvidia.com/gpu": 8}, shared_memory_size="32Gi")
MOUNTS = ImageSpec("registry.example.com/monarch:1", enable_fuse=True)
DEVICE = ImageSpec("registry.example.com/monarch:1", {"smarter-devices/fuse": 1}, enable_fuse=True)
QUEUE = {"kueue.x-k8s.io/queue-name": "research"}
TEMPLATE: Object = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
    "spec": {
        "hostNetwork": True,
        "nodeSelector": {"gpu": "h100"},
        "securityContext": {"runAsUser": 2000},
        "initContainers": [{"name": "before", "image": "busybox:1"}],
        "containers": [
            {"name": "beside", "image": "logs:1"},
            {
                "name": "worker",
                "image": "mine:1",
                "command": ["python", "-m", "my_worker"],
                "args": ["--fast"],
                "env": [{"name": "OWN", "value": "$(MONARCH_PORT)"}],
                "ports": [{"name": "http", "containerPort": 8080}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


def arguments_of(*meshes: Object, **arguments: Any) -> KubernetesArguments:
    found = {mesh["name"]: checked_mesh(mesh).model_dump() for mesh in meshes}
    return checked({"namespace": "research", **arguments, "meshes": found})


CASES: dict[str, KubernetesArguments] = {
    "kubernetes_least": arguments_of({"name": "workers", "num_replicas": 2, "image_spec": IMAGE}),
    "kubernetes_template": arguments_of({"name": "workers", "num_replicas": 2, "pod_template": TEMPLATE, "labels": QUEUE, "port": 31000}),
    "kubernetes_meshes": arguments_of(
        {"name": "trainers", "num_replicas": 4, "image_spec": GPUS},
        {"name": "mounts", "num_replicas": 1, "image_spec": MOUNTS, "port": 26601},
        {"name": "devices", "num_replicas": 1, "image_spec": DEVICE},
        {"name": "there", "num_replicas": 2, "label_selector": "app=mine", "pod_rank_label": "rank"},
        attach_to="tcp://gateway.example.com:443",
        idle_timeout=600.0,
    ),
    "kubernetes_statefulset": arguments_of({"name": "workers", "num_replicas": 2, "image_spec": IMAGE}, workload="statefulset"),
    "kubernetes_jobset": arguments_of(
        {"name": "trainers", "num_replicas": 4, "image_spec": IMAGE, "labels": QUEUE, "annotations": {"note": "a"}},
        {"name": "rollout", "num_replicas": 2, "image_spec": IMAGE, "labels": QUEUE},
        workload="jobset",
    ),
    "kubernetes_monarchmesh": arguments_of(
        {"name": "workers", "num_replicas": 2, "image_spec": IMAGE, "labels": QUEUE}, provisioner="monarchmesh"
    ),
    "kubernetes_insecure": arguments_of(
        {"name": "workers", "num_replicas": 1, "image_spec": IMAGE}, insecure=True, network_policy=False, workload="statefulset"
    ),
}
