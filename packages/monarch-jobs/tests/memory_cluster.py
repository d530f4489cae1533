"""A cluster in memory, for what the objects and answers of an API server mean to a job: no controller, no node, no network."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from monarch.job.kubernetes.access.client import Cluster, Object
from monarch.job.kubernetes.access.connection import ApiConnection, Endpoint
from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.access.identity import Identity

JOB = "11111111-2222-3333-4444-555555555555"


class MemoryCluster(Cluster):
    """Keeps what is applied; a test plays controllers and nodes. `refuse` raises what a request is refused with."""

    def __init__(self, namespace: str = "research") -> None:
        # Nothing is sent to this address.
        self.connection = ApiConnection(Endpoint("https://memory.example", "memory", proxy=""), Identity())
        self.namespace = namespace
        self.title = "kubernetes job 11111111"
        self.objects: dict[tuple[str, str], Object] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.logs: dict[tuple[str, bool], str] = {}
        self.events_of: dict[str, list[Object]] = {}
        self.version = (1, 36)
        self.refuse: Callable[[str, str, str], None] = lambda verb, kind, name: None
        self._lock = threading.Lock()

    def _request(self, verb: str, kind: str, name: str = "") -> None:
        self.requests.append((verb, kind, name))
        self.refuse(verb, kind, name)

    def apply(self, obj: Object, *, force: bool = False) -> Object:
        kind, name = f"{obj['apiVersion']}/{obj['kind']}", obj["metadata"]["name"]
        self._request("apply", kind, name)
        with self._lock:
            kept = copy.deepcopy(obj)
            kept["metadata"].setdefault("uid", f"uid-{len(self.requests)}")
            self.objects[kind, name] = kept
        return copy.deepcopy(kept)

    def create(self, obj: Object) -> Object:
        if (f"{obj['apiVersion']}/{obj['kind']}", obj["metadata"]["name"]) in self.objects:
            raise ApiError("exists", status=409)
        return self.apply(obj)

    def get(self, kind: str, name: str) -> Object | None:
        self._request("get", kind, name)
        return copy.deepcopy(self.objects.get((kind, name)))

    def list(self, kind: str, selector: str = "", *, fields: str = "") -> tuple[list[Object], str]:
        self._request("list", kind)
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        found = [
            copy.deepcopy(obj)
            for (of, _), obj in self.objects.items()
            if of == kind and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
        ]
        return found, "1"

    def delete(self, kind: str, name: str, *, propagation: str = "Background", grace: int | None = None, uid: str | None = None) -> bool:
        self._request("delete", kind, name)
        found = self.objects.get((kind, name))
        if found is None or (uid is not None and found["metadata"]["uid"] != uid):
            return False
        with self._lock:
            del self.objects[kind, name]
        return True

    def pod_log(self, name: str, container: str | None = None, lines: int = 10, *, previous: bool = False, seconds: float = 30.0) -> str:
        self._request("log", "v1/Pod", name)
        return self.logs.get((name, previous), "")

    def events(self, name: str, kind: str = "Pod") -> list[Object]:
        self._request("events", kind, name)
        return self.events_of.get(name, [])

    def server_version(self) -> tuple[int, int]:
        return self.version

    def names(self, kind: str) -> list[str]:
        return sorted(name for of, name in self.objects if of == kind)

    def pod(self, mesh: str, rank: int, *, name: str = "", uid: str = "", ip: str = "", created: str = "", **changes: Any) -> Object:
        """Adds a pod as the controller of an Indexed Job makes it, Ready by default; `changes` are of its status."""
        name = name or f"{mesh}-11111111-{rank}-aaaaa"
        status: Object = {
            "phase": "Running",
            "podIP": ip or f"10.0.0.{rank + 1}",
            "conditions": [ready()],
            "containerStatuses": [running()],
        }
        pod: Object = {
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "uid": uid or f"{rank:08x}-0000-0000-0000-{name[-5:]}",
                "creationTimestamp": created or "2030-01-01T00:00:00Z",
                "labels": {
                    "monarch.pytorch.org/job": JOB,
                    "monarch.pytorch.org/mesh-name": mesh,
                    "batch.kubernetes.io/job-completion-index": str(rank),
                },
            },
            "spec": {
                "nodeName": "node1",
                "restartPolicy": "Never",
                "containers": [{"name": "worker", "env": [{"name": "MONARCH_POD_UID"}]}],
            },
            "status": status | changes,
        }
        self.objects["v1/Pod", name] = pod
        return pod


def ready(value: str = "True") -> Object:
    return {"type": "Ready", "status": value}


def running(*, restarts: int = 0, is_ready: bool = True, **last: Any) -> Object:
    found: Object = {"name": "worker", "ready": is_ready, "restartCount": restarts, "state": {"running": {}}}
    return found | ({"lastState": {"terminated": last}} if last else {})


def waiting(reason: str, message: str = "", **rest: Any) -> Object:
    return {"name": "worker", "ready": False, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}} | rest


def ended(code: int, reason: str = "Error", message: str = "") -> Object:
    detail = {"exitCode": code, "reason": reason, "message": message}
    return {"name": "worker", "ready": False, "restartCount": 0, "state": {"terminated": detail}}
