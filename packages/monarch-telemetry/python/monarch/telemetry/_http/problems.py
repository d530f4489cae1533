"""What goes wrong with a request, as a status, a code and a text."""

from __future__ import annotations

from typing import Any

from monarch.telemetry.errors import PartialAnswer, QueryError, QueryLimit, QueryTimeout, TelemetryError


class Problem(Exception):
    """The answer to a request that was not done. `code` is one of `models.Failure`."""

    def __init__(self, status: int, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.details = status, code, message, details

    @classmethod
    def bad_request(cls, message: str, *, status: int = 400) -> Problem:
        return cls(status, "bad_request", message)

    @classmethod
    def not_found(cls, message: str) -> Problem:
        return cls(404, "not_found", message)

    @classmethod
    def unauthorized(cls, message: str) -> Problem:
        return cls(401, "unauthorized", message)

    @classmethod
    def forbidden(cls, message: str) -> Problem:
        return cls(403, "forbidden", message)

    @classmethod
    def unavailable(cls, message: str) -> Problem:
        return cls(503, "service_unavailable", message)

    @classmethod
    def timeout(cls, message: str) -> Problem:
        return cls(504, "gateway_timeout", message)

    def to_json(self, *, text_only: bool = False) -> dict[str, Any]:
        """`{"error": {code, message, details}}`; for the dashboard API `{"error": text}`."""
        if text_only:
            return {"error": self.message}
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details:
            error["details"] = self.details
        return {"error": error}


def problem_of(error: BaseException) -> Problem | None:
    """What an error of telemetry is to a client; None for an error that is a defect."""
    if isinstance(error, Problem):
        return error
    if not isinstance(error, TelemetryError):
        return None
    details: dict[str, Any] = {"error": error.code}
    if isinstance(error, PartialAnswer):
        # The hosts exist, but do not answer now: the same request may succeed later.
        details["missing"] = [{"host": host, "reason": reason} for host, reason in error.missing.items()]
        return Problem(503, "service_unavailable", str(error), details)
    if isinstance(error, QueryTimeout):
        details.update(stage=error.stage, missing=error.missing)
        return Problem(504, "gateway_timeout", str(error), details)
    if isinstance(error, QueryLimit):
        details.update(limit=error.limit, value=error.value, reached=error.reached)
    if isinstance(error, QueryError):
        return Problem(400, "bad_request", str(error), details)
    return Problem(503, "service_unavailable", str(error), details)
