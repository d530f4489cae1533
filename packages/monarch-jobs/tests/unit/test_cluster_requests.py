"""Requests to an API server that answers as one does that is busy, restarted, of another opinion, or no API server."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from api_stand_in import Answer, ApiStandIn, Asked, status

from monarch.job import SubmitError
from monarch.job._machine.commands import time_limit
from monarch.job.kubernetes.access import client as client_module
from monarch.job.kubernetes.access import connection as connection_module
from monarch.job.kubernetes.access import watch as watch_module
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.access.connection import ApiConnection, Endpoint
from monarch.job.kubernetes.access.failures import ApiError, UnreachableError
from monarch.job.kubernetes.access.identity import Identity
from monarch.job.kubernetes.access.kinds import parse
from monarch.job.kubernetes.pods import fault_report
from monarch.job.kubernetes.pods.diagnosis import Fault

TITLE = "kubernetes job j"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "there"}}


def pod(name: str, version: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "resourceVersion": str(version)}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiStandIn]:
    with ApiStandIn(tmp_path, lambda asked: Answer(200, POD)) as made:
        yield made


@pytest.fixture
def cluster(server: ApiStandIn, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(KubeConfig.from_path(str(server.kubeconfig(tmp_path / "config", {"token": "t"}))).load(), "there", TITLE)
    with contextlib.closing(made.connection):
        yield made


def in_turn(*answers: Answer) -> Callable[[Asked], Answer]:
    left = iter(answers)
    return lambda asked: next(left)


def refusal(cluster: Cluster, server: ApiStandIn, answer: Answer, act: Callable[[], object]) -> ApiError:
    server.answer = lambda asked: answer if asked.method != "GET" or answer.status != 409 else Answer(200, POD)
    with pytest.raises(ApiError) as raised:
        act()
    assert isinstance(raised.value, SubmitError) and str(raised.value).startswith(f"{TITLE}: ")
    return raised.value


def test_apply_is_strict_and_owned(cluster: Cluster, server: ApiStandIn) -> None:
    assert cluster.apply(POD) == POD
    asked = server.requests[0]
    assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/there/pods/p")
    assert asked.query == {"fieldManager": "monarch", "fieldValidation": "Strict", "force": "false"}
    assert asked.headers["content-type"] == "application/apply-patch+yaml" and asked.body == POD


NETWORK, MESH, GATEWAY = "networking.k8s.io", "monarch.pytorch.org", "gateway.networking.k8s.io"


@pytest.mark.parametrize(
    ("kind", "path", "resource"),
    [
        ("v1/Pod", "/api/v1/namespaces/n/pods/x", "pods"),
        ("v1/Node", "/api/v1/nodes/x", "nodes"),
        ("v1/Endpoints", "/api/v1/namespaces/n/endpoints/x", "endpoints"),
        (f"{NETWORK}/v1/NetworkPolicy", f"/apis/{NETWORK}/v1/namespaces/n/networkpolicies/x", f"networkpolicies.{NETWORK}"),
        (f"{MESH}/v1alpha1/MonarchMesh", f"/apis/{MESH}/v1alpha1/namespaces/n/monarchmeshes/x", f"monarchmeshes.{MESH}"),
        (f"{GATEWAY}/v1/Gateway", f"/apis/{GATEWAY}/v1/namespaces/n/gateways/x", f"gateways.{GATEWAY}"),
    ],
)
def test_kinds_are_paths_and_resources(kind: str, path: str, resource: str) -> None:
    known = parse(kind)
    assert (known.path("n" if known.is_namespaced else "", "x"), known.resource) == (path, resource)


@pytest.mark.parametrize("kind", ["Pod", "pods", "v1/pods", "a/b/c/D", ""])
def test_kind_that_is_none_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="a kind is VERSION/Kind"):
        parse(kind)


@pytest.mark.parametrize("name", ["monarch-client-group-Platform Team", "ada?x", "m\u00fcller#1", "system:node", "a/b%"])
def test_names_are_escaped_in_the_path(cluster: Cluster, server: ApiStandIn, name: str) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name, "namespace": "team"}}
    server.answer = lambda asked: Answer(200, role)
    assert cluster.apply(role) == role
    path = server.requests[0].path
    assert path.count("/") == 7 and unquote(path) == f"/apis/rbac.authorization.k8s.io/v1/namespaces/team/roles/{name}"
    assert server.requests[0].query["fieldManager"] == "monarch"


def test_missing_right_names_verb_resource_and_the_remedy(cluster: Cluster, server: ApiStandIn) -> None:
    words = 'jobs.batch "p" is forbidden: User "u" cannot patch resource "jobs" in API group "batch" in the namespace "there"'
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "p"}}
    error = refusal(cluster, server, status(403, "Forbidden", words), lambda: cluster.apply(job))
    assert str(error) == (
        f"{TITLE}: no right to patch jobs.batch in namespace 'there'\n  {words}\n"
        "hint: `monarch k8s rbac --namespace there` grants what a client needs, "
        "`monarch k8s install --operator` what the operator needs"
    )


def test_quota_and_admission_are_no_missing_rights(cluster: Cluster, server: ApiStandIn) -> None:
    for words in ('pods "p" is forbidden: exceeded quota: q, requested: pods=1', 'admission webhook "w.example" denied the request: no'):
        error = refusal(cluster, server, status(403, "Forbidden", words), lambda: cluster.create(POD))
        assert words in str(error) and "rbac" not in str(error)


def test_conflict_names_manager_fields_and_job(cluster: Cluster, server: ApiStandIn) -> None:
    causes = [{"reason": "FieldManagerConflict", "message": 'conflict with "kubectl" using v1', "field": ".spec.replicas"}]
    answer = status(409, "Conflict", "Apply failed with 1 conflict", causes=causes)
    owned = {**POD, "metadata": {"labels": {"monarch.pytorch.org/job": "job-7"}}}
    server.answer = lambda asked: answer if asked.method == "PATCH" else Answer(200, owned)
    with pytest.raises(ApiError, match=r"pods 'p' in namespace 'there' is managed by 'kubectl' for the job job-7\n  .spec.replicas\n"):
        cluster.apply(POD)


def test_conflict_of_a_definition_never_suggests_deletion(cluster: Cluster, server: ApiStandIn) -> None:
    causes = [
        {"reason": "FieldManagerConflict", "message": 'conflict with "helm" using apiextensions.k8s.io/v1', "field": ".spec.versions"}
    ]
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "m.example"}}
    error = refusal(cluster, server, status(409, "Conflict", "1 conflict", causes=causes), lambda: cluster.apply(definition))
    assert str(error) == (
        f"{TITLE}: customresourcedefinitions.apiextensions.k8s.io 'm.example' is managed by 'helm'\n  .spec.versions\n"
        "hint: leave it with 'helm' (`helm upgrade` for a chart), or take it over: "
        "`monarch k8s install --print | kubectl apply --server-side --force-conflicts --field-manager=monarch -f -`"
    )
    assert "deletion" in str(refusal(cluster, server, status(409, "Conflict", "1 conflict", causes=causes), lambda: cluster.apply(POD)))


def test_wrong_fields_are_listed(cluster: Cluster, server: ApiStandIn) -> None:
    causes = [{"field": "spec.containers[0].image", "message": "Required value"}, {"field": "spec.x", "message": "Invalid value"}]
    error = refusal(cluster, server, status(422, "Invalid", "...", name="p", causes=causes), lambda: cluster.apply(POD))
    assert "pods 'p' in namespace 'there' is not valid\n  spec.containers[0].image: Required value\n  spec.x: Invalid value" in str(error)


def test_unknown_kind_differs_from_unknown_namespace(cluster: Cluster, server: ApiStandIn) -> None:
    mesh = {"apiVersion": "monarch.pytorch.org/v1alpha1", "kind": "MonarchMesh", "metadata": {"name": "m"}}
    missing = status(404, "NotFound", "the server could not find the requested resource")
    error = refusal(cluster, server, missing, lambda: cluster.apply(mesh))
    assert "the cluster has no monarchmeshes.monarch.pytorch.org" in str(error) and "monarch k8s install" in str(error)
    gone = status(404, "NotFound", 'namespaces "there" not found', name="there", kind="namespaces")
    assert "there is no namespace 'there'" in str(refusal(cluster, server, gone, lambda: cluster.apply(POD)))
    assert cluster.get("v1/Pod", "p") is None and cluster.delete("v1/Pod", "p") is False


def test_answer_of_a_proxy_is_shown(cluster: Cluster, server: ApiStandIn) -> None:
    error = refusal(cluster, server, Answer(418, b"<html>I am a proxy</html>"), lambda: cluster.apply(POD))
    assert "I am a proxy" in str(error) and error.status == 418
    assert "no JSON object" in str(refusal(cluster, server, Answer(200, b"hello"), lambda: cluster.apply(POD)))


def test_busy_server_is_retried_except_for_creations(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = in_turn(Answer(503, b""), Answer(429, b""), Answer(200, POD))
    assert cluster.apply(POD) == POD and len(server.requests) == 3
    server.answer = lambda asked: Answer(503, b"later")
    with pytest.raises(ApiError, match="later"):
        cluster.create(POD)
    assert len(server.requests) == 4


def test_restarted_server_is_waited_for(cluster: Cluster, server: ApiStandIn) -> None:
    assert cluster.get("v1/Pod", "p") == POD
    server.down()
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(cluster.get("v1/Pod", "p")))
    asking.start()
    server.up()
    asking.join()
    assert found == [POD]


def test_unreachable_server_is_an_error_after_its_timeout(cluster: Cluster, server: ApiStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "RESTART_SECONDS", 0.3)
    assert cluster.get("v1/Pod", "p") == POD
    server.down()
    try:
        with pytest.raises(UnreachableError, match="cannot be reached\n  Connection refused"):
            cluster.get("v1/Pod", "p")
    finally:
        server.up()


def test_unknown_fields_are_refused_at_once(cluster: Cluster, server: ApiStandIn) -> None:
    """Only the text of the answer is different from that of a failed database, after which the request is sent again."""
    one = "failed to create typed patch object (there/p; /v1, Kind=Pod): "
    first, second = ".spec.nodeSelectr", '.spec.containers[name="w"].imag'
    several = f"{one}errors:\n  {first}: field not declared in schema\n  {second}: field not declared in schema"
    for text, fields in ((f"{one}{first}: field not declared in schema", [first]), (several, [first, second])):
        server.requests.clear()
        error = refusal(cluster, server, status(500, "", text), lambda: cluster.apply(POD))
        assert len(server.requests) == 1 and error.status == 422
        assert [line.strip() for line in str(error).splitlines()[1:]] == [f"{field}: unknown field" for field in fields]


def test_failed_database_is_asked_again(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = in_turn(status(500, "", "etcdserver: request timed out"), Answer(200, POD))
    assert cluster.apply(POD) == POD


def test_cut_answer_is_repeated(cluster: Cluster, server: ApiStandIn) -> None:
    assert cluster.get("v1/Pod", "p") == POD
    server.answer = in_turn(Answer(200, iter([b'{"kind": ']), {"Content-Length": "100"}), Answer(200, POD))
    assert cluster.get("v1/Pod", "p") == POD


def test_time_limit_bounds_requests(cluster: Cluster, server: ApiStandIn) -> None:
    ended = threading.Event()

    def slow(asked: Asked) -> Answer:
        ended.wait(20)
        return Answer(200, POD)

    server.answer = slow
    try:
        with time_limit(0.2), pytest.raises(UnreachableError, match="no answer within 0 s"):
            cluster.get("v1/Pod", "p")
        with time_limit(0), pytest.raises(UnreachableError):
            cluster.get("v1/Pod", "p")
    finally:
        ended.set()


class SlowLogin(Identity):
    """Credentials that take longer than a request may; `clock` is that of the requests, and goes on with nothing else."""

    def __init__(self) -> None:
        self.now, self.logins, self.is_valid = 1000.0, 0, False

    def headers(self) -> dict[str, str]:
        if not self.is_valid:
            self.now += 2 * connection_module.REQUEST_SECONDS
            self.logins += 1
            self.is_valid = True
        return {"Authorization": f"Bearer {self.logins}"}

    def refresh(self) -> bool:
        self.is_valid = False
        return True


def test_login_does_not_count_as_request_time(server: ApiStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    login = SlowLogin()
    monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=lambda: login.now, sleep=lambda seconds: None))
    authority = server.authority.certificate("ca").read_bytes()
    with contextlib.closing(ApiConnection(Endpoint(server.url, "file", authority=authority, proxy=""), login)) as connection:
        assert connection.request("GET", "/version").status == 200
        # The server has forgotten the first login, and is busy after the second.
        server.answer = in_turn(status(401, "Unauthorized", "Unauthorized"), Answer(503, b""), Answer(200, POD))
        assert connection.request("GET", "/version").status == 200
        login.refresh()
        server.answer = lambda asked: Answer(200, [b"one\n"])
        with connection.stream("GET", "/log") as incoming:
            assert incoming.answer.read() == b"one\n"
    assert login.logins == 3


def test_connections_are_used_again(cluster: Cluster, server: ApiStandIn) -> None:
    for _ in range(5):
        cluster.get("v1/Pod", "p")
    assert len(server.connections) == 1


def test_long_lists_are_paged_and_restarted_on_expiry(cluster: Cluster, server: ApiStandIn) -> None:
    page = {"kind": "PodList", "items": [pod("a", 1)], "metadata": {"resourceVersion": "7", "continue": "more"}}
    last = {"kind": "PodList", "items": [pod("b", 2)], "metadata": {"resourceVersion": "7"}}
    server.answer = in_turn(Answer(200, page), status(410, "Expired", "too old"), Answer(200, page), Answer(200, last))
    items, version = cluster.list("v1/Pod", "a=b")
    assert ([one["metadata"]["name"] for one in items], version) == (["a", "b"], "7")
    assert [asked.query.get("continue") for asked in server.requests] == [None, "more", None, "more"]
    assert server.requests[0].query["labelSelector"] == "a=b" and items[0]["kind"] == "Pod"


def listed(version: int, *pods: dict[str, Any]) -> Answer:
    return Answer(200, {"kind": "PodList", "items": list(pods), "metadata": {"resourceVersion": str(version)}})


def event(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": obj}


def test_watch_resumes_after_cuts_and_expiries(cluster: Cluster, server: ApiStandIn) -> None:
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "15"}}
    server.answer = in_turn(
        listed(10, pod("a", 9)),
        # The answer is cut in the middle of a line.
        Answer(200, [event("ADDED", pod("b", 11)), b'{"type": "ADDED", "obj']),
        Answer(200, [event("MODIFIED", pod("b", 12)), event("BOOKMARK", bookmark)]),
        Answer(503, b"starting"),
        Answer(200, [event("ERROR", expired)]),
        listed(30, pod("c", 29)),
        status(410, "Expired", "too old resource version"),
        listed(40),
        Answer(200, [event("DELETED", pod("c", 41))]),
    )
    seen = [
        (change.type, change.object.get("metadata", {}).get("name"), [one["metadata"]["name"] for one in change.items])
        for change in itertools.islice(cluster.watch("v1/Pod", "a=b"), 6)
    ]
    assert seen == [
        ("LISTED", None, ["a"]),
        ("ADDED", "b", []),
        ("MODIFIED", "b", []),
        ("LISTED", None, ["c"]),
        ("LISTED", None, []),
        ("DELETED", "c", []),
    ]
    versions = [asked.query["resourceVersion"] for asked in server.requests if "watch" in asked.query]
    assert versions == ["10", "11", "15", "15", "30", "40"]


def test_watch_ends_with_its_time(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: Answer(200, []) if "watch" in asked.query else listed(1)
    assert [change.type for change in cluster.watch("v1/Pod", timeout=0.3)] == ["LISTED"]


def test_watch_without_the_right_is_an_error(cluster: Cluster, server: ApiStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    words = 'pods is forbidden: User "u" cannot {} resource "pods" in API group "" in the namespace "there"'
    server.answer = lambda asked: status(403, "Forbidden", words.format("list"))
    with pytest.raises(ApiError, match="no right to list pods in namespace 'there'"):
        next(iter(cluster.watch("v1/Pod")))
    monkeypatch.setattr(watch_module, "_DENIAL_SECONDS", 0.0)
    server.answer = lambda asked: status(403, "Forbidden", words.format("watch")) if "watch" in asked.query else listed(1)
    with pytest.raises(ApiError, match="no right to watch pods in namespace 'there'"):
        list(cluster.watch("v1/Pod"))


def test_log_of_a_waiting_container_is_empty(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: status(400, "BadRequest", "container is waiting to start")
    assert cluster.pod_log("p", "worker") == ""
    server.answer = lambda asked: Answer(200, b"one\ntwo\n")
    assert cluster.pod_log("p", "worker", 2, previous=True) == "one\ntwo\n"
    assert server.requests[-1].query == {"container": "worker", "tailLines": "2", "previous": "true"}


def test_report_does_not_wait_for_a_lost_node(cluster: Cluster, server: ApiStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("/log"):
            released.wait()
        return Answer(200, b'{"items": []}')

    monkeypatch.setattr(fault_report, "_LOG_SECONDS", 0.1)
    server.answer = answer
    try:
        lines = fault_report.fault_report(cluster, Fault("p", "worker", "", "the worker does not answer", True)).splitlines()
    finally:
        released.set()
    assert lines == ["the worker does not answer", "no output: the node of the pod does not answer within 0.1 s"]


def test_end_of_a_long_log_is_kept(cluster: Cluster, server: ApiStandIn) -> None:
    # The text exceeds 1 MiB, and ends with the traceback.
    text = "".join(f"{number:06d} {'x' * 200}\n" for number in range(10_000)) + "ValueError: mine\n"
    server.answer = lambda asked: Answer(200, text.encode())
    assert cluster.pod_log("p", "worker", 10_001) == text
    assert "limitBytes" not in server.requests[-1].query


def test_endless_log_is_kept_from_a_lines_start(cluster: Cluster, server: ApiStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_MOST_LOG", 25)
    server.answer = lambda asked: Answer(200, [f"line {number:04d}\n".encode() for number in range(1000)])
    assert cluster.pod_log("p") == "line 0998\nline 0999\n"
    server.answer = lambda asked: Answer(200, [b"x" * 40])
    assert cluster.pod_log("p") == "x" * 25


def test_partial_character_at_a_logs_end_waits(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: Answer(200, b"caf\xc3")
    assert cluster.pod_log("p") == "caf"
    server.answer = lambda asked: Answer(200, b"caf\xc3\xa9 \xff\n")
    assert cluster.pod_log("p") == "caf\u00e9 \ufffd\n"


def test_log_is_followed_to_its_end(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: Answer(200, [b"one\n", b"two\n"])
    assert b"".join(cluster.follow_log("p")) == b"one\ntwo\n"


def test_rights_are_asked_by_group_and_subresource(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: Answer(201, {"kind": "SelfSubjectAccessReview", "status": {"allowed": True}})
    assert cluster.can_i("create", "statefulsets.apps/scale")
    assert server.requests[0].body["spec"]["resourceAttributes"] == {
        "verb": "create",
        "group": "apps",
        "resource": "statefulsets",
        "subresource": "scale",
        "namespace": "there",
    }


def test_version_of_a_provider_is_read(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: Answer(200, {"major": "1", "minor": "28+"})
    assert cluster.server_version() == (1, 28)
