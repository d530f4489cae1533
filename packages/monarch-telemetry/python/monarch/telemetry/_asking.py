"""What can be asked, and what an answer is: what the HTTP application, the commands and the agents' interface need of an engine."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry._sql.limits import DEFAULT, Limits


class Answer(NamedTuple):
    """`table` is a `pyarrow.Table`, with the coverage in the metadata of its schema too."""

    table: Any
    coverage: Coverage


class Asking(Protocol):
    """Answers statements. Any thread."""

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        """`QueryError` and its kinds; `PartialAnswer` with `require_all` where a host is missing. `timeout` is in seconds."""
        ...
