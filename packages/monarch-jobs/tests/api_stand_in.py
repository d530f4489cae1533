"""A stand-in for an API server, for answers that a real one gives seldom: HTTPS on the loopback, whose answers the test scripts.

It is no Kubernetes: `tests/k8s` has the real one. Each request is kept in `requests`; `answer` gives what is sent back. A request to
upgrade to a websocket is relayed to a port of this machine, as an API server and a kubelet do it for a pod.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tools.k8s.certificates import Authority

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    subject: str


class Answer(NamedTuple):
    """`body` is JSON, or the parts of a stream, after which the connection is cut."""

    status: int
    body: Any
    headers: dict[str, str] = {}


def status(code: int, reason: str, message: str, **details: Any) -> Answer:
    return Answer(code, {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message, "details": details})


class ApiStandIn:
    """Runs while the `with` block does. `authority` has its certificate, and those of clients."""

    def __init__(self, folder: Path, answer: Callable[[Asked], Answer], *, hosts: Iterable[str] = ("IP:127.0.0.1",)) -> None:
        self.authority = Authority(folder / "pki")
        self.authority.issue("server", "server", hosts=tuple(hosts))
        self.answer = answer
        self.requests: list[Asked] = []
        # The port that replaces that of a pod; the error that the kubelet would report instead.
        self.pod_port, self.pod_error = 0, ""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.authority.certificate("server"), self.authority.key("server"))
        self._context.load_verify_locations(self.authority.certificate("ca"))
        self._context.verify_mode = ssl.CERT_OPTIONAL
        self.port = 0
        self.connections: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> ApiStandIn:
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Starts, or starts again at the same port."""
        stand_in = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 256

            def get_request(self) -> tuple[socket.socket, Any]:
                plain, place = super().get_request()
                # The handshake belongs to the thread of the connection.
                wrapped = stand_in._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                stand_in.connections.add(wrapped)
                return wrapped, place

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that disconnect, as tests make them do

        class Handler(_Handler):
            owner = stand_in

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True, name="api-stand-in").start()

    def down(self) -> None:
        """Ends, with all its connections cut."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        for one in list(self.connections):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()
        self.connections.clear()

    def kubeconfig(self, path: Path, user: dict[str, Any], **cluster: Any) -> Path:
        """A kubeconfig (JSON is YAML) with this server and this user; `cluster` changes its cluster, None takes a key out."""
        ca = base64.b64encode(self.authority.certificate("ca").read_bytes()).decode()
        entries = {"server": self.url, "certificate-authority-data": ca} | {k.replace("_", "-"): v for k, v in cluster.items()}
        config = {
            "clusters": [{"name": "stand-in", "cluster": {k: v for k, v in entries.items() if v is not None}}],
            "users": [{"name": "someone", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "stand-in", "user": "someone", "namespace": "there"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config))
        return path


class _Handler(BaseHTTPRequestHandler):
    owner: ApiStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _any(self) -> None:
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        certificate: Any = self.connection.getpeercert()  # type: ignore[attr-defined]
        subject = dict(pair for one in (certificate or {}).get("subject", ()) for pair in one).get("commonName", "")
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        headers = {key.lower(): value for key, value in self.headers.items()}
        asked = Asked(self.command, parts.path, query, headers, json.loads(data) if data else None, subject)
        self.owner.requests.append(asked)
        answer = self.owner.answer(asked)
        if answer.status == 101:
            self._forward(headers)
            return
        is_stream = not isinstance(answer.body, dict | bytes)
        body = b"" if is_stream else answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if is_stream:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if is_stream:
            for part in answer.body:
                self.wfile.write(part if isinstance(part, bytes) else json.dumps(part).encode() + b"\n")
                self.wfile.flush()
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

    def _forward(self, headers: dict[str, str]) -> None:
        accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + _MAGIC).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        self.send_header("Sec-WebSocket-Protocol", headers["sec-websocket-protocol"])
        self.end_headers()
        self.close_connection = True
        port = struct.pack("<H", self.owner.pod_port)
        lock = threading.Lock()
        self._message(lock, b"\0" + port)
        self._message(lock, b"\1" + port)
        if self.owner.pod_error:
            self._message(lock, b"\1" + self.owner.pod_error.encode())
            self._frame(lock, 8, b"\x03\xe8")
            return
        with socket.create_connection(("127.0.0.1", self.owner.pod_port)) as pod:
            thread = threading.Thread(target=self._from_pod, args=(pod, lock), daemon=True)
            thread.start()
            try:
                while (data := self._received()) is not None:
                    pod.sendall(data[1:])
            except OSError:
                pass
            try:
                pod.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            thread.join()

    def _from_pod(self, pod: socket.socket, lock: threading.Lock) -> None:
        try:
            while data := pod.recv(100_000):
                self._message(lock, b"\0" + data)
            self._frame(lock, 8, b"\x03\xe8")
        except OSError:
            pass

    def _message(self, lock: threading.Lock, data: bytes) -> None:
        """In two fragments, as proxies may make of it."""
        half = len(data) // 2
        self._frame(lock, 2, data[:half], is_last=False)
        self._frame(lock, 0, data[half:])

    def _frame(self, lock: threading.Lock, code: int, data: bytes, *, is_last: bool = True) -> None:
        size = len(data)
        head = bytes([(0x80 if is_last else 0) | code])
        head += bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size) if size < 1 << 16 else b"\x7f" + struct.pack(">Q", size)
        with lock:
            self.wfile.write(head + data)

    def _received(self) -> bytes | None:
        head = self.rfile.read(2)
        if len(head) < 2 or head[0] & 0x0F == 8:
            return None
        size = head[1] & 0x7F
        size = int.from_bytes(self.rfile.read({126: 2, 127: 8}[size]), "big") if size > 125 else size
        mask = self.rfile.read(4) * (size // 4 + 1)
        return (int.from_bytes(self.rfile.read(size), "big") ^ int.from_bytes(mask[:size], "big")).to_bytes(size, "big")
