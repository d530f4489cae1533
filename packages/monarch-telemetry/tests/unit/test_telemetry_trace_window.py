"""Rows of a time window: what began long before it and has not ended is part of it, in as many statements as that needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.perfetto_reader import Trace

from monarch.telemetry._asking import Answer
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._export.window import write_trace
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry.errors import QueryTimeout

pytest.importorskip("perfetto")
MINUTE = 60_000_000
SINCE, UNTIL = 100 * MINUTE, 101 * MINUTE
BIG = 1 << 63


def engine(messages: int) -> OneHost:
    """Each actor has a message of long ago that goes on; and a span that goes on, one that has ended."""
    actors = [{"id": BIG + n, "timestamp_us": 0, "mesh_id": 1, "rank": n, "full_name": f"a{n}"} for n in range(messages)]
    rows: dict[str, list[dict[str, Any]]] = {
        "actors": actors,
        "messages": [
            {"id": BIG + 7 * n, "timestamp_us": 1000 + n, "from_actor_id": 1, "to_actor_id": BIG + n, "endpoint": "train"}
            for n in range(messages)
        ],
        "message_status_events": [
            {"id": n, "timestamp_us": 2000 + n, "message_id": BIG + 7 * n, "status": "active"} for n in range(messages)
        ],
        "spans": [
            {"process_id": 1, "id": n, "name": name, "target": "", "level": "info", "fields_json": "{}", "timestamp_us": n}
            | {"thread_name": "main"}
            for n, name in ((1, "open"), (2, "closed"), (3, "left"))
        ],
        "span_events": [
            {"process_id": 1, "id": n, "timestamp_us": at, "event_type": kind}
            for n, at, kind in ((1, 1, "enter"), (2, 2, "enter"), (2, 3, "exit"), (2, 4, "close"), (3, 3, "enter"), (3, 5, "exit"))
        ],
    }
    return OneHost({name: [pa.RecordBatch.from_pylist(found, schema=TABLES[name].schema())] for name, found in rows.items()})


def test_all_that_goes_on_is_in_the_window(tmp_path: Path) -> None:
    path = tmp_path / "job.pftrace"
    assert write_trace(engine(1200), path, SINCE, UNTIL) == []
    begun = [(event.name, event.us) for event in Trace(path.read_bytes()).events if event.kind == "begin"]
    assert begun.count(("train", SINCE)) == 1200
    assert [name for name, _ in begun if name != "train"] == ["open"]


def test_window_without_what_cannot_be_had_is_stated(tmp_path: Path) -> None:
    class Slow:
        def __init__(self) -> None:
            self.engine = engine(3)

        def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
            if "HAVING bool_or(status" in sql:
                raise QueryTimeout("the time of the query is over\nhint: ask for less")
            return self.engine.ask(sql, limits=limits)

    path = tmp_path / "job.pftrace"
    notes = write_trace(Slow(), path, SINCE, UNTIL)
    assert notes == ["messages that began long before the window are left out: the time of the query is over"]
    assert [event.name for event in Trace(path.read_bytes()).events if event.kind == "begin"] == ["open"]
