"""The client of the HTTP API that programs use."""

from __future__ import annotations

import time
from typing import Any, cast

from monarch.telemetry._http.http_client import HttpClient, parsed
from monarch.telemetry.errors import QueryTimeout


class QueryEngineClient:
    """Asks the HTTP API of a job. `timeout` is in seconds, of each request. Any thread.

    Without a token it is `MONARCH_TELEMETRY_TOKEN`, else that of the job of this user on this machine that has the URL.
    `ValueError` for a URL that is none.
    """

    __module__ = "monarch.telemetry"

    def __init__(self, base_url: str, timeout: float = 10, *, token: str | None = None) -> None:
        if timeout <= 0:
            raise ValueError("timeout is greater than 0")
        self._client = HttpClient(base_url, token=token)
        self._timeout = timeout

    def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]:
        """`{"rows": [{column: value}], "coverage": {...}}`, all pages as one.

        `timeout` is in seconds. `QueryError` and its kinds, `QueryTimeout`; `TelemetryError` where the API cannot be reached or refuses.
        """
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        body: dict[str, Any] = {"sql": sql}
        if timeout is not None:
            body["timeout_s"] = timeout
        rows: list[dict[str, Any]] = []
        while True:
            # The server's own time limit is an answer; this one is for a server that does not answer at all.
            answer = self._post("/v1/query", body, max(deadline - time.monotonic(), 0.0) + 1.0)
            rows += answer["rows"]
            if "cursor" not in answer:
                return {"rows": rows, "coverage": answer["coverage"]}
            if time.monotonic() >= deadline:
                raise QueryTimeout(f"{self._client.url}: not all pages came within {seconds:g} s", stage="pages")
            body["cursor"] = answer["cursor"]

    def store_pyspy_dump(self, dump_id: str, proc_ref: str, pyspy_result_json: str) -> dict[str, Any]:
        """Stores stacks that were read elsewhere; needs the scope admin. `{"dump_id": ...}`."""
        body = {"dump_id": dump_id, "proc_ref": proc_ref, "pyspy_result_json": pyspy_result_json}
        return self._post("/api/pyspy_dump", body, self._timeout)

    def _post(self, path: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        return cast("dict[str, Any]", parsed(self._client.post(path, body, seconds), self._client.url))
