"""HTTP requests to one API server: TLS, credentials, time-outs, and connections that are kept between requests.

Ours: a request of the official client has a time limit for each read, and none as a whole, so a server that sends a byte now and then
holds it for ever; its import takes 0.5 to 0.8 s of processor time, while a re-attach has a fifth of one. A request that may be repeated is
repeated while a server that has answered before restarts.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

from monarch.job._machine.commands import time_left
from monarch.job.errors import CredentialsError
from monarch.job.kubernetes.access import dialing, tls
from monarch.job.kubernetes.access.dialing import Address
from monarch.job.kubernetes.access.failures import UnreachableError, not_accepted, unknown_fields
from monarch.job.kubernetes.access.proxy_variables import proxy_of_environment

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.identity import Certificate, Identity

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 30.0
# Seconds for which an API server that restarts is away.
RESTART_SECONDS = 20.0
_PAUSES_S = (0.1, 0.2, 0.4, 0.8)
# The server is up, and requests another try: starting, overloaded, or without its database for a moment.
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
_KEPT_CONNECTIONS = 8
_READ = 1 << 16


@dataclass(frozen=True)
class Endpoint:
    """An API server; errors name `source`. `authority` is PEM. `proxy`: None for the environment's, "" for none."""

    server: str
    source: str
    authority: bytes | None = None
    is_verified: bool = True
    server_name: str | None = None
    proxy: str | None = None


class Response(NamedTuple):
    """An answer, read to its end."""

    status: int
    data: bytes


class _Clock:
    """The time of a request. It stops for credentials: an exec plugin has a limit of its own. A surrounding `time_limit` does not stop."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._begin = seconds, time.monotonic()

    def spent(self) -> float:
        return time.monotonic() - self._begin

    def left(self) -> float:
        return time_left(self._seconds - self.spent())

    @contextlib.contextmanager
    def stopped(self) -> Generator[None]:
        spent = self.spent()
        try:
            yield
        finally:
            self._begin = time.monotonic() - spent


class Incoming(NamedTuple):
    """An answer that is being read, and the socket that it comes from."""

    answer: http.client.HTTPResponse
    sock: socket.socket

    def read(self, clock: _Clock, newest: int | None) -> bytes:
        """All of it, or its last `newest` bytes. `TimeoutError` at the end of the clock."""
        parts: deque[bytes] = deque()
        size = 0
        while True:
            left = clock.left()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            part = self.answer.read1(_READ)
            if not part:
                if self.answer.length:
                    raise http.client.IncompleteRead(b"", self.answer.length)
                self.answer.read()  # marks it as read, so that its connection is kept
                found = b"".join(parts)
                return found if newest is None else found[-newest:]
            parts.append(part)
            size += len(part)
            while newest is not None and size - len(parts[0]) >= newest:
                size -= len(parts.popleft())


class _Http(http.client.HTTPConnection):
    """A connection over the sockets of `dialing`, and TLS."""

    def __init__(self, address: Address, context: ssl.SSLContext | None, server_name: str, seconds: float) -> None:
        super().__init__(address.host, address.port, timeout=seconds)
        self._address, self._context, self._server_name = address, context, server_name
        self._seconds = seconds

    def connect(self) -> None:
        plain = dialing.connect(self._address, self._seconds)
        try:
            # `sock` is removed when the server closes after an answer that is still unread.
            self.open = plain if self._context is None else self._context.wrap_socket(plain, server_hostname=self._server_name)
            self.sock = self.open
        except BaseException:
            plain.close()
            raise


class ApiConnection:
    """`server` is the URL, `namespace` that of the context, if any. Made by `KubeConfig.load()`; used by any number of threads."""

    def __init__(
        self, endpoint: Endpoint, identity: Identity, *, namespace: str | None = None, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        try:
            parts = urlsplit(endpoint.server)
        except ValueError as e:
            raise CredentialsError(f"the server '{endpoint.server}' is no URL", path=endpoint.source, cause=str(e)) from None
        # Messages and state files contain it, so the part before the host is left out: it may be a password.
        self.server = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
        self.source = endpoint.source
        self.namespace = namespace
        self.base = parts.path.rstrip("/")
        self._endpoint, self._identity, self._headers = endpoint, identity, tuple(headers)
        self._is_tls = parts.scheme == "https"
        host = parts.hostname or ""
        try:
            port = parts.port or (443 if self._is_tls else 80)
            proxy = proxy_of_environment(parts.scheme, host, port) if endpoint.proxy is None else endpoint.proxy or None
            self.address = Address(host, port, proxy)
            if proxy:
                dialing.check_proxy(proxy)
        except ValueError as e:
            raise CredentialsError(str(e), path=self.source) from None
        self.server_name = endpoint.server_name or host
        self._lock = threading.Lock()
        self._idle: list[_Http] = []
        self._context: tuple[Certificate | None, ssl.SSLContext] | None = None
        self._has_answered = False

    def __repr__(self) -> str:
        return f"<ApiConnection to {self.server}, from {self.source}>"

    def __del__(self) -> None:
        # Jobs are dropped without being closed.
        for one in self.__dict__.get("_idle", ()):
            one.close()

    def close(self) -> None:
        """Closes the sockets that no request uses; the connection can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            one.close()

    def refresh(self) -> bool:
        """Gets new credentials after a 401 that `request` has not seen; false where there is no way to."""
        return self._identity.refresh()

    def headers(self) -> list[tuple[str, str]]:
        """The credentials of a request."""
        return [*self._identity.headers().items(), *self._headers]

    def tls_context(self) -> ssl.SSLContext | None:
        """With the client's certificate as it is now; None where the server's URL is http. `CredentialsError` for a broken certificate."""
        if not self._is_tls:
            return None
        certificate = self._identity.certificate()
        with self._lock:
            if self._context is None or self._context[0] != certificate:
                self._context = (certificate, self._made_context(certificate))
            return self._context[1]

    def _made_context(self, certificate: Certificate | None) -> ssl.SSLContext:
        chain, key = certificate or (None, None)
        try:
            return tls.context(authority=self._endpoint.authority, is_verified=self._endpoint.is_verified, certificate=chain, key=key)
        except (ValueError, ssl.SSLError) as e:
            why = e.reason if isinstance(e, ssl.SSLError) and e.reason else str(e)
            raise CredentialsError("its certificates or its key cannot be used", path=self.source, cause=why) from None

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        seconds: float = REQUEST_SECONDS,
        is_repeatable: bool = True,
        newest: int | None = None,
    ) -> Response:
        """The answer, whatever its code, 401 excepted, which is `CredentialsError`. `UnreachableError` where there is none in time.

        `newest` is the most bytes of the answer that are kept, those at its end. The time of an exec plugin does not count in `seconds`.
        """
        clock = _Clock(seconds)
        attempt = 0
        while True:
            pause = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
            is_last = not is_repeatable or pause >= min(clock.left(), RESTART_SECONDS - clock.spent())
            try:
                with self._exchanged(method, path, query, body, content_type, clock) as incoming:
                    response = Response(incoming.answer.status, incoming.read(clock, newest))
            except UnreachableError as e:
                if is_last or not self._has_answered or isinstance(e.__cause__, ssl.SSLError):
                    raise
            else:
                if is_last or response.status not in _TRY_AGAIN or unknown_fields(*response):
                    return response
            attempt += 1
            time.sleep(pause)

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        seconds: float = REQUEST_SECONDS,
        silence: float | None = None,
    ) -> Generator[Incoming]:
        """An answer to be read in the block: its head has arrived after `seconds`, and no read waits longer than `silence`.

        `UnreachableError` also for what goes wrong while it is read. The time of an exec plugin does not count in `seconds`.
        """
        with self._exchanged(method, path, query, body, content_type, _Clock(seconds)) as incoming:
            if silence is not None:
                incoming.sock.settimeout(silence)
            yield incoming

    @contextlib.contextmanager
    def _exchanged(
        self, method: str, path: str, query: Mapping[str, str] | None, body: bytes | None, content_type: str, clock: _Clock
    ) -> Generator[Incoming]:
        target = self.base + path + (f"?{urlencode(query)}" if query else "")
        used: _Http | None = None
        try:
            used, answer = self._sent(method, target, body, content_type, clock)
            if answer.status == 401:
                data = answer.read(_READ)
                used.close()
                if not self._identity.refresh():
                    raise not_accepted(self.source, self.server, data, self._identity.expiry())
                self.close()
                used, answer = self._sent(method, target, body, content_type, clock)
                if answer.status == 401:
                    raise not_accepted(self.source, self.server, answer.read(_READ), self._identity.expiry())
            self._has_answered = True
            yield Incoming(answer, used.open)
            if answer.isclosed() and not answer.will_close:
                self._keep(used)
                used = None
        except (OSError, http.client.HTTPException) as e:
            if isinstance(e, CredentialsError | UnreachableError):
                raise
            # A failed connection takes less time than an answer may.
            raise self._unreachable(e, clock.spent()) from e
        finally:
            if used is not None:
                used.close()

    def _sent(
        self, method: str, target: str, body: bytes | None, content_type: str, clock: _Clock
    ) -> tuple[_Http, http.client.HTTPResponse]:
        if clock.left() <= 0:
            raise TimeoutError
        with clock.stopped():
            headers, kept = self.headers(), self._kept()
            context = self.tls_context() if kept is None else None
        used = kept or _Http(self.address, context, self.server_name, max(min(clock.left(), CONNECT_SECONDS), 0.001))
        try:
            if kept is None:
                used.connect()
            used.open.settimeout(max(clock.left(), 0.001))
            used.putrequest(method, target, skip_accept_encoding=True)
            for name, value in [("Accept", "application/json, */*"), ("User-Agent", "monarch"), *headers]:
                used.putheader(name, value)
            if body is not None:
                used.putheader("Content-Type", content_type)
                used.putheader("Content-Length", str(len(body)))
            used.endheaders(body)
            return used, used.getresponse()
        except BaseException:
            used.close()
            raise

    def _kept(self) -> _Http | None:
        """A connection of an earlier request that the server has not closed meanwhile."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                found = self._idle.pop()
            if not _is_readable(found.open):
                return found
            found.close()

    def _keep(self, used: _Http) -> None:
        with self._lock:
            if len(self._idle) < _KEPT_CONNECTIONS:
                self._idle.append(used)
                return
        used.close()

    def _unreachable(self, error: Exception, seconds: float) -> UnreachableError:
        cause, hint = _cause(error, seconds), f"the server is that of {self.source}"
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = "certificate-authority and tls-server-name of the kubeconfig decide what is accepted"
        elif isinstance(error, ssl.SSLError):
            cause = "\n".join(filter(None, (cause, self._identity.expiry())))
        what, has_timed_out = f"the API server {self.server} cannot be reached", isinstance(error, TimeoutError)
        return UnreachableError(what, server=self.server, cause=cause, hint=hint, has_timed_out=has_timed_out)


def _cause(error: Exception, seconds: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, socket.gaierror):
        return f"its name is not known: {error.strerror}"
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:.0f} s"
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError | http.client.IncompleteRead):
        return "it closed the connection"
    if isinstance(error, http.client.HTTPException):
        return f"it does not speak HTTP as API servers do: {type(error).__name__}"
    return getattr(error, "strerror", None) or str(error)


def _is_readable(sock: socket.socket) -> bool:
    """Without a request there is nothing to read but the end."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))
