"""Parts of an application whose job is elsewhere: each asks the HTTP API of the process that serves the job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from monarch.telemetry._http.http_client import HttpClient, parsed
from monarch.telemetry._http.models import ActionAnswer, ConfigEntry, PyspyAnswer
from monarch.telemetry._http.references import Reference
from monarch.telemetry._http.routes import SVG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monarch.telemetry._stacks.result import Ok

# Healing a job takes the longest.
_ACTION_SECONDS = 130.0
# The most seconds of an answer in addition to its own time.
_GRACE = 2.0


def _proc(proc_id: int) -> str:
    return str(Reference("proc", proc_id))


class RemoteStacks:
    """See `Stacks`. Errors are those of `HttpClient`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def merged(self, mesh: str | None, *, native: bool, locals: bool, timeout: float) -> dict[str, Any]:
        wanted = {"mesh": mesh, "native": "true" if native else None, "locals": "true" if locals else None}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        return self._object(self._client.get(f"/v1/stacks{'?' if query else ''}{query}", timeout + _GRACE))

    def read(self, proc_id: int, *, timeout: float) -> PyspyAnswer:
        return cast("PyspyAnswer", self._object(self._client.get(f"/v1/pyspy/{_proc(proc_id)}", timeout + _GRACE)))

    def store(self, proc_id: int, proc_ref: str, *, timeout: float) -> str:
        return str(self._object(self._client.post(f"/v1/pyspy_dump/{_proc(proc_id)}", {}, timeout + _GRACE))["dump_id"])

    def keep(self, dump_id: str, proc_ref: str, stacks: Ok) -> None:
        body = {"dump_id": dump_id, "proc_ref": proc_ref, "pyspy_result_json": json.dumps(stacks.to_json())}
        self._client.post("/api/pyspy_dump", body, _ACTION_SECONDS)

    def profile_svg(
        self, proc_id: int, *, duration_s: float, rate_hz: int, native: bool, threads: bool, nonblocking: bool, timeout: float
    ) -> bytes:
        body = {"duration_s": duration_s, "rate_hz": rate_hz, "native": native, "threads": threads, "nonblocking": nonblocking}
        return self._client.post(f"/v1/pyspy_profile_svg/{_proc(proc_id)}", body, timeout + _GRACE, accept=SVG)

    def _object(self, data: bytes) -> dict[str, Any]:
        return cast("dict[str, Any]", parsed(data, self._client.url))


class RemoteActions:
    """See `Actions`. Errors are those of `HttpClient`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def stop_mesh(self, mesh: str, *, reason: str | None) -> ActionAnswer:
        return self._act("stop_mesh", mesh, reason=reason)

    def kill_proc(self, proc_id: int) -> ActionAnswer:
        return self._act("kill_proc", _proc(proc_id))

    def signal_proc(self, proc_id: int, signal: int) -> ActionAnswer:
        return self._act("signal_proc", _proc(proc_id), signal=signal)

    def heal_job(self, job: str) -> ActionAnswer:
        return self._act("heal_job", job)

    def kill_job(self, job: str, *, reason: str | None) -> ActionAnswer:
        return self._act("kill_job", job, reason=reason)

    def set_log_level(self, proc_id: int | None, level: str) -> ActionAnswer:
        return self._act("set_log_level", "*" if proc_id is None else _proc(proc_id), level=level)

    def dump_state(self, proc_id: int | None) -> ActionAnswer:
        return self._act("dump_state", "*" if proc_id is None else _proc(proc_id))

    def cancel_query(self, query: str) -> ActionAnswer:
        return self._act("cancel_query", query)

    def _act(self, action: str, target: str, **more: str | int | None) -> ActionAnswer:
        body = {"target": target, **{name: value for name, value in more.items() if value is not None}}
        return cast("ActionAnswer", parsed(self._client.post(f"/v1/actions/{action}", body, _ACTION_SECONDS), self._client.url))


class RemoteDiagnosis:
    """The diagnosis of a job by the process that serves it. Errors are those of `HttpClient`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def __call__(self, timeout: float) -> Mapping[str, Any]:
        return cast("dict[str, Any]", parsed(self._client.get("/v1/diagnose", timeout + _GRACE), self._client.url))


class RemoteSettings:
    """See `Settings`; values of secrets are masked already. Errors are those of `HttpClient`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def config(self, proc_id: int, *, timeout: float) -> Sequence[ConfigEntry]:
        answer: Any = parsed(self._client.get(f"/v1/config/{_proc(proc_id)}", timeout + _GRACE), self._client.url)
        return cast("list[ConfigEntry]", answer["entries"])
