"""OTLP over HTTP: one connection that is kept open, proxies of the environment, a time limit for a request as a whole."""

from __future__ import annotations

import http.client
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from email.utils import parsedate_to_datetime
from gzip import compress
from threading import Lock, Timer
from time import time
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from monarch.telemetry._export.otlp_sender import Outcome
from monarch.telemetry._export.otlp_settings import Signal, Target
from monarch.telemetry._export.otlp_values import messages

_RETRIED = frozenset({429, 502, 503, 504})
_MOST_ANSWER = 1 << 20
_LONGEST_RETRY_AFTER_S = 600.0
_SHOWN = 300
# Service and field of the answer, by signal.
RESPONSES: dict[Signal, tuple[str, str, str]] = {
    "traces": ("collector.trace.v1.trace_service", "ExportTraceServiceResponse", "rejected_spans"),
    "metrics": ("collector.metrics.v1.metrics_service", "ExportMetricsServiceResponse", "rejected_data_points"),
    "logs": ("collector.logs.v1.logs_service", "ExportLogsServiceResponse", "rejected_log_records"),
}


class HttpTransport:
    """Sends to an HTTP receiver. `OSError` (with `ssl.SSLError`) at the start for certificates that cannot be loaded."""

    def __init__(self, target: Target) -> None:
        self._target = target
        split = urlsplit(target.url)
        self._host, self._port = split.hostname or "", split.port
        self._path = f"{split.path or '/'}?{split.query}" if split.query else split.path or "/"
        self._context = _tls(target) if split.scheme == "https" else None
        self._place = split.netloc
        self._headers = {
            "Content-Type": "application/x-protobuf",
            "User-Agent": "monarch-telemetry",
            **({"Content-Encoding": "gzip"} if target.gzip else {}),
            **dict(target.headers),
        }
        self._connection: http.client.HTTPConnection | None = None
        self._lock = Lock()
        self._aborted = self._expired = False

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        return self._target.shown

    def send(self, body: bytes) -> Outcome:
        """Sends one request. One thread at a time."""
        packed = compress(body, 6, mtime=0) if self._target.gzip else body
        kept = self._connection is not None
        outcome = self._sent(packed)
        # A receiver may close an idle connection: that is not a failure, and no data was accepted.
        if outcome is None and kept:
            outcome = self._sent(packed)
        return outcome if outcome is not None else Outcome("the receiver closed the connection", retry=True)

    def _sent(self, body: bytes) -> Outcome | None:
        """None where the receiver closed the connection without an answer."""
        timer = Timer(self._target.timeout, self._expire)
        timer.daemon = True
        # Timeouts of a socket are per operation: an answer that arrives byte by byte would take forever.
        self._expired = False
        timer.start()
        try:
            connection, path = self._connected()
            connection.request("POST", path, body, self._headers)
            response = connection.getresponse()
            answer = response.read(_MOST_ANSWER)
            if self._expired:
                # The library takes a response that was cut off in its headers for a complete one.
                raise TimeoutError
            if response.will_close or not response.isclosed():
                self.close()
            return self._outcome(response, answer)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            return Outcome(self._text(error), retry=True) if self._expired or self._aborted else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            # Certificates do not become valid within minutes.
            return Outcome(self._text(error), retry=not isinstance(error, ssl.SSLCertVerificationError))
        finally:
            timer.cancel()

    def _text(self, error: Exception) -> str:
        if self._expired or isinstance(error, TimeoutError):
            return f"no answer within {self._target.timeout:g} s"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{reason or type(error).__name__}"

    def _connected(self) -> tuple[http.client.HTTPConnection, str]:
        """The connection, and what is asked for on it: a proxy wants the whole URL."""
        proxy = None if _bypassed(self._place) else getproxies().get(urlsplit(self._target.url).scheme)
        split = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
        path = self._path if split is None or self._context is not None else f"http://{self._place}{self._path}"
        with self._lock:
            if self._aborted:
                raise ConnectionAbortedError("this sender has ended")
            if self._connection is None:
                self._connection = self._made(split)
            connection = self._connection
        if connection.sock is None:
            connection.connect()
            with self._lock:
                if self._aborted:
                    _shut(connection)
        return connection, path

    def _made(self, proxy: Any) -> http.client.HTTPConnection:
        host, port = (self._host, self._port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
        timeout = self._target.timeout
        if self._context is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=self._context)
        credentials: dict[str, str] = {}
        if proxy is not None and proxy.username:
            text = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            credentials["Proxy-Authorization"] = f"Basic {b64encode(text.encode()).decode()}"
        if proxy is not None and self._context is not None:
            connection.set_tunnel(self._host, self._port, credentials)
        elif credentials:
            self._headers |= credentials
        return connection

    def _outcome(self, response: http.client.HTTPResponse, answer: bytes) -> Outcome:
        if 200 <= response.status < 300:
            return partial(self._target.signal, answer)
        retry = response.status in _RETRIED
        text = f"HTTP status {response.status} {response.reason}"[:_SHOWN]
        if 300 <= response.status < 400:
            # The target is not shown: the URL of a redirection may contain a token.
            text += ", a redirection, which is not followed"
        return Outcome(text, retry, _retry_after(response.headers.get("Retry-After")) if retry else None)

    def close(self) -> None:
        """Closes the connection; another `send` makes one."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _expire(self) -> None:
        self._expired = True
        with self._lock:
            connection = self._connection
        if connection is not None:
            _shut(connection)

    def abort(self) -> None:
        """Ends the request under way, and refuses others. Any thread."""
        with self._lock:
            self._aborted = True
            connection = self._connection
        if connection is not None:
            _shut(connection)


def partial(signal: Signal, answer: bytes) -> Outcome:
    """What the receiver rejected of a request that it took. An answer that is no message is one of a receiver that sends none."""
    service, name, field = RESPONSES[signal]
    try:
        found = getattr(messages(service), name).FromString(answer).partial_success
    except Exception:  # DecodeError of a library without types
        return Outcome()
    return Outcome(rejected=max(0, getattr(found, field)), message=found.error_message[:_SHOWN])


def _tls(target: Target) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=target.certificate)
    if target.client_certificate is not None and target.client_key is not None:
        context.load_cert_chain(target.client_certificate, target.client_key)
    return context


def _bypassed(place: str) -> bool:
    return bool(proxy_bypass(place))


def _shut(connection: http.client.HTTPConnection) -> None:
    """Wakes the thread that reads or writes; it closes the socket itself."""
    sock: Any = connection.sock
    if sock is not None:
        # Not the method of a TLS socket, which removes its state from the reading thread.
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _retry_after(text: str | None) -> float | None:
    """Seconds from now, of a number of seconds or a date."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), _LONGEST_RETRY_AFTER_S)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time()), _LONGEST_RETRY_AFTER_S)
    except (ValueError, OverflowError):
        return None
