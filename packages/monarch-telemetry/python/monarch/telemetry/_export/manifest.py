"""The manifest of a capture: its format, what made it, its time range, and its tables with rows, digests and coverage.

The file may have been damaged or made by another user, so each field is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry.errors import TelemetryError

# Incremented if a reader of this version could not read the archive. Added or removed columns and tables do not increment it.
FORMAT = 1
NAME = "manifest.json"
# The most bytes of the manifest.
LONGEST = 4 << 20
TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Meta(NamedTuple):
    """What the caller knows of a capture. `offsets_us` are added to the times of each host to get those of one clock."""

    job: str = ""
    since_us: int | None = None
    until_us: int | None = None
    offsets_us: Mapping[str, int] = {}


class TableEntry(NamedTuple):
    rows: int
    size: int
    sha256: str
    coverage: Coverage


class Manifest(NamedTuple):
    """`first_us` and `last_us` are the times of the first and last row of history, None where there is none."""

    made_us: int
    versions: Mapping[str, str]
    meta: Meta
    first_us: int | None
    last_us: int | None
    tables: Mapping[str, TableEntry]

    def to_json(self) -> bytes:
        fields = {
            "format": FORMAT,
            "made_us": self.made_us,
            "versions": dict(self.versions),
            "job": self.meta.job,
            "since_us": self.meta.since_us,
            "until_us": self.meta.until_us,
            "offsets_us": dict(self.meta.offsets_us),
            "first_us": self.first_us,
            "last_us": self.last_us,
            "tables": {
                name: {"rows": one.rows, "bytes": one.size, "sha256": one.sha256, "coverage": json.loads(one.coverage.to_json())}
                for name, one in self.tables.items()
            },
        }
        return json.dumps(fields, indent=1).encode()

    @staticmethod
    def from_json(data: bytes) -> Manifest:
        """`TelemetryError` names the field that is malformed, or the format of another version."""
        try:
            found: Any = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TelemetryError(f"{NAME} is no JSON: {error}") from None
        fields = _Fields(found, NAME)
        number = fields.whole("format")
        if number != FORMAT:
            hint = "install the version of monarch-telemetry that made it, or a newer one"
            raise TelemetryError(f"the capture has format {number}, this version reads {FORMAT}", hint=hint)
        meta = Meta(fields.text("job"), fields.number("since_us"), fields.number("until_us"), fields.numbers("offsets_us"))
        tables = {name: _entry(_Fields(one, f"{NAME}: {name}")) for name, one in fields.mapping("tables").items() if _named(name)}
        first, last = fields.number("first_us"), fields.number("last_us")
        return Manifest(fields.whole("made_us"), fields.texts("versions"), meta, first, last, tables)


class _Fields:
    """A JSON object whose values are taken by type."""

    def __init__(self, found: Any, where: str) -> None:
        self._where = where
        if not isinstance(found, dict):
            raise TelemetryError(f"{where} is no JSON object")
        self._found = cast("dict[str, Any]", found)

    def _wrong(self, name: str) -> TelemetryError:
        return TelemetryError(f"{self._where}: {name!r} is missing or malformed")

    def whole(self, name: str) -> int:
        found = self.number(name)
        if found is None:
            raise self._wrong(name)
        return found

    def number(self, name: str) -> int | None:
        found = self._found.get(name)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not -(1 << 63) <= found < 1 << 63:
            raise self._wrong(name)
        return found

    def text(self, name: str) -> str:
        found = self._found.get(name)
        if not isinstance(found, str):
            raise self._wrong(name)
        return found

    def mapping(self, name: str) -> dict[str, Any]:
        found = self._found.get(name)
        if not isinstance(found, dict):
            raise self._wrong(name)
        return cast("dict[str, Any]", found)

    def texts(self, name: str) -> dict[str, str]:
        inner = _Fields(self.mapping(name), f"{self._where}: {name}")
        return {one: inner.text(one) for one in inner._found}

    def numbers(self, name: str) -> dict[str, int]:
        inner = _Fields(self.mapping(name), f"{self._where}: {name}")
        return {one: inner.whole(one) for one in inner._found}


def _named(name: str) -> bool:
    if TABLE_NAME.fullmatch(name) is None:
        raise TelemetryError(f"{NAME}: {name[:80]!r} is no name of a table")
    return True


def _entry(fields: _Fields) -> TableEntry:
    rows, size, digest = fields.whole("rows"), fields.whole("bytes"), fields.text("sha256")
    if rows < 0 or size < 0 or _DIGEST.fullmatch(digest) is None:
        raise TelemetryError(f"{NAME}: rows, bytes or sha256 of a table is malformed")
    try:
        coverage = Coverage.from_json(json.dumps(fields.mapping("coverage")))
    except (TypeError, KeyError, ValueError):
        raise TelemetryError(f"{NAME}: the coverage of a table is malformed") from None
    return TableEntry(rows, size, digest, coverage)
