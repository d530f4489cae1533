"""An operator to which the API server refuses one right: the log names the verb and the resource. The server is a stand-in."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_stand_in import Answer, ApiStandIn, Asked, status

from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.access.connection import ApiConnection
from monarch.job.kubernetes.manifests import names, rbac
from monarch.job.kubernetes.operator.controller import Controller
from monarch.job.kubernetes.operator.leadership import Leadership
from monarch.job.kubernetes.operator.metrics import Metrics

Right = tuple[str, str, str]  # verb, group, resource
Object = dict[str, Any]

NAMESPACE = "there"


def rights(rules: list[Object]) -> list[Right]:
    return [(verb, group, name) for rule in rules for group in rule["apiGroups"] for name in rule["resources"] for verb in rule["verbs"]]


class Server:
    """Answers the requests of an operator for one mesh, but for those that need the right `missing`."""

    def __init__(self, missing: Right, mesh: Object) -> None:
        self.missing = missing
        self.mesh = mesh

    def answer(self, asked: Asked) -> Answer:
        group, resource, name = place(asked.path)
        verb = {"POST": "create", "PATCH": "patch", "PUT": "update"}.get(asked.method) or (
            "get" if name else "watch" if "watch" in asked.query else "list"
        )
        # An apply of a new object needs both rights.
        is_new = verb == "patch" and resource in ("services", "statefulsets")
        denied = next((one for one in (verb, *(["create"] if is_new else [])) if (one, group, resource) == self.missing), None)
        if denied is not None:
            words = f'{resource} is forbidden: "u" cannot {denied} resource "{resource}" in API group "{group}" in the namespace "there"'
            return status(403, "Forbidden", words)
        if verb == "watch":
            return Answer(200, [])
        if verb == "list":
            items = [self.mesh] if resource == "monarchmeshes" else []
            return Answer(200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
        if verb == "get" and resource == "monarchmeshes":
            return Answer(200, self.mesh)
        if verb == "get":
            return status(404, "NotFound", "not found", name=name, kind=resource)
        made = asked.body | {"metadata": {"uid": "8", "generation": 1, "resourceVersion": "1"} | asked.body.get("metadata", {})}
        return Answer(200, made)


def place(path: str) -> Right:
    """Group, resource with subresource, and name of a request's path."""
    words = path.strip("/").split("/")
    group, words = ("", words[2:]) if words[0] == "api" else (words[1], words[3:])
    kind, name, subresource = [*words[2:], "", ""][:3]
    return group, f"{kind}/{subresource}" if subresource else kind, name


@pytest.fixture
def ended_watches() -> Iterator[None]:
    """The watches of a stopped operator end with the server's last answer."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("watch "):
            thread.join(20)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def stand_in(tmp_path: Path, ended_watches: None) -> Iterator[ApiStandIn]:
    with ApiStandIn(tmp_path, lambda asked: status(500, "Internal", "not set up")) as made:
        yield made


@pytest.fixture
def connection(stand_in: ApiStandIn, tmp_path: Path) -> Iterator[ApiConnection]:
    made = KubeConfig.from_path(str(stand_in.kubeconfig(tmp_path / "config", {"token": "t"}))).load()
    with contextlib.closing(made):
        yield made


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[tuple[logging.Logger, queue.SimpleQueue[str]]]:
    """A log, and what is written to it."""
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    handler = logging.Handler()
    handler.emit = lambda record: found.put(record.getMessage())
    log = logging.Logger(request.node.name)
    log.addHandler(handler)
    yield log, found


def await_right(found: queue.SimpleQueue[str], missing: Right) -> str:
    """The first line of the log that names the right."""
    verb, group, resource = missing
    base, slash, part = resource.partition("/")
    named = f"no right to {verb} {f'{base}.{group}' if group else base}{slash}{part} in namespace 'there'"
    return next(line for line in iter(found.get, None) if named in line)


@pytest.mark.parametrize("missing", rights(rbac.rules("operator")), ids="-".join)
def test_operator_names_the_missing_right(
    stand_in: ApiStandIn, connection: ApiConnection, lines: Any, missing: Right, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that has just started refuses for a while: the operator would be patient.
    monkeypatch.setattr("monarch.job.kubernetes.access.watch._DENIAL_SECONDS", 0.0)
    # An event is created about a mesh that cannot be served.
    template = {"spec": {"containers": [{"name": "worker", "image": "a"}]}} if missing[2] != "events" else {"spec": 5}
    mesh = {
        "apiVersion": f"{names.GROUP}/v1alpha1",
        "kind": "MonarchMesh",
        "metadata": {"name": "workers", "namespace": NAMESPACE, "uid": "7", "generation": 1, "resourceVersion": "1"},
        "spec": {"replicas": 1, "port": 26600, "podTemplate": template},
    }
    stand_in.answer = Server(missing, mesh).answer
    log, found = lines
    controller = Controller(connection, NAMESPACE, lambda: True, Metrics(), log)
    controller.start()
    try:
        assert "`monarch k8s install --operator` what the operator needs" in await_right(found, missing)
    finally:
        controller.stop()


@pytest.mark.parametrize("missing", rights(rbac.leader_rules()), ids="-".join)
def test_leadership_names_the_missing_right(stand_in: ApiStandIn, connection: ApiConnection, lines: Any, missing: Right) -> None:
    server = Server(missing, {})
    held = {"holderIdentity": "", "leaseDurationSeconds": 1}
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "monarch-operator", "namespace": NAMESPACE, "resourceVersion": "1"},
        "spec": held,
    }

    def answer(asked: Asked) -> Answer:
        is_there = missing[0] == "update" and asked.method == "GET"
        return Answer(200, lease) if is_there else server.answer(asked)

    stand_in.answer = answer
    log, found = lines
    stop = threading.Event()
    thread = threading.Thread(target=Leadership(Cluster(connection, NAMESPACE), "me", log).acquire, args=(stop,))
    thread.start()
    try:
        assert "`monarch k8s install --operator` what the operator needs" in await_right(found, missing)
    finally:
        stop.set()
        thread.join()
