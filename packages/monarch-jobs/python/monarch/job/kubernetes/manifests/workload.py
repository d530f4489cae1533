"""What runs the pods of a mesh: an Indexed Job, a StatefulSet or a part of a JobSet, and the headless Service that names the pods."""

from __future__ import annotations

from typing import Any

from monarch.job.kubernetes.manifests import names

Object = dict[str, Any]

# Seconds for which ended workers stay, so that their output can be read.
TTL_S = 600
# The largest number that the API accepts: every lost index is replaced. A podFailurePolicy is no alternative: with one, the pod of a lost
# node would be replaced only after the node has come back.
BACKOFF_LIMIT = 2**31 - 1


def service(name: str, mesh: str, selector: dict[str, str], port: int, metadata: Object) -> Object:
    """Headless: names for pods, also for those that are not ready, which is when workers find each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, **metadata},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": [{"name": names.PORT_NAME, "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


def job_spec(replicas: int, template: Object) -> Object:
    """Of an Indexed Job: each index is a host, a worker that ends with 0 has freed its node."""
    return {
        "completionMode": "Indexed",
        "completions": replicas,
        "parallelism": replicas,
        "backoffLimit": BACKOFF_LIMIT,
        "template": template,
    }


def indexed_job(name: str, replicas: int, template: Object, metadata: Object) -> Object:
    spec = {**job_spec(replicas, template), "ttlSecondsAfterFinished": TTL_S}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, **metadata}, "spec": spec}


def stateful_set(name: str, service_name: str, replicas: int, template: Object, selector: dict[str, str], metadata: Object) -> Object:
    """All pods at once: workers do not wait for those of lower ranks."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, **metadata},
        "spec": {
            "serviceName": service_name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": selector},
            "template": template,
        },
    }


def job_set(name: str, jobs: list[tuple[str, Object, Object]], metadata: Object) -> Object:
    """One gang: `jobs` are names, specs and metadata of what becomes one Job each."""
    replicated = [{"name": part, "replicas": 1, "template": {"metadata": of_job, "spec": spec}} for part, spec, of_job in jobs]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, **metadata},
        "spec": {"network": {"enableDNSHostnames": False}, "ttlSecondsAfterFinished": TTL_S, "replicatedJobs": replicated},
    }
