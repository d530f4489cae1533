"""Access to the API: bearer tokens of two scopes, their file, and the names under which a browser may reach the server.

A web page of another site can make a browser send requests to a server on loopback: directly, or by a name of its own that it resolves to
127.0.0.1. The first has a foreign `Origin`, the second a foreign `Host`. Both are refused on every route, and neither can have a token.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from monarch.extension.masking import MASK
from monarch.telemetry._http.problems import Problem
from monarch.telemetry.errors import TelemetryError

FILE = "telemetry.json"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_TOKEN_BYTES = 32
_MOST_BYTES = 1 << 16
_TOKEN = re.compile(r"[A-Za-z0-9_\-]{16,256}")
_PORT = re.compile(r"[0-9]{1,5}")

Headers = Sequence[tuple[bytes, bytes]]


class Tokens(NamedTuple):
    """One for each scope; that of admin is one of read too."""

    read: str
    admin: str

    def scope(self, token: str) -> Literal["read", "admin"] | None:
        """The scope of a token, found in a time that does not depend on the token."""
        given = token.encode()
        is_read = hmac.compare_digest(given, self.read.encode())
        is_admin = hmac.compare_digest(given, self.admin.encode())
        return "admin" if is_admin else "read" if is_read else None

    def __repr__(self) -> str:
        return f"Tokens(read={MASK!r}, admin={MASK!r})"


def new_tokens() -> Tokens:
    return Tokens(secrets.token_urlsafe(_TOKEN_BYTES), secrets.token_urlsafe(_TOKEN_BYTES))


class Access(NamedTuple):
    """What the file of a server has: its tokens, and its URLs once it serves."""

    tokens: Tokens
    urls: tuple[str, ...] = ()


def tokens_in(folder: Path) -> Tokens:
    """The tokens of a folder, made if there are none. `TelemetryError` for a file that others may read, or that has no tokens."""
    path = folder / FILE
    try:
        return read_access(path).tokens
    except FileNotFoundError:
        pass
    try:
        _make_private(folder)
        _write(path, Access(new_tokens()), new=True)
    except FileExistsError:
        pass  # another process has created the tokens of the folder before
    except OSError as error:
        raise TelemetryError(f"{path} cannot be written: {error.strerror}") from None
    return read_access(path).tokens


def publish(folder: Path, tokens: Tokens, urls: Iterable[str]) -> None:
    """Writes under which URLs the tokens are good: a client finds its token by the URL."""
    path = folder / FILE
    try:
        _write(path, Access(tokens, tuple(urls)), new=False)
    except OSError as error:
        raise TelemetryError(f"{path} cannot be written: {error.strerror}") from None


def read_access(path: Path) -> Access:
    """The file of a server. `FileNotFoundError`; `TelemetryError` names any other fault."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TelemetryError(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise TelemetryError(f"{path} is no file")
        if found.st_uid != os.geteuid():
            raise TelemetryError(f"{path} belongs to another user (uid {found.st_uid})")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise TelemetryError(f"{path} is open to others", hint=f"chmod go-rwx {path}")
        data = os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
    try:
        fields = cast("dict[str, Any]", json.loads(data))
        tokens = Tokens(fields["read"], fields["admin"])
        urls = tuple(str(url) for url in fields["urls"])
        if not all(_TOKEN.fullmatch(token) for token in tokens) or tokens.read == tokens.admin:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise TelemetryError(f"{path} has no tokens", hint="remove the file: the next start makes new tokens") from None
    return Access(tokens, urls)


def _make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, for this user alone: a job refuses a folder of others above its secret."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def _write(path: Path, access: Access, *, new: bool) -> None:
    """Writes the whole file or nothing, for its user alone. `FileExistsError` with `new` where there is one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w") as file:
            json.dump({"read": access.tokens.read, "admin": access.tokens.admin, "urls": access.urls}, file)
        if new:
            os.link(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


class Names(NamedTuple):
    """The names of the server in URLs. Ports are not compared: a forwarded port has another number on the way."""

    hosts: frozenset[str] = LOOPBACK
    scheme: Literal["http", "https"] = "http"

    def check(self, headers: Headers) -> str:
        """The `Host` of a request. `Problem` 403 for a foreign host, and for a page of another origin."""
        hosts = [value for name, value in headers if name == b"host"]
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if _name(host) not in self.hosts:
            raise Problem.forbidden("the host of the request is none of this server's names")
        for name, value in headers:
            if name == b"origin" and value.decode("latin-1").lower() != f"{self.scheme}://{host.lower()}":
                raise Problem.forbidden("the request comes from a page of another origin")
        return host


def _name(host: str) -> str | None:
    """The name without port and brackets; None for what is no name."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:] if port else None
    else:
        name, colon, rest = host.partition(":")
        port = rest if colon else None
    if port is not None and not _PORT.fullmatch(port):
        return None
    return name.lower()


def bearer(headers: Headers) -> str | None:
    """The token of a request, None without one."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1:
        return None
    kind, _, token = values[0].decode("latin-1").strip().partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None
