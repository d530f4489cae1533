"""Secrets in what programs print and raise: masked before a row is kept, so that no answer, export or capture has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch.extension.masking import Masking
from monarch.telemetry._export.masked_column import masked_column

# Columns of free text, by table.
_COLUMNS = {
    "logs": ("line",),
    "failures": ("message", "traceback", "last_lines"),
    "actor_failures": ("failure_error_message",),
    "actor_status_events": ("reason",),
}
# Columns of JSON, whose names are chosen by the program.
_JSON = {"events": ("fields_json",), "spans": ("fields_json",)}


class Secrets:
    """Those found by their form, and values of the secret variables of `environ`, which is that of the host."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._masking = Masking.of_environment(environ)

    def masked(self, table: str, batch: Any) -> Any:
        """The batch of a table without secrets; the same object where it has none."""
        for name in (*_COLUMNS.get(table, ()), *_JSON.get(table, ())):
            column = batch.column(name)
            clean = masked_column(self._masking, column, is_json=table in _JSON)
            if clean is not column:
                at = batch.schema.get_field_index(name)
                batch = batch.set_column(at, batch.schema.field(at), clean)
        return batch
