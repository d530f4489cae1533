"""Answers of an API server that are no success, as errors of jobs: who may not do what, whose field it is, what is not reachable."""

from __future__ import annotations

from monarch.job.errors import SubmitError


class ApiError(SubmitError):
    """The API server refused a request: `status` is the HTTP code, `reason` the server's word for it, as "Forbidden" or "Conflict"."""

    def __init__(self, what: str, *, title: str = "", cause: str = "", hint: str | None = None, status: int = 0, reason: str = "") -> None:
        super().__init__(what, title=title, cause=cause, hint=hint)
        self.status = status
        self.reason = reason
