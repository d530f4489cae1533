"""The manifests of two pages, docs/kubernetes.md and docs/kubernetes-clusters.md: the objects of their commands and jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Object = dict[str, Any]

NAMESPACE = "team"
IMAGE = "registry.example/monarch:0.1.0"


def _block(text: str) -> str:
    return f"```yaml\n{text.rstrip()}\n```\n"


def _objects(objects: Sequence[Object]) -> str:
    from monarch.job.kubernetes.manifests.yaml_text import documents

    return _block(documents(objects))


def rights() -> str:
    """The output of `monarch k8s rbac --user ada --namespace team --print`."""
    from monarch.job._cli.k8s_install import grant
    from monarch.job.kubernetes.manifests import rbac

    return _objects(grant(NAMESPACE, rbac.rules("native", forward=True), user="ada"))


def attach_rights() -> str:
    """The output of `monarch k8s rbac --mode attach --join-secret --namespace team --print`, without the binding."""
    from monarch.job._cli.k8s_install import grant
    from monarch.job.kubernetes.manifests import rbac

    found = grant(NAMESPACE, rbac.rules("attach", join_secret=True))
    return _objects([one for one in found if one["kind"] == "Role"])


def plan() -> str:
    """The workload of the first job of the page."""
    from monarch.job.kubernetes import ImageSpec, KubernetesJob

    job = KubernetesJob(NAMESPACE)
    job.add_mesh("trainers", 2, image_spec=ImageSpec(IMAGE, {"cpu": 4}))
    return _of_plan(job.plan().text, "Job")


def mesh() -> str:
    """The MonarchMesh of the page."""
    from monarch.job.kubernetes import ImageSpec, KubernetesJob

    job = KubernetesJob(NAMESPACE, provisioner="monarchmesh")
    job.add_mesh("trainers", 2, image_spec=ImageSpec(IMAGE))
    return _of_plan(job.plan().text, "MonarchMesh")


def _of_plan(text: str, kind: str) -> str:
    """The object of this kind with shortened pods: their command is a script that the page does not explain."""
    import yaml

    from monarch.job.kubernetes.manifests.yaml_text import document

    found: Object = next(one for one in yaml.safe_load_all(text) if one["kind"] == kind)
    spec: Object = found["spec"]
    template: Object = spec["template"] if kind == "Job" else spec["podTemplate"]
    container: Object = template["spec"]["containers"][0]
    shown = {key: container[key] for key in ("name", "image", "resources", "readinessProbe") if key in container}
    template["spec"] = {"containers": [shown]}
    return _block(document(found))


GUIDE, CLUSTERS = "docs/kubernetes.md", "docs/kubernetes-clusters.md"
# The page of each manifest, the words that mark it there, and the manifest.
MANIFESTS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    (GUIDE, "the rights of a user", rights),
    (CLUSTERS, "the rights of a client that attaches", attach_rights),
    (GUIDE, "the workload of a mesh", plan),
    (CLUSTERS, "a MonarchMesh", mesh),
)
