"""What the operator answers by HTTP: `/healthz` and `/readyz` for the kubelet, `/metrics` for Prometheus."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[], tuple[bool, str]]

# For a request to come, seconds: a connection that sends nothing holds no thread for longer.
_REQUEST_S = 10.0


def address(text: str) -> tuple[str, int] | None:
    """`:8081`, `127.0.0.1:8081`, `[::1]:8081`; None for `0` or nothing: nothing listens. `ValueError` for other texts."""
    if text in ("", "0"):
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"'{text}' is no address to listen at: [HOST]:PORT, or 0 for none")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    paths: dict[str, Answer]

    def __init__(self, place: tuple[str, int], paths: dict[str, Answer]) -> None:
        host, port = place
        self.paths = paths
        self.address_family = socket.AF_INET6 if ":" in host or (not host and socket.has_dualstack_ipv6()) else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and not self.server_address[0]:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        answer = server.paths.get(self.path.partition("?")[0])
        is_well, text = answer() if answer is not None else (False, "not found")
        body = text.encode()
        self.send_response(200 if is_well else 404 if answer is None else 500)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds."""


def serve(place: tuple[str, int], paths: dict[str, Answer]) -> int:
    """Serves in a thread until the process ends; the port. `OSError` where it is taken."""
    server = _Server(place, paths)
    threading.Thread(target=server.serve_forever, name="endpoints", daemon=True).start()
    return server.server_address[1]
