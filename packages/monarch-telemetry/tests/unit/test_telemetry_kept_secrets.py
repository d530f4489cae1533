"""Lines and errors that a collector keeps: secrets are masked by their form, and values of the environment wherever they stand."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from monarch.telemetry._collector.keeping import Secrets
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.events import EVENTS, SPANS
from monarch.telemetry._tables.facts import FAILURES, LOGS

PW = "hun" + "ter2-x9"
ENVIRON = {"HUB_TOKEN": PW, "MULTI_SECRET": "first line\nsecond (line) é", "PLACE": "in the cellar", "SHORT_TOKEN": "abc"}
TOKEN = "aB3_" * 11


def batch(table: Any, *rows: dict[str, Any]) -> Any:
    empty = {"string": "", "uint64": 0, "int64": 0, "bool": False}
    full = [{field.name: None if field.nullable else empty.get(str(field.type), 0) for field in table.schema()} | row for row in rows]
    return pa.RecordBatch.from_pylist(full, schema=table.schema())


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (f"the token is {PW}", "the token is ***"),
        ("got first line\nsecond (line) é here", "got *** here"),
        (f"api_key={PW[::-1]}abc", "api_key=***"),
        ("at http://127.0.0.1:8265/#" + TOKEN, "at http://127.0.0.1:8265/#***"),
        ("step 12 tokens/s: 81234 max_tokens=4096", "step 12 tokens/s: 81234 max_tokens=4096"),
        ("abc is in the cellar", "abc is in the cellar"),
        ("see http://example.com/#installation", "see http://example.com/#installation"),
    ],
)
def test_lines_are_kept_without_secrets(line: str, kept: str) -> None:
    given = batch(LOGS, {"line": "before"}, {"line": line}, {"line": "after"})
    found = Secrets(ENVIRON).masked("logs", given)
    assert found.column("line").to_pylist() == ["before", kept, "after"]
    assert found.schema.equals(given.schema) and (found is given) == (line == kept)


def test_errors_are_stored_without_secrets() -> None:
    secrets = Secrets(ENVIRON)
    row = {"message": f"password='{PW}'", "traceback": f"File x\nlogin({PW})", "last_lines": None}
    (found,) = secrets.masked("failures", batch(FAILURES, row)).to_pylist()
    assert (found["message"], found["traceback"], found["last_lines"]) == ("password='***'", "File x\nlogin(***)", None)
    given = batch(LOGS, {"line": PW})
    assert secrets.masked("counters", given) is given


def test_event_and_span_fields_are_stored_without_secrets() -> None:
    fields = json.dumps({"url": f"redis://:{PW[:5]}@h/0", "api_key": "k", "n": 3, "note": PW})
    clean = {"url": "redis://:***@h/0", "api_key": "***", "n": 3, "note": "***"}
    for table in (EVENTS, SPANS):
        (found,) = Secrets(ENVIRON).masked(table.name, batch(table, {"fields_json": fields})).to_pylist()
        assert json.loads(found["fields_json"]) == clean
        given = batch(table, {"fields_json": '{"n": 3}'})
        assert Secrets(ENVIRON).masked(table.name, given) is given


def test_store_and_its_listeners_get_masked_rows() -> None:
    store = Store({"logs": LOGS.schema()}, {}, clock=lambda: 0.0, clean=Secrets(ENVIRON).masked)
    heard: list[Any] = []
    store.listener = lambda table, new: heard.append(new)
    store.append("logs", batch(LOGS, {"line": PW}))
    (kept,) = store.snapshot(["logs"])["logs"]
    assert kept.column("line").to_pylist() == ["***"] and heard[0].column("line").to_pylist() == ["***"]
