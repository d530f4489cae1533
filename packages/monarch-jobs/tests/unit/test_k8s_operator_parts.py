"""Parts of the operator that need no cluster: the objects of a mesh, its status, the queue, addresses, metrics."""

from __future__ import annotations

import copy
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from monarch.job.kubernetes.manifests import mesh_objects, names
from monarch.job.kubernetes.operator import endpoints
from monarch.job.kubernetes.operator.metrics import Metrics
from monarch.job.kubernetes.operator.status import mesh_status
from monarch.job.kubernetes.operator.work_queue import Key, WorkQueue

Object = dict[str, Any]
NOW, BEFORE = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"


def _mesh(replicas: int = 2, **metadata: Any) -> Object:
    template = {
        "metadata": {"labels": {"team": "a", names.MESH_LABEL: "other"}},
        "spec": {"containers": [{"name": "worker", "image": "a"}]},
    }
    return {
        "metadata": {"name": "workers", "namespace": "research", "generation": 3, **metadata},
        "spec": {"replicas": replicas, "port": 26600, "podTemplate": template},
    }


def _set(ready: int, there: int | None = None, observed: int = 1) -> Object:
    status = {"replicas": ready if there is None else there, "readyReplicas": ready, "observedGeneration": observed}
    return {"metadata": {"generation": 1}, "status": status}


def test_mesh_is_a_service_and_a_stateful_set() -> None:
    mesh = _mesh(
        labels={"kueue.x-k8s.io/queue-name": "q"}, annotations={"note": "a", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    )
    before = copy.deepcopy(mesh)
    service, made = mesh_objects(mesh)
    assert mesh == before
    assert (service["metadata"]["name"], made["metadata"]["name"]) == ("workers-svc", "workers")
    selector = {"app.kubernetes.io/name": "monarch-worker", "monarch.pytorch.org/mesh-name": "workers"}
    assert service["spec"]["selector"] == made["spec"]["selector"]["matchLabels"] == selector
    assert service["spec"]["ports"][0] == {"name": "monarch", "port": 26600, "targetPort": 26600, "protocol": "TCP"}
    assert made["spec"]["template"]["metadata"]["labels"] == {"team": "a", **selector}
    assert (made["spec"]["podManagementPolicy"], made["spec"]["serviceName"]) == ("Parallel", "workers-svc")
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q", **selector}
    assert set(made["metadata"]["annotations"]) == {"note", names.TEMPLATE_HASH}


def test_hash_is_of_the_template_only() -> None:
    def found(mesh: Object) -> str:
        return str(mesh_objects(mesh)[1]["metadata"]["annotations"][names.TEMPLATE_HASH])

    changed = _mesh()
    changed["spec"]["podTemplate"]["spec"]["containers"][0]["image"] = "b"
    assert found(_mesh()) == found(_mesh(5, labels={"a": "b"}))
    assert found(_mesh()) != found(changed)


def test_secret_of_a_mesh_is_added() -> None:
    assert "volumes" not in mesh_objects(_mesh())[1]["spec"]["template"]["spec"]
    template = mesh_objects(_mesh(annotations={names.JOIN_SECRET: "mine"}))[1]["spec"]["template"]
    assert template["spec"]["volumes"][0]["secret"]["secretName"] == "mine"
    other = _mesh(annotations={names.JOIN_SECRET: "mine"})
    other["spec"]["podTemplate"]["spec"]["containers"][0]["name"] = "main"
    with pytest.raises(ValueError, match="no container 'worker'"):
        mesh_objects(other)


@pytest.mark.parametrize(
    ("stateful_set", "problem", "expected"),
    [
        (None, "", ("False", "Waiting", "0 of 2 pods are ready")),
        (_set(1, 2), "", ("False", "Waiting", "1 of 2 pods are ready")),
        (_set(2), "", ("True", "AllReady", "2 of 2 pods are ready")),
        (_set(2, 3), "", ("False", "Waiting", "2 of 2 pods are ready")),
        (_set(2, observed=0), "", ("False", "Waiting", "2 of 2 pods are ready")),
        (_set(2), "no quota", ("False", "Waiting", "no quota")),
    ],
)
def test_condition_follows_the_pods(stateful_set: Object | None, problem: str, expected: tuple[str, str, str]) -> None:
    status = mesh_status(_mesh(), stateful_set, problem, NOW)
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"], condition["message"]) == expected
    assert (condition["type"], condition["observedGeneration"], status["observedGeneration"]) == ("Ready", 3, 3)


def test_time_of_a_condition_is_that_of_its_change() -> None:
    mesh = _mesh()
    mesh["status"] = mesh_status(mesh, _set(1), "", BEFORE)
    mesh["status"]["conditions"].insert(0, {"type": "Other", "status": "True"})
    same, changed = mesh_status(mesh, _set(0), "", NOW), mesh_status(mesh, _set(2), "", NOW)
    assert same["conditions"][1]["lastTransitionTime"] == BEFORE
    assert changed["conditions"][1]["lastTransitionTime"] == NOW
    assert same["conditions"][0] == {"type": "Other", "status": "True"}


A, B = Key("research", "a"), Key("research", "b")


def test_key_is_worked_on_by_one_thread() -> None:
    queue = WorkQueue()
    queue.put(A)
    queue.put(A)
    assert queue.take() == A
    queue.put(A)
    queue.put(B)
    assert queue.take() == B
    queue.done(B, failed=False)
    queue.done(A, failed=False)
    assert queue.take() == A


def test_waiting_thread_gets_a_new_key() -> None:
    queue = WorkQueue()
    queue.put(B, 3600.0)
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(queue.take) for _ in range(2)]
        queue.put(A)
        queue.put(B)
        assert {future.result(20) for future in taken} == {A, B}


def test_failed_key_comes_again() -> None:
    queue = WorkQueue()
    queue.put(A)
    assert queue.take() == A
    queue.done(A, failed=True)
    assert queue.take() == A


def test_closed_queue_lets_threads_go() -> None:
    queue = WorkQueue()
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(queue.take) for _ in range(2)]
        queue.close()
        assert [future.result(20) for future in taken] == [None, None]


def test_many_threads_take_each_key_once() -> None:
    queue, lock = WorkQueue(), threading.Lock()
    keys = {Key("research", str(number)) for number in range(200)}
    found: list[Key] = []

    def work() -> None:
        while (key := queue.take()) is not None:
            with lock:
                found.append(key)
            queue.done(key, failed=False)
            if len(found) == len(keys):
                queue.close()

    for key in keys:
        queue.put(key)
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work) for _ in range(4)]:
            future.result(20)
    assert sorted(found) == sorted(keys)


def test_addresses_of_endpoints() -> None:
    assert [endpoints.address(text) for text in ("0", "", ":8081", "127.0.0.1:1", "[::1]:2")] == [
        None,
        None,
        ("", 8081),
        ("127.0.0.1", 1),
        ("::1", 2),
    ]
    for text in ("8081", ":", ":x", ":65536", "host"):
        with pytest.raises(ValueError, match=f"'{text}'"):
            endpoints.address(text)


def test_endpoints_answer() -> None:
    port = endpoints.serve(("127.0.0.1", 0), {"/well": lambda: (True, "ok"), "/ill": lambda: (False, "why")})

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    assert get("/well") == (200, "ok")
    assert get("/ill?verbose") == (500, "why")
    assert get("/other") == (404, "not found")


def test_metrics_are_text_of_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    metrics = Metrics()
    metrics.add("monarch_operator_reconciles_total", 2, 'result="ok"')
    metrics.add("monarch_operator_reconciles_total", 1, 'result="ok"')
    metrics.set("monarch_operator_meshes", 4)
    found = {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }
    assert found["monarch_operator_reconciles_total", (("result", "ok"),)] == 3
    assert found["monarch_operator_meshes", ()] == 4
    assert found["monarch_operator_leader", ()] == 0
