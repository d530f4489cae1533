"""The errors of this wheel, by its entry point of the group `monarch.errors`."""

from __future__ import annotations

from monarch.extension import ErrorRow
from monarch.telemetry.errors import PartialAnswer, QueryError, QueryLimit, QueryRejected, QueryTimeout, TelemetryError

ROWS = (
    ErrorRow("telemetry_failed", TelemetryError, "anything below; the base of what `monarch.telemetry` raises", "{what}"),
    ErrorRow("telemetry_query", QueryError, "the statement names what is not there, or is no SQL", "{what}"),
    ErrorRow("telemetry_rejected", QueryRejected, "the statement would do something other than read", "{what}"),
    ErrorRow("telemetry_limit", QueryLimit, "the answer, or what it needs, is larger than a limit of queries", "{what}"),
    ErrorRow("telemetry_timeout", QueryTimeout, "time was up before the hosts had answered", "{what}"),
    ErrorRow("telemetry_partial", PartialAnswer, "hosts did not answer a query that needs all of them", "{what}"),
)
