"""Kinds of objects, as paths of the API and as resources of RBAC.

Ours: the dynamic part of the official client asks the server for all of its kinds before the first request.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

# The kinds without a namespace that this wheel and its tests use.
_CLUSTER_WIDE = frozenset(
    {
        "APIService",
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "IngressClass",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PriorityClass",
        "RuntimeClass",
        "SelfSubjectAccessReview",
        "SelfSubjectReview",
        "StorageClass",
    }
)


class Kind(NamedTuple):
    """`group` is "" for the core; `plural` the name in URLs; `is_namespaced`: its objects are in a namespace."""

    group: str
    version: str
    name: str
    plural: str
    is_namespaced: bool

    @property
    def resource(self) -> str:
        """As RBAC names it: `pods`, `jobs.batch`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """The path below the server's URL; without a name that of the list. Names of roles have any characters, so they are quoted."""
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        parts += [f"namespaces/{quote(namespace, safe='')}"] if self.is_namespaced and namespace else []
        return "/".join(part for part in (*parts, self.plural, quote(name, safe=""), subresource) if part)


def parse(text: str) -> Kind:
    """`v1/Pod`, `batch/v1/Job`. `ValueError` for anything else."""
    version, _, name = text.rpartition("/")
    group, _, version = version.rpartition("/")
    if not version or not name[:1].isupper() or "/" in group:
        raise ValueError(f"a kind is VERSION/Kind or GROUP/VERSION/Kind, not '{text}'")
    return Kind(group, version, name, _plural(name), name not in _CLUSTER_WIDE)


def _plural(name: str) -> str:
    """The rule that all kinds of Kubernetes itself follow, and those of most others."""
    lower = name.lower()
    if lower == "endpoints":
        return lower
    if lower.endswith(("s", "sh", "ch", "x")):
        return f"{lower}es"
    return f"{lower[:-1]}ies" if lower.endswith("y") and lower[-2] not in "aeiou" else f"{lower}s"
