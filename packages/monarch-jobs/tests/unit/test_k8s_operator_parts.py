"""Parts of the operator that need no cluster: the objects of a mesh, its status, the queue, addresses, metrics."""

from __future__ import annotations

import contextlib
import copy
import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from monarch.job.kubernetes.manifests import mesh_objects, names
from monarch.job.kubernetes.operator import endpoints, ownership
from monarch.job.kubernetes.operator.metrics import Metrics
from monarch.job.kubernetes.operator.status import NOT_OWNED, Problem, mesh_status
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
    assert service["metadata"]["labels"] == selector
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


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth - 1):
        found = [found]
    return found


HOSTILE: list[tuple[Object, str]] = [
    ({"containers": []}, "spec.podTemplate has 'containers'"),
    ({"metadata": [], "spec": "x"}, "spec.podTemplate.spec is a mapping, not str"),
    ({"metadata": "x"}, "spec.podTemplate.metadata is a mapping, not str"),
    ({"metadata": {"labels": ["a"]}}, "metadata.labels is a mapping, not list"),
    ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations: 'a' is 1, and text is needed"),
    ({"spec": 7}, "spec.podTemplate.spec is a mapping, not int"),
    ({"spec": {"containers": "worker"}}, "spec.containers is a list, not str"),
    ({"spec": {"containers": ["worker"]}}, r"spec.containers\[0\] is a mapping, not str"),
    ({"spec": {"containers": [{"name": "worker", "volumeMounts": 7}]}}, r"containers\[0\].volumeMounts is a list, not int"),
    ({"spec": {"containers": [{"name": "worker", "securityContext": True}]}}, r"containers\[0\].securityContext is a mapping, not bool"),
    ({"spec": {"securityContext": [1], "containers": [{"name": "worker"}]}}, "spec.securityContext is a mapping, not list"),
    ({"spec": {"volumes": {"a": 1}}}, "spec.volumes is a list, not dict"),
    ({"spec": {"containers": nested(300)}}, "nested deeper than 100 levels"),
    ({}, "no container 'worker'"),
    ({"metadata": None, "spec": None}, "no container 'worker'"),
]


@pytest.mark.parametrize(("template", "words"), HOSTILE)
def test_wrong_types_in_a_template_are_named(template: Object, words: str) -> None:
    mesh = _mesh(annotations={names.JOIN_SECRET: "mine"})
    mesh["spec"]["podTemplate"] = template
    with pytest.raises(ValueError, match=words):
        mesh_objects(mesh)


def _named(kind: str, spec: Object, **metadata: Any) -> Object:
    return {"kind": kind, "metadata": {"name": "workers", **metadata}, "spec": spec}


HEADLESS: Object = {"clusterIP": "None", "ports": [{"port": 1}]}
SELECTING: Object = {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "workers-svc", "podManagementPolicy": "Parallel"}
OTHER = {"kind": "Deployment", "name": "x", "uid": "1", "controller": True}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (_named("Service", HEADLESS), ""),
        (_named("Service", HEADLESS, ownerReferences=[{**OTHER, "controller": False}]), ""),
        (_named("Service", {"clusterIP": "10.0.0.1"}), "spec.clusterIP is '10.0.0.1'"),
        (_named("Service", {"type": "ExternalName"}), "spec.clusterIP is None"),
        (_named("Service", HEADLESS, ownerReferences=[OTHER]), r"is of Deployment x \(uid 1\)"),
        (_named("Service", HEADLESS, deletionTimestamp=NOW), "is being deleted"),
        (_named("StatefulSet", {**SELECTING, "replicas": 7}), ""),
        (_named("StatefulSet", {**SELECTING, "podManagementPolicy": "OrderedReady"}), "spec.podManagementPolicy is 'OrderedReady'"),
        (_named("StatefulSet", {**SELECTING, "serviceName": "a"}), "spec.serviceName is 'a'"),
        (_named("StatefulSet", {**SELECTING, "volumeClaimTemplates": [{}]}), "spec.volumeClaimTemplates is"),
    ],
)
def test_objects_without_an_owner_are_taken_over(found: Object, words: str) -> None:
    wanted = _named(found["kind"], {"clusterIP": "None"} if found["kind"] == "Service" else SELECTING)
    mesh = _mesh(uid="7")
    if not words:
        ownership.check(mesh, found, wanted)
        return
    with pytest.raises(ownership.NotOwnedError, match=words):
        ownership.check(mesh, found, wanted)


@pytest.mark.parametrize(
    ("stateful_set", "problem", "expected"),
    [
        (None, None, ("False", "Waiting", "0 of 2 pods are ready")),
        (_set(1, 2), None, ("False", "Waiting", "1 of 2 pods are ready")),
        (_set(2), None, ("True", "AllReady", "2 of 2 pods are ready")),
        (_set(2, 3), None, ("False", "Waiting", "2 of 2 pods are ready")),
        (_set(2, observed=0), None, ("False", "Waiting", "2 of 2 pods are ready")),
        (_set(2), Problem(NOT_OWNED, "another's"), ("False", "NotAdopted", "another's")),
    ],
)
def test_condition_follows_the_pods(stateful_set: Object | None, problem: Problem | None, expected: tuple[str, str, str]) -> None:
    status = mesh_status(_mesh(), stateful_set, problem, NOW)
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"], condition["message"]) == expected
    assert (condition["type"], condition["observedGeneration"], status["observedGeneration"]) == ("Ready", 3, 3)


def test_condition_time_is_the_time_of_its_change() -> None:
    mesh = _mesh()
    mesh["status"] = mesh_status(mesh, _set(1), None, BEFORE)
    mesh["status"]["conditions"].insert(0, {"type": "Other", "status": "True"})
    same, changed = mesh_status(mesh, _set(0), None, NOW), mesh_status(mesh, _set(2), None, NOW)
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


def test_silent_connections_do_not_keep_probes_away() -> None:
    port = endpoints.serve(("127.0.0.1", 0), {"/well": lambda: (True, "ok")})
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3 * endpoints.MOST_CONNECTIONS)]
        for one in silent:
            one.settimeout(20)
            one.sendall(b"GET /well HTTP/1.1\r\n")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/well", timeout=20) as answer:
            assert answer.read() == b"ok"
        # The oldest connection has been ended before its time was over.
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /well HTTP/1.1\r\n\r\n", 200),
        (b"HEAD /well HTTP/1.1\r\n\r\n", 200),
        (b"POST /well HTTP/1.1\r\n\r\n", 405),
        (b"\0\xff\r\n\r\n", 405),
        (b"GET /" + b"a" * 10_000, 431),
    ],
)
def test_any_request_gets_an_answer(sent: bytes, status: int) -> None:
    port = endpoints.serve(("127.0.0.1", 0), {"/well": lambda: (True, "ok")})
    with socket.create_connection(("127.0.0.1", port), 20) as made:
        made.sendall(sent)
        assert made.makefile("rb").readline().startswith(f"HTTP/1.1 {status} ".encode())


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
