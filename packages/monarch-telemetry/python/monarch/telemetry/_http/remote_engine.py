"""An engine of another process of this machine, asked over its HTTP API: what commands and agents use."""

from __future__ import annotations

import http.client
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

from monarch.telemetry._arrow import pa
from monarch.telemetry._asking import Answer
from monarch.telemetry._http.auth import read_access
from monarch.telemetry._http.http_client import HttpClient, published
from monarch.telemetry._http.routes import ARROW
from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry.errors import PartialAnswer, QueryError, TelemetryError

# Seconds in addition to the time of a question: the limit of the server gives an answer, this one is for a server that does not answer at
# all.
_GRACE = 2.0
# The most seconds in which a server has to respond to a check.
_ALIVE = 1.0
VARIABLE = "MONARCH_ADMIN_URL"
# The state file of the current job of a directory, `monarch.job.DEFAULT_JOB_PATH`: JSON whose `apply_id` names the folder of the job. It is
# read here, as the wheel may be missing, and as its own way to read it loads the class of the job with the libraries of a scheduler.
STATE = ".monarch/job_state.json"
_MOST_STATE = 64 << 20


class Found(NamedTuple):
    """A server and its token."""

    url: str
    token: str | None


class RemoteEngine:
    """Asks a server; see `Asking`. Any thread."""

    def __init__(self, found: Found) -> None:
        self._client = HttpClient(found.url, token=found.token)

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        """See `Asking`; `TelemetryError` for limits above the default where the token has not the scope admin."""
        seconds = limits.seconds if timeout is None else min(timeout, limits.seconds)
        body: dict[str, Any] = {"sql": sql, "timeout_s": seconds, "require_all": False}
        # A server with its own limit refuses a higher one, so that the default is not sent.
        body |= {name: value for name, value, usual in _sizes(limits) if value != usual}
        data = self._client.post("/v1/query", body, seconds + _GRACE, accept=ARROW)
        try:
            table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise QueryError(f"{self._client.url} answers no Arrow: {error}") from None
        coverage = Coverage.of(table)
        if coverage is None:
            raise QueryError(f"{self._client.url} answers without coverage: it is another server, or of another version")
        if require_all and coverage.missing:
            raise PartialAnswer({one.host: one.reason for one in coverage.missing}, table=table)
        return Answer(table, coverage)


def _sizes(limits: Limits) -> tuple[tuple[str, int, int], ...]:
    return ("max_rows", limits.rows, DEFAULT.rows), ("max_bytes", limits.bytes, DEFAULT.bytes)


def known_tokens() -> set[str]:
    """The tokens of all servers that jobs of this user have published on this machine: secrets of what leaves the machine."""
    return {token for _, access, _ in published() for token in access.tokens}


def find_engine(addr: str | None, token_file: str | None) -> RemoteEngine:
    """The engine at a URL, or that of the job of this user that runs on this machine. `TelemetryError` names what is missing."""
    return RemoteEngine(find(addr, token_file))


def find(addr: str | None, token_file: str | None) -> Found:
    """`addr`, else the variable MONARCH_ADMIN_URL, else the current job of this directory, else the only one of this user that serves."""
    url = addr or os.environ.get(VARIABLE)
    if url:
        if "://" in url and not url.startswith(("http://", "https://")):
            raise TelemetryError(f"{url} is no URL of a job: one is http://127.0.0.1:1729")
        return Found(url if "://" in url else f"http://{url}", None if token_file is None else _token(Path(token_file)))
    if token_file is not None:
        access = read_access(Path(token_file))
        if not access.urls:
            raise TelemetryError(f"{token_file} names no server", hint="give --addr")
        return Found(access.urls[0], access.tokens.admin)
    served = _served()
    current = _current_job()
    # If the server of the current job runs, no other one answers instead.
    served = [found for job, found in served if job == current] or [found for _, found in served]
    living = [found for found in served if _is_alive(found)]
    if not living and served:
        names = ", ".join(found.url for found in served)
        raise TelemetryError(f"no server of a job answers at {names}: it is busy, or its program has been killed", code="no_such_job")
    if not living:
        raise TelemetryError(
            "no job of this user serves telemetry on this machine",
            code="no_such_job",
            hint="call job.enable_telemetry() before job.state(), or monarch.telemetry.start(serve=True); --addr names a server elsewhere",
        )
    if len(living) > 1:
        names = ", ".join(found.url for found in living)
        raise TelemetryError(f"several jobs serve telemetry: {names}", hint="choose one with --addr")
    return living[0]


def _served() -> list[tuple[str, Found]]:
    """The servers that jobs of this user have published, the last one first, each with the name of its folder."""
    found = [(changed, job, Found(url, access.tokens.admin)) for job, access, changed in published() for url in access.urls[:1]]
    return [(job, one) for _, job, one in sorted(found, key=lambda item: -item[0])]


def _current_job() -> str | None:
    """The `apply_id` of the current job of the working directory; None where there is none, or a file that its own wheel would refuse."""
    try:
        # Opening a pipe does not block.
        with open(STATE, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            of = os.fstat(file.fileno())
            if not stat.S_ISREG(of.st_mode) or of.st_uid != os.geteuid() or of.st_size > _MOST_STATE:
                return None
            found: Any = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    job: Any = cast("dict[str, Any]", found).get("apply_id") if isinstance(found, dict) else None
    return job if isinstance(job, str) else None


def _is_alive(found: Found) -> bool:
    """Whether a server of this token answers there: a port may have been taken by another program since."""
    deadline = time.monotonic() + _ALIVE
    try:
        HttpClient(found.url, token=found.token).get("/v1/admin", max(0.1, deadline - time.monotonic()))
    except (TelemetryError, OSError, http.client.HTTPException):
        return False
    return True


def _token(path: Path) -> str:
    """The token in a file: that of a server, or the text itself."""
    try:
        return read_access(path).tokens.admin
    except TelemetryError:
        text = path.read_text(encoding="utf-8").strip()
        if not text or len(text.split()) != 1 or text.startswith("{"):
            raise
        return text
