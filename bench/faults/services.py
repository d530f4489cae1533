"""Programs whose actors need a port, a name, a certificate or a token that they do not get."""

from __future__ import annotations

import http.server
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

import monarch.actor
from bench.faults.machine import mounted
from bench.faults.program import Fault, rest
from monarch.actor import Actor, SupervisionError, current_rank, endpoint, this_host


class Trainer(Actor):
    """Serves its metrics, and fetches its data from a store."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def serve(self, rank: int, port: int) -> None:
        if current_rank().rank == rank:
            self.server = socket.create_server(("127.0.0.1", port))

    @endpoint
    def fetch(self, rank: int, url: str, authority: str = "") -> None:
        if current_rank().rank == rank:
            context = ssl.create_default_context(cafile=authority) if authority else None
            urllib.request.urlopen(url, context=context, timeout=60).read()


def _trainers() -> Any:
    monarch.actor.unhandled_fault_hook = lambda failure: None
    return this_host().spawn_procs({"gpus": 3}, name="workers").spawn("trainer", Trainer)


def _until_failed(trainers: Any) -> None:
    """Waits until the failure is known, and rests."""
    while True:
        try:
            trainers.pid.call().get()
        except SupervisionError:
            rest()


def port_taken() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    trainers = _trainers()
    trainers.serve.broadcast(1, taken.getsockname()[1])
    _until_failed(trainers)


def _store(answer: int, certificate: Path | None = None) -> int:
    """The port of a store that gives this answer to each request."""

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def expired_certificate() -> None:
    """The certificate of a store was valid for one second, two days ago."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    key, request, made = folder / "key.pem", folder / "request.pem", folder / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    subprocess.run(
        ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, *subject], check=True, capture_output=True
    )
    signed = ["openssl", "x509", "-req", "-in", request, "-signkey", key, "-copy_extensions", "copy", "-days", "-1", "-out", made]
    subprocess.run(signed, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text(key.read_text() + made.read_text())
    trainers = _trainers()
    trainers.fetch.broadcast(2, f"https://localhost:{_store(200, both)}/", str(made))
    _until_failed(trainers)


def token_refused() -> None:
    trainers = _trainers()
    trainers.fetch.broadcast(0, f"http://127.0.0.1:{_store(401)}/")
    _until_failed(trainers)


def hanging_names() -> None:
    """The name server takes requests, and answers none."""
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.53", 53))
    text = Path(tempfile.mkdtemp(prefix="faults-")) / "resolv.conf"
    text.write_text("nameserver 127.0.0.53\noptions timeout:30 attempts:3\n")
    mounted("--bind", str(text), at=Path("/etc/resolv.conf"))
    trainers = _trainers()
    rest(trainers.fetch.call(1, "http://store.example/"))


FAULTS = (
    Fault("port_taken", port_taken, r"trainer rank 1 .*raised OSError: \[Errno 98\] Address already in use.* in services\.py:\d+ in serve"),
    Fault("expired_certificate", expired_certificate, r"trainer rank 2 .*raised .*certificate has expired.* in services\.py:\d+ in fetch"),
    Fault("token_refused", token_refused, r"trainer rank 0 .*raised .*HTTP Error 401: Unauthorized in services\.py:\d+ in fetch"),
    Fault(
        "hanging_names",
        hanging_names,
        r"trainer rank 1 .*has waited for the address of the name store\.example in services\.py:\d+ in fetch"
        r" .*: the name server 127\.0\.0\.53 does not answer",
        6.0,
        "/proc/1/ns",
    ),
)
