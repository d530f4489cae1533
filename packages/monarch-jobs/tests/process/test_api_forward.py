"""The port-forward over a websocket, through a stand-in of the API server: connections, back-pressure, ends, restarts."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import socketserver
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from api_stand_in import Answer, ApiStandIn, status
from eventually import eventually
from forward_client import connected, read

from monarch.job import JobError
from monarch.job.kubernetes.access import forward as forward_module
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.access.forward import Forward, UpgradeMissingError
from monarch.job.kubernetes.access.kept_forward import KeptForward


class Pod(socketserver.ThreadingTCPServer):
    """What listens in the pod: sends back what it receives; `paused` keeps it from reading."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.ended = 0
        super().__init__(("127.0.0.1", 0), Echo)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Echo(socketserver.BaseRequestHandler):
    server: Pod

    def handle(self) -> None:
        is_used = False
        with contextlib.suppress(OSError):
            while self.server.free.wait(20) and (data := self.request.recv(65536)):
                is_used = True
                self.request.sendall(data)
                if data.endswith(b"bye"):
                    break
        # The connection that `start` makes sends nothing.
        self.server.ended += is_used


@pytest.fixture
def pod() -> Iterator[Pod]:
    with Pod() as made:
        yield made
        made.free.set()
        made.shutdown()


@pytest.fixture
def server(tmp_path: Path, pod: Pod) -> Iterator[ApiStandIn]:
    with ApiStandIn(tmp_path, lambda asked: Answer(101, b"")) as made:
        made.pod_port = pod.server_address[1]
        yield made


@pytest.fixture
def cluster(server: ApiStandIn, tmp_path: Path) -> Cluster:
    config = KubeConfig.from_path(str(server.kubeconfig(tmp_path / "config", {"token": "t"})))
    return Cluster(config.load(), "there", "kubernetes job j")


@pytest.fixture
def forward(cluster: Cluster) -> Iterator[Forward]:
    made = Forward(cluster, "pod-0", 26600)
    made.start()
    yield made
    made.close()


def test_large_transfers_go_both_ways_at_once(forward: Forward, server: ApiStandIn) -> None:
    data = os.urandom(8 << 20)
    with connected(forward) as sock:
        sending = threading.Thread(target=sock.sendall, args=(data,))
        sending.start()
        assert read(sock, len(data)) == data
        sending.join()
    asked = server.requests[-1]
    assert (asked.path, asked.query) == ("/api/v1/namespaces/there/pods/pod-0/portforward", {"ports": "26600"})
    assert asked.headers["sec-websocket-protocol"] == "v4.channel.k8s.io" and asked.headers["authorization"] == "Bearer t"


def test_many_connections_do_not_mix(forward: Forward) -> None:
    def exchange(number: int) -> bool:
        data = bytes([number]) * 50_000
        with connected(forward) as sock:
            sock.sendall(data)
            return read(sock, len(data)) == data

    with ThreadPoolExecutor(40) as pool:
        assert all(pool.map(exchange, range(120)))
    eventually("all connections are over", lambda: forward.status()["open"] == 0)
    assert forward.status()["total"] == 120 and not forward.status()["failed"]


def test_pod_that_does_not_read_stops_the_writer(forward: Forward, pod: Pod) -> None:
    pod.free.clear()
    with connected(forward) as sock:
        sock.setblocking(False)
        sent = 0
        data = bytes(1 << 16)

        def is_full() -> bool:
            nonlocal sent
            with contextlib.suppress(BlockingIOError):
                while sent < 256 << 20:
                    sent += sock.send(data)
                return True
            return False

        # The buffers are full three times in a row: none on the route takes more.
        sizes: list[int] = []

        def is_still() -> bool:
            is_full()
            sizes.append(sent)
            return len(sizes) > 3 and len(set(sizes[-4:])) == 1

        eventually("the writer waits", is_still)
        assert sent < 64 << 20
        # Other connections are not delayed by it.
        pod.free.set()
        sock.settimeout(20)
        assert len(read(sock, sent)) == sent


def test_end_of_the_pod_follows_its_last_byte(forward: Forward) -> None:
    with connected(forward) as sock:
        sock.sendall(b"x" * 100_000 + b"bye")
        assert read(sock, 100_003).endswith(b"bye")
        assert sock.recv(1) == b""


def test_program_that_has_ended_sending_still_receives(forward: Forward, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_module, "HALF_CLOSED_SECONDS", 1.0)
    pod.free.clear()
    with connected(forward) as sock:
        sock.sendall(b"question")
        sock.shutdown(socket.SHUT_WR)
        pod.free.set()
        assert read(sock, 8) == b"question"
        # The pod sees the end, too.
        assert sock.recv(1) == b""
    eventually("the pod sees the end", lambda: pod.ended == 1)


def test_reset_of_the_program_ends_the_pods_connection(forward: Forward, pod: Pod) -> None:
    sock = connected(forward)
    sock.sendall(b"x")
    assert read(sock, 1) == b"x"
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    eventually("both ends are closed", lambda: pod.ended == 1 and forward.status()["open"] == 0)


def test_error_of_the_kubelet_resets_the_connection(cluster: Cluster, server: ApiStandIn) -> None:
    lines: list[str] = []
    forward = Forward(cluster, "pod-0", 26600, report=lines.append)
    forward.start()
    try:
        server.pod_error = "an error occurred forwarding 26600: connection refused"
        with connected(forward) as sock, pytest.raises(ConnectionResetError):
            sock.recv(1)
        eventually("the error is reported", lambda: bool(lines))
        assert lines == ["connection to port 26600 of pod-0: pod-0: an error occurred forwarding 26600: connection refused"]
        server.pod_error = ""
        with connected(forward) as sock:
            sock.sendall(b"again")
            assert read(sock, 5) == b"again"
    finally:
        forward.close()


def test_restarted_server_cuts_connections_and_takes_new_ones(forward: Forward, server: ApiStandIn) -> None:
    with connected(forward) as sock:
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        server.down()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    # This one waits for the server.
    with connected(forward) as sock:
        sock.sendall(b"y")
        server.up()
        assert read(sock, 1) == b"y"


def test_pod_that_is_gone_is_named(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: status(404, "NotFound", 'pods "pod-0" not found', name="pod-0", kind="pods")
    with pytest.raises(ApiError, match='pods "pod-0" not found'):
        Forward(cluster, "pod-0", 26600).start()


def test_missing_right_to_forward_is_named(cluster: Cluster, server: ApiStandIn) -> None:
    words = 'pods "pod-0" is forbidden: User "u" cannot create resource "pods/portforward" in API group "" in the namespace "there"'
    server.answer = lambda asked: status(403, "Forbidden", words)
    with pytest.raises(ApiError, match="no right to create pods/portforward in namespace 'there'"):
        Forward(cluster, "pod-0", 26600).start()


def test_server_without_websockets_is_recognised(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: status(400, "BadRequest", "Upgrade request required")
    with pytest.raises(UpgradeMissingError, match="takes no websocket"):
        Forward(cluster, "pod-0", 26600).start()


def test_redirection_of_a_forward_is_an_error(cluster: Cluster, server: ApiStandIn) -> None:
    server.answer = lambda asked: Answer(302, {}, {"Location": f"{server.url}/login?token=secret"})
    with pytest.raises(ApiError, match="refused to create pods/portforward") as raised:
        Forward(cluster, "pod-0", 26600).start()
    assert raised.value.status == 302 and "secret" not in str(raised.value)


KUBECTL = """#!/bin/sh
# Stands for kubectl: says its arguments, and listens as it would.
echo "$@" > {folder}/arguments
echo $$ > {folder}/pid
exec {python} -c '
import socket, sys
made = socket.create_server(("127.0.0.1", 0))
print(f"Forwarding from 127.0.0.1:{{made.getsockname()[1]}} -> 26600", flush=True)
while True:
    sock, _ = made.accept()
    sock.sendall(sock.recv(100))
'
"""


def test_kubectl_forwards_where_the_upgrade_is_refused(server: ApiStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kubectl").write_text(KUBECTL.format(folder=folder, python=sys.executable))
    (folder / "kubectl").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert shutil.which("kubectl") == str(folder / "kubectl")
    server.answer = lambda asked: status(400, "BadRequest", "Upgrade request required")
    config = server.kubeconfig(tmp_path / "config", {"token": "t"})
    given: dict[str, Any] = {"kubeconfig": {"path": str(config)}, "namespace": "there", "pod": "pod-0", "port": 26600, "title": "t"}
    kept = KeptForward()
    port = kept.start({}, given)["port"]
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    assert kept.status()["by"] == "kubectl" and kept.busy()
    words = (folder / "arguments").read_text().split()
    assert words[:4] == ["--kubeconfig", str(config), "--namespace", "there"] and "pod/pod-0" in words
    kept.stop()
    pid = int((folder / "pid").read_text())
    eventually("kubectl has ended", lambda: not Path(f"/proc/{pid}").exists())


def test_kept_forward_has_the_same_port_after_restart(server: ApiStandIn, tmp_path: Path) -> None:
    config = server.kubeconfig(tmp_path / "config", {"token": "t"})
    given: dict[str, Any] = {"kubeconfig": {"path": str(config)}, "namespace": "there", "pod": "pod-0", "port": 26600, "title": "t"}
    ports: list[int] = []
    for _ in range(2):
        kept = KeptForward()
        ports += [kept.start({}, given)["port"], kept.start({}, given)["port"]]
        assert not kept.busy()
        with socket.create_connection(("127.0.0.1", ports[-1]), 10) as sock:
            eventually("it is in use", kept.busy)
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"
        kept.stop()
    assert len(set(ports)) == 1


def test_forward_by_a_scripts_configuration_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="which is never written anywhere"):
        KeptForward().start({}, {"kubeconfig": {"given": True}, "namespace": "n", "pod": "p", "port": 1, "title": "t"})


def test_answers_of_proxies_are_no_refusals() -> None:
    assert forward_module.is_missing(405, b"") and not forward_module.is_missing(403, b"")
    assert not forward_module.is_missing(400, b'{"kind": "Status", "message": "pod is not running"}')
