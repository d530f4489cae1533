"""The exceptions of telemetry. They are raised to the caller of telemetry and never fail the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch.actor import MonarchError


class TelemetryError(MonarchError, RuntimeError):
    """The base of what `monarch.telemetry` raises."""

    __module__ = "monarch.telemetry"
    _default_code = "telemetry_failed"

    def __init__(self, text: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{text}\nhint: {hint}" if hint else text, code=code, hint=hint)


class QueryError(TelemetryError):
    """The statement is wrong; the text has the line and column, and the nearest name where one is not known."""

    __module__ = "monarch.telemetry"
    _default_code = "telemetry_query"


class QueryRejected(QueryError):
    """The statement is no question: only statements that read are run."""

    __module__ = "monarch.telemetry"
    _default_code = "telemetry_rejected"


class QueryLimit(QueryError):
    """An answer is larger than its limit. `limit` names it, `value` is its number, `reached` what was needed at least."""

    __module__ = "monarch.telemetry"
    _default_code = "telemetry_limit"

    def __init__(self, limit: str, value: int, reached: int, *, hint: str | None = None) -> None:
        super().__init__(f"the answer is too large: {limit} {reached:,}, the limit is {value:,}", hint=hint)
        self.limit, self.value, self.reached = limit, value, reached


class QueryTimeout(QueryError, TimeoutError):
    """The time was over. `missing` has the hosts that had not answered, `stage` what was under way."""

    __module__ = "monarch.telemetry"
    _default_code = "telemetry_timeout"

    def __init__(self, text: str, *, stage: str = "", missing: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(text, hint=hint)
        self.stage, self.missing = stage, list(missing)


class PartialAnswer(QueryError):
    """Hosts are missing from an answer that was to have all of them. `table` is what the others answered, `missing` has reasons by host."""

    __module__ = "monarch.telemetry"
    _default_code = "telemetry_partial"

    def __init__(self, missing: dict[str, str], *, table: Any = None) -> None:
        lines = "".join(f"\n  {host}: {reason}" for host, reason in missing.items())
        super().__init__(f"{len(missing)} host{'s' if len(missing) != 1 else ''} did not answer{lines}")
        self.missing, self.table = dict(missing), table
