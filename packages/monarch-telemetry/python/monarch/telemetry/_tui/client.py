"""Where the job is, from the options of the command: an address, TLS files and a token."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from monarch.telemetry._http.http_client import HttpClient
from monarch.telemetry._http.remote_engine import find
from monarch.telemetry.errors import TelemetryError

DEFAULT_PORT = 1729


class Where(NamedTuple):
    """The options. Without `addr` and `port` it is the current job."""

    addr: str | None = None
    port: int | None = None
    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    plaintext: bool = False

    @property
    def has_tls(self) -> bool:
        return any((self.tls_ca, self.tls_cert, self.tls_key))


class TlsClient(HttpClient):
    """Requests over TLS with a certificate authority or a certificate of the user."""

    def __init__(self, url: str, context: ssl.SSLContext, *, token: str | None = None) -> None:
        super().__init__(url, token=token)
        self._context = context

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._context)


def connect(where: Where) -> HttpClient:
    """The client of the job. `TelemetryError` for no job, several, or files that are none; `ValueError` for an address that is none."""
    url = address(where)
    found = find(url, where.token_file)
    if where.has_tls:
        if urlsplit(found.url).scheme != "https":
            raise TelemetryError(f"{found.url} has no TLS, and TLS files are given", hint="leave out --tls-*, or give an https:// address")
        return TlsClient(found.url, _context(where), token=found.token)
    return HttpClient(found.url, token=found.token)


def address(where: Where) -> str | None:
    """The URL that the options name; None for the current job. `ValueError` names what contradicts."""
    if where.plaintext and where.has_tls:
        raise ValueError("--plaintext is without TLS: leave out --tls-ca, --tls-cert and --tls-key")
    addr = where.addr
    if addr is None:
        if where.port is None:
            return None
        addr = "127.0.0.1"
    if "://" not in addr:
        # Several colons: an IPv6 address without brackets.
        addr = f"[{addr}]" if addr.count(":") > 1 and not addr.startswith("[") else addr
        addr = f"{'https' if where.has_tls else 'http'}://{addr}"
        is_short = True
    else:
        is_short = False
    parts = urlsplit(addr)
    if parts.scheme == "https" and where.plaintext:
        raise ValueError(f"--plaintext is without TLS, and {addr} is https")
    try:
        given = parts.port
    except ValueError:
        raise ValueError(f"{addr} has a port that is none") from None
    if where.port is not None and given is not None and given != where.port:
        raise ValueError(f"--addr has the port {given}, and --admin-port is {where.port}")
    if given is None and (where.port is not None or is_short):
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{where.port or DEFAULT_PORT}{parts.path}"
    return addr


def _context(where: Where) -> ssl.SSLContext:
    for option, path in (("--tls-ca", where.tls_ca), ("--tls-cert", where.tls_cert), ("--tls-key", where.tls_key)):
        if path is not None and not Path(path).is_file():
            raise TelemetryError(f"{option}: {path} is no file")
    if where.tls_key is not None and where.tls_cert is None:
        raise TelemetryError("--tls-key needs --tls-cert")
    try:
        context = ssl.create_default_context(cafile=where.tls_ca)
        if where.tls_cert is not None:
            # A key with a password would prompt on the terminal.
            context.load_cert_chain(where.tls_cert, where.tls_key, password="")
    except (ssl.SSLError, OSError) as error:
        raise TelemetryError(f"the TLS files cannot be used: {error}") from None
    return context
