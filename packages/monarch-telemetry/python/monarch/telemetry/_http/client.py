"""The client of the HTTP API that programs use."""

from __future__ import annotations

import time
from typing import Any, cast

from monarch.telemetry._asking import checked_timeout, in_words
from monarch.telemetry._http.http_client import HttpClient, parsed
from monarch.telemetry.errors import QueryTimeout


class QueryEngineClient:
    """Asks the HTTP API of a job. Any thread.

    `timeout` is in seconds, of each query, 600 at most; above 10 the token needs the scope admin. The server ends a query whose time is
    over; one that does not answer at all is waited for a second longer.
    Without a token it is `MONARCH_TELEMETRY_TOKEN`, else that of the job of this user on this machine that has the URL.
    `ValueError` for a URL that is none.
    """

    __module__ = "monarch.telemetry"

    def __init__(self, base_url: str, timeout: float = 10, *, token: str | None = None) -> None:
        self._timeout = checked_timeout(timeout, "QueryEngineClient")
        self._client = HttpClient(base_url, token=token)

    def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]:
        """`{"rows": [{column: value}], "coverage": {...}}`, all pages as one.

        `timeout` is in seconds, in place of that of the client. `QueryError` and its kinds, `QueryTimeout`; `TelemetryError` where the API
        cannot be reached or refuses.
        """
        seconds = self._timeout if timeout is None else checked_timeout(timeout, "query")
        deadline = time.monotonic() + seconds
        body: dict[str, Any] = {"sql": sql, "timeout_s": seconds}
        rows: list[dict[str, Any]] = []
        while True:
            # The time limit of the server gives an answer; this one is for a server that does not answer at all.
            answer = self._post("/v1/query", body, max(deadline - time.monotonic(), 0.0) + 1.0)
            rows += answer["rows"]
            if "cursor" not in answer:
                return {"rows": rows, "coverage": answer["coverage"]}
            if time.monotonic() >= deadline:
                raise QueryTimeout(f"{self._client.url}: not all pages came within {in_words(seconds)}", stage="pages")
            body["cursor"] = answer["cursor"]

    def store_pyspy_dump(self, dump_id: str, proc_ref: str, pyspy_result_json: str) -> dict[str, Any]:
        """Stores stacks that were read elsewhere; needs the scope admin. `{"dump_id": ...}`."""
        body = {"dump_id": dump_id, "proc_ref": proc_ref, "pyspy_result_json": pyspy_result_json}
        return self._post("/api/pyspy_dump", body, self._timeout)

    def _post(self, path: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        return cast("dict[str, Any]", parsed(self._client.post(path, body, seconds), self._client.url))
