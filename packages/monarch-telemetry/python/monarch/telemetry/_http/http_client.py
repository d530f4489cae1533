"""One request to the HTTP API of a job: plain HTTP, no proxies, no redirects, and the token of the job that the URL belongs to."""

from __future__ import annotations

import glob
import http.client
import json
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from monarch.telemetry._asking import NO_SERVER, in_words
from monarch.telemetry._http.auth import FILE, LOOPBACK, Access, read_access
from monarch.telemetry.errors import QueryError, QueryLimit, QueryRejected, QueryTimeout, TelemetryError

# The most bytes of an answer.
_MOST_BYTES = 1 << 30
_PIECE = 1 << 16
_JSON = "application/json"
VARIABLE = "MONARCH_TELEMETRY_TOKEN"


class HttpError(TelemetryError):
    """An answer with an error, and its HTTP status."""

    def __init__(self, url: str, status: int, text: str) -> None:
        super().__init__(f"{url} answers {status}: {text}")
        self.status = status


class HttpClient:
    """Requests to one server, each on a connection of its own. Any thread.

    Without a token it is `MONARCH_TELEMETRY_TOKEN`, else that of the job of this user on this machine that has the URL. `ValueError` for a
    URL that is none.
    """

    def __init__(self, base_url: str, *, token: str | None = None) -> None:
        if not isinstance(base_url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"base_url is a text such as http://host:port, not {base_url!r}")
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query or parts.fragment:
            raise ValueError("base_url is http://host:port or https://host:port, without user, query and fragment")
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._is_tls else 80)
        self._path = parts.path.rstrip("/")
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{parts.scheme}://{host}:{self._port}"
        self._token = token if token is not None else _token(self.url)

    def post(self, path: str, body: dict[str, Any], seconds: float, *, accept: str = _JSON) -> bytes:
        """The body of the answer to a request with this JSON. `QueryError` and its kinds; `TelemetryError` where it is refused."""
        return self._request("POST", path, json.dumps(body), seconds, accept)

    def get(self, path: str, seconds: float) -> bytes:
        """The body of the answer. The errors of `post`."""
        return self._request("GET", path, None, seconds, _JSON)

    def _request(self, method: str, path: str, body: str | None, seconds: float, accept: str) -> bytes:
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = _JSON
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(seconds)
        try:
            connection.request(method, f"{self._path}{path}", body, headers)
            answer = connection.getresponse()
            data = _read(answer, time.monotonic() + seconds)
        except TimeoutError:
            raise QueryTimeout(f"{self.url} did not answer within {in_words(seconds)}", stage=NO_SERVER) from None
        except (OSError, http.client.HTTPException) as error:
            raise TelemetryError(f"{self.url} cannot be reached: {error}", hint="is the job running, and its telemetry enabled?") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise _error(answer.status, parsed(data, self.url, answer.status), self.url)
        return data

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        if self._is_tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=ssl.create_default_context())
        return http.client.HTTPConnection(self._host, self._port, timeout=seconds)


def parsed(data: bytes, url: str, status: int = 200) -> Any:
    """The JSON of an answer; `TelemetryError` for one without."""
    try:
        return json.loads(data)
    except ValueError:
        raise TelemetryError(f"{url} answers {status} without JSON: it is another server") from None


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body; a server that sends a little now and then does not make a client wait for longer."""
    data = bytearray()
    while piece := answer.read1(_PIECE):
        data += piece
        if len(data) > _MOST_BYTES:
            raise OSError(f"the answer has more than {_MOST_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(data)


def _error(status: int, found: Any, url: str) -> TelemetryError:
    """The error that the server had, as far as it can be made here."""
    error: Any = cast("dict[str, Any]", found).get("error") if isinstance(found, dict) else None
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
    text = str(fields.get("message") or f"HTTP {status}")
    details: Any = fields.get("details")
    code = cast("dict[str, Any]", details).get("error") if isinstance(details, dict) else None
    if status == 504:
        missing: Any = cast("dict[str, Any]", details).get("missing", ()) if isinstance(details, dict) else ()
        return QueryTimeout(text, stage="server", missing=[str(one) for one in missing])
    if code == "telemetry_rejected":
        return QueryRejected(text)
    if code == "telemetry_limit":
        of = cast("dict[str, Any]", details)
        return QueryLimit(
            str(of.get("limit")), int(of.get("value", 0)), int(of.get("reached", 0)), hint=text.partition("\nhint: ")[2] or None
        )
    if isinstance(code, str) and status in (400, 503) and code != "telemetry_failed":
        return QueryError(text, code=code)
    return HttpError(url, status, text)


def _token(url: str) -> str | None:
    """The token for a URL: a token is sent to the server that it belongs to, and to no other."""
    if given := os.environ.get(VARIABLE):
        return given
    accesses = (access for _, access, _ in published())
    return next((access.tokens.admin for access in accesses if _place(url) in map(_place, access.urls)), None)


def published() -> Iterator[tuple[str, Access, float]]:
    """The files of servers of this user, each with the name of its folder, and when it was written."""
    home = os.path.abspath(os.path.expanduser(os.environ.get("MONARCH_HOME") or "~/.monarch"))
    for path in sorted(glob.glob(os.path.join(glob.escape(home), "jobs", "*", FILE))):
        try:
            found = os.path.basename(os.path.dirname(path)), read_access(Path(path)), os.stat(path).st_mtime
        except (TelemetryError, OSError):
            continue  # the folder of a job that is being created or removed
        yield found


def _place(url: str) -> tuple[str, str | None, int | None]:
    """Where a URL leads: all names of loopback are one."""
    parts = urlsplit(url)
    return parts.scheme, "localhost" if parts.hostname in LOOPBACK else parts.hostname, parts.port
