"""The port-forward to pods of a real cluster: transfers, many connections, ends, a pod that dies, a server that restarts, kubectl."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from forward_client import connected, read

from monarch.job.kubernetes.access import forward as forward_module
from monarch.job.kubernetes.access import kept_forward
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.access.forward import Forward, UpgradeMissingError
from tools.k8s.build import KUBE
from tools.k8s.cluster import KubeCluster

PORT = 5000
ECHO = """
import socket, threading
listener = socket.create_server(("0.0.0.0", 5000), backlog=256)
print("listens", flush=True)
def serve(sock):
    with sock:
        while data := sock.recv(65536):
            sock.sendall(data)
            if data.endswith(b"bye"):
                return
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def api(cluster: KubeCluster, namespace: str) -> Iterator[Cluster]:
    made = Cluster(KubeConfig.from_path(str(cluster.kubeconfig)).load(), namespace, "kubernetes job j")
    yield made
    made.connection.close()


@pytest.fixture
def pod(cluster: KubeCluster, api: Cluster, pod_template: dict[str, Any]) -> str:
    spec = copy.deepcopy(pod_template["spec"])
    spec["restartPolicy"] = "Never"
    spec["containers"][0]["command"] = ["python", "-c", ECHO]
    api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "echo"}, "spec": spec})
    eventually("the pod listens", lambda: "listens" in api.pod_log("echo"))
    return "echo"


@pytest.fixture
def forward(api: Cluster, pod: str) -> Iterator[Forward]:
    made = Forward(api, pod, PORT)
    made.start()
    yield made
    made.close()


def test_large_transfer_goes_both_ways(forward: Forward) -> None:
    data = os.urandom(16 << 20)
    with connected(forward) as sock:
        sending = threading.Thread(target=sock.sendall, args=(data,))
        sending.start()
        assert read(sock, len(data)) == data
        sending.join()


def test_many_connections_at_once(forward: Forward) -> None:
    def exchange(number: int) -> bool:
        data = bytes([number]) * 10_000
        with connected(forward) as sock:
            sock.sendall(data)
            return read(sock, len(data)) == data

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(exchange, range(40)))


def test_ends_of_both_sides_are_passed_on(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(forward) as sock:
        sock.sendall(b"bye")
        assert read(sock, 3) == b"bye" and sock.recv(1) == b""
    monkeypatch.setattr(forward_module, "HALF_CLOSED_SECONDS", 2.0)
    with connected(forward) as sock:
        sock.sendall(b"question")
        sock.shutdown(socket.SHUT_WR)
        assert read(sock, 8) == b"question" and sock.recv(1) == b""


def test_port_without_a_listener_is_reset_and_reported(api: Cluster, pod: str) -> None:
    lines: list[str] = []
    forward = Forward(api, pod, 5001, report=lines.append)
    forward.start()
    try:
        with connected(forward) as sock, contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
        eventually("it is reported", lambda: any("5001" in line for line in lines))
    finally:
        forward.close()


def test_dead_pod_ends_its_connections_and_is_named(forward: Forward, api: Cluster, pod: str) -> None:
    with connected(forward) as sock:
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        api.delete("v1/Pod", pod, grace=0)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    eventually("the pod is gone", lambda: api.get("v1/Pod", pod) is None)
    with connected(forward) as sock, pytest.raises(ConnectionResetError):
        sock.recv(1)
    eventually("it is named", lambda: 'pods "echo" not found' in forward.status().get("error", ""))
    with pytest.raises(ApiError, match='pods "echo" not found'):
        Forward(api, pod, PORT).start()


def test_new_connections_wait_for_a_restarting_api_server(forward: Forward, cluster: KubeCluster) -> None:
    with connected(forward) as sock:
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        cluster.api_server_kill()
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    with connected(forward) as sock:
        sock.sendall(b"y")
        cluster.api_server_up()
        assert read(sock, 1) == b"y"


def given(cluster: KubeCluster, namespace: str, pod: str) -> dict[str, Any]:
    return {"kubeconfig": {"path": str(cluster.kubeconfig)}, "namespace": namespace, "pod": pod, "port": PORT, "title": "t"}


def test_kubectl_forwards_where_no_websocket_is_taken(
    cluster: KubeCluster, namespace: str, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Forward):
        def start(self) -> int:
            raise UpgradeMissingError("no websocket")

    monkeypatch.setattr(kept_forward, "Forward", Refusing)
    monkeypatch.setenv("PATH", f"{KUBE.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    kept = kept_forward.KeptForward()
    port = kept.start({}, given(cluster, namespace, pod))["port"]
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as sock:
            sock.sendall(b"by kubectl")
            assert read(sock, 10) == b"by kubectl"
        assert kept.status()["by"] == "kubectl"
    finally:
        kept.stop()
    found = subprocess.run(
        ["pgrep", "-f", f"port-forward pod/{pod} .*{namespace}|{namespace}.*port-forward"], capture_output=True, text=True
    )
    assert found.stdout == ""


def test_client_without_the_right_is_refused_first(cluster: KubeCluster, namespace: str, pod: str, tmp_path: Path) -> None:
    config = KubeConfig.from_path(str(cluster.user_kubeconfig(tmp_path / "eve", "eve")))
    with pytest.raises(ApiError, match=rf"no right to \w+ pods/portforward in namespace '{namespace}'") as raised:
        Forward(Cluster(config.load(), namespace), pod, PORT).start()
    assert (raised.value.status, raised.value.reason) == (403, "Forbidden")
