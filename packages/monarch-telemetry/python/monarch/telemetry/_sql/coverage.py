"""Who answered a query: JSON in the metadata of the table."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast

KEY = b"coverage"


class Missing(NamedTuple):
    """A host that did not answer."""

    host: str
    reason: str


class Stage(NamedTuple):
    """A level of the tree: 0 is the entry node. `rows` are those that it passed on."""

    name: str
    level: int
    hosts: int
    rows: int
    ms: float


class Coverage(NamedTuple):
    """Of one answer. `rows_scanned` counts rows of tables on the hosts that answered."""

    hosts_asked: int
    hosts_answered: int
    missing: tuple[Missing, ...] = ()
    rows_scanned: int = 0
    truncated: bool = False
    elapsed_ms: float = 0.0
    stages: tuple[Stage, ...] = ()

    def to_json(self) -> str:
        fields = self._asdict()
        fields["missing"] = [missing._asdict() for missing in self.missing]
        fields["stages"] = [stage._asdict() for stage in self.stages]
        return json.dumps(fields)

    @staticmethod
    def from_json(text: str | bytes) -> Coverage:
        fields = cast("dict[str, Any]", json.loads(text))
        fields["missing"] = tuple(Missing(**missing) for missing in fields["missing"])
        fields["stages"] = tuple(Stage(**stage) for stage in fields["stages"])
        return Coverage(**fields)

    def on(self, table: Any) -> Any:
        """The table with this in the metadata of its schema."""
        return table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: self.to_json().encode()})

    @staticmethod
    def of(table: Any) -> Coverage | None:
        metadata: dict[bytes, bytes] = table.schema.metadata or {}
        text = metadata.get(KEY)
        return None if text is None else Coverage.from_json(text)

    def stages_table(self) -> Any:
        """What EXPLAIN ANALYZE answers: a row a stage, the entry node first."""
        from monarch.telemetry._arrow import pa

        stages = sorted(self.stages, key=lambda stage: stage.level)
        columns = {name: [stage[index] for stage in stages] for index, name in enumerate(Stage._fields)}
        kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.float64())
        return pa.table([pa.array(column, kind) for column, kind in zip(columns.values(), kinds, strict=True)], names=list(columns))
