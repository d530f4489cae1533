"""Who asks the API server: a token, a token in a file, name and password, a client certificate, or what an exec plugin gives.

An identity is used by several threads; the plugin runs once for all of them. Its `repr` has no secret.

Ours: the official client writes keys of a kubeconfig to temporary files, reads a `tokenFile` once, and knows no impersonation.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from monarch.job.errors import CredentialsError
from monarch.job.kubernetes.access import tls
from monarch.job.kubernetes.access.exec_plugin import Answer, ExecPlugin, is_over
from monarch.job.kubernetes.access.kubeconfig_file import Entry, read_file

# Tokens of service accounts are renewed in their file an hour before they end, or earlier.
_TOKEN_FILE_SECONDS = 60.0


class Certificate(NamedTuple):
    """A client certificate and its key, PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Certificate(...)"


class Identity:
    """`headers` and `certificate` of a request; `refresh` after the server has not accepted them. By itself: anonymous."""

    def headers(self) -> Mapping[str, str]:
        """Of every request."""
        return {}

    def certificate(self) -> Certificate | None:
        """For the TLS handshake."""
        return None

    def refresh(self) -> bool:
        """Gets new credentials; false where there is no way to."""
        return False

    def expiry(self) -> str:
        """What has ended, for an error; "" where nothing has, or it cannot be seen."""
        return ""


class Fixed(Identity):
    """Headers and a certificate that stay."""

    def __init__(self, headers: Mapping[str, str] | None = None, certificate: Certificate | None = None) -> None:
        self._headers = dict(headers or {})
        self._certificate = certificate

    def headers(self) -> Mapping[str, str]:
        return self._headers

    def certificate(self) -> Certificate | None:
        return self._certificate

    def expiry(self) -> str:
        scheme, _, token = self._headers.get("Authorization", "").partition(" ")
        return _ended(token if scheme == "Bearer" else None, self._certificate)


class TokenFile(Identity):
    """A token in a file that is renewed by another process."""

    def __init__(self, path: str, what: str) -> None:
        self._path, self._what = path, what
        self._token, self._read_at = "", 0.0
        self.refresh()

    def headers(self) -> Mapping[str, str]:
        if time.monotonic() - self._read_at > _TOKEN_FILE_SECONDS:
            self.refresh()
        return {"Authorization": f"Bearer {self._token}"}

    def refresh(self) -> bool:
        before = self._token
        self._token = read_file(self._path, self._what).decode(errors="replace").strip()
        self._read_at = time.monotonic()
        if not self._token or not self._token.isprintable():
            raise CredentialsError(f"{self._what} is empty, or no token", path=self._path)
        return self._token != before

    def expiry(self) -> str:
        return _ended(self._token, None)


class FromPlugin(Identity):
    """What an exec plugin gives, until it expires."""

    def __init__(self, plugin: ExecPlugin) -> None:
        self._plugin = plugin
        self._lock = threading.Lock()
        self._answer: Answer | None = None

    def _current(self) -> Answer:
        with self._lock:
            if self._answer is None or is_over(self._answer.expires):
                self._answer = self._plugin.run()
            return self._answer

    def headers(self) -> Mapping[str, str]:
        token = self._current().token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def certificate(self) -> Certificate | None:
        answer = self._current()
        return Certificate(answer.certificate, answer.key) if answer.certificate and answer.key else None

    def refresh(self) -> bool:
        with self._lock:
            self._answer = None
        return True


class Hooked(Identity):
    """Of a `Configuration` of the official client: its headers are asked for each time, since a hook of it may renew them."""

    def __init__(self, headers: Callable[[], Mapping[str, str]], certificate: Certificate | None) -> None:
        self._headers, self._certificate = headers, certificate

    def headers(self) -> Mapping[str, str]:
        return self._headers()

    def certificate(self) -> Certificate | None:
        return self._certificate

    def expiry(self) -> str:
        return _ended(None, self._certificate)


def of_user(user: Entry, source: str, cluster: Mapping[str, Any]) -> Identity:
    """The identity of a user of a kubeconfig; `cluster` is for a plugin. `CredentialsError`."""
    certificate = _certificate(user)
    if user.value.get("exec"):
        plugin = ExecPlugin(user.value["exec"], user.path, source, cluster)
        return FromPlugin(plugin)
    if user.value.get("auth-provider"):
        name = dict(user.value["auth-provider"]).get("name")
        hint = "Kubernetes has replaced auth providers by exec plugins"
        raise CredentialsError(f"the user '{user.name}' has an auth-provider ('{name}')", path=user.path, hint=hint)
    # A file has precedence over the token beside it, which is an earlier content of the file.
    if user.text("tokenFile"):
        return TokenFile(user.file("tokenFile"), f"the token of '{user.name}' in {user.path}")
    headers: dict[str, str] = {}
    if user.text("token"):
        headers["Authorization"] = f"Bearer {_printable(user.text('token').strip(), 'token', user)}"
    elif user.text("username"):
        pair = f"{user.text('username')}:{user.text('password')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Fixed(headers, certificate)


def impersonation(user: Entry) -> list[tuple[str, str]]:
    """The headers that ask to act as another user, as a kubeconfig has it."""
    found = [("Impersonate-User", user.text("as"))] if user.text("as") else []
    found += [("Impersonate-Uid", user.text("as-uid"))] if user.text("as-uid") else []
    found += [("Impersonate-Group", str(group)) for group in user.value.get("as-groups") or ()]
    for key, values in dict(user.value.get("as-user-extra") or {}).items():
        found += [(f"Impersonate-Extra-{key}", str(value)) for value in values]
    return found


def _certificate(user: Entry) -> Certificate | None:
    chain, key = user.bytes("client-certificate"), user.bytes("client-key")
    if (chain is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise CredentialsError(f"the user '{user.name}' has no {missing} for the other half of it", path=user.path)
    return Certificate(chain, key) if chain is not None and key is not None else None


def _printable(token: str, what: str, user: Entry) -> str:
    if not token.isascii() or not token.isprintable():
        raise CredentialsError(f"the {what} of '{user.name}' has characters that no header can have", path=user.path)
    return token


def _ended(token: str | None, certificate: Certificate | None) -> str:
    for what, end in (
        ("the token", _token_end(token)),
        ("the client certificate", tls.not_after(certificate.chain) if certificate else None),
    ):
        if is_over(end, 0.0):
            return f"{what} has expired on {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(end))} UTC"
    return ""


def _token_end(token: str | None) -> float | None:
    """The end of a JSON web token, in seconds since 1970."""
    parts = (token or "").split(".")
    if len(parts) != 3:
        return None
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None
