"""Capture archives: what is written is what is read, secrets are masked, files appear whole, and no file does harm to its reader."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch.extension.masking import Masking
from monarch.telemetry import TelemetryError
from monarch.telemetry._asking import Answer
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._export.capture import ReadLimits, read, write
from monarch.telemetry._export.manifest import Meta
from monarch.telemetry._sql.coverage import Coverage, Missing
from monarch.telemetry._tables.catalog import TABLES

STORED = {name: table for name, table in TABLES.items() if not table.function}
COVERAGE = Coverage(3, 2, (Missing("h2", "no answer"),), 100)
NO_VALUES = Masking()
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(max_size=20) | st.sampled_from(["password=abcdef", '{"token": "abcdefgh"}', "https://a:b@c/d"]),
    "u64": st.integers(0, 2**64 - 1),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "i32": st.integers(-(2**31), 2**31 - 1),
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
}


def rows_of(name: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    columns = {one.name: (st.none() | VALUES[one.kind]) if one.nullable else VALUES[one.kind] for one in STORED[name].columns}
    return st.lists(st.fixed_dictionaries(columns), max_size=4)


def answer(name: str, rows: list[dict[str, Any]]) -> Answer:
    return Answer(pa.Table.from_pylist(rows, schema=STORED[name].schema()), COVERAGE)


def event(number: int, **changed: Any) -> dict[str, Any]:
    return {
        "name": f"event {number}",
        "target": "t",
        "level": "info",
        "fields_json": "{}",
        "timestamp_us": 1_000_000 + number,
        "thread_id": 1,
        "thread_name": "main",
        **changed,
    }


EVENTS = answer("events", [event(number) for number in range(20)])
LINES = [f"line {number} of step {number // 7}" for number in range(40)]
FRAMES = answer(
    "pyspy_dumps",
    [
        {"dump_id": f"d{n}", "timestamp_us": n, "pid": n, "binary": "b", "proc_ref": line, "capture_mode": "gil", "warnings_json": "[]"}
        for n, line in enumerate(LINES)
    ],
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "job.capture"
    write(path, {"events": EVENTS, "pyspy_dumps": FRAMES}, masking=NO_VALUES)
    return path.read_bytes()


def refused(path: Path, data: bytes, match: str, limits: ReadLimits | None = None) -> None:
    path.write_bytes(data)
    with pytest.raises(TelemetryError, match=match) as raised:
        read(path, limits=limits or ReadLimits())
    assert str(path) in str(raised.value)


def repacked(data: bytes, change: Callable[[dict[str, bytes]], None], **options: Any) -> bytes:
    """The archive with other members; digests and sizes in the manifest follow the members that it has."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    if "manifest.json" in members:
        manifest = json.loads(members["manifest.json"])
        tables = manifest["tables"]
        for name, entry in tables.items() if isinstance(tables, dict) else ():
            found = members.get(f"{name}.parquet")
            if found is not None and isinstance(entry, dict):
                entry["sha256"], entry["bytes"] = hashlib.sha256(found).hexdigest(), len(found)
        members["manifest.json"] = json.dumps(manifest).encode()
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", **options) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return sink.getvalue()


def parquet(table: Any, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def manifested(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, bytes]], None]:
    def changed(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return changed


@pytest.mark.parametrize("name", STORED)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_table_is_read_as_written_but_masked(name: str, data: st.DataObject, tmp_path: Path) -> None:
    rows = data.draw(rows_of(name))
    path = tmp_path / "job.capture"
    written = write(path, {name: answer(name, rows)}, masking=NO_VALUES, force=True)
    capture = read(path)
    texts = {one.name for one in STORED[name].columns if one.kind == "text"}

    def masked(column: str, value: Any, row: dict[str, Any]) -> Any:
        if column not in texts or value is None:
            return value
        if (name, column) == ("pyspy_local_variables", "repr"):
            return NO_VALUES.named(row["name"], value)
        return NO_VALUES.json(value) if column.endswith("_json") else NO_VALUES.text(value)

    expected = [{column: masked(column, value, row) for column, value in row.items()} for row in rows]
    assert [row for batch in capture[name] for row in batch.to_pylist()] == expected
    assert capture.manifest == written and not capture.notes
    assert [*capture] == [name] and len(capture) == 1
    assert (written.tables[name].rows, written.tables[name].coverage) == (len(rows), COVERAGE)


def test_capture_answers_sql(tmp_path: Path) -> None:
    path = tmp_path / "job.capture"
    write(path, iter({"events": EVENTS}.items()), meta=Meta("job", 5, 9, {"h1": -3}))
    capture = read(path)
    engine = OneHost(capture)
    table = engine.ask("select count(*) as n, max(timestamp_us) as last from events").table
    assert table.to_pylist() == [{"n": 20, "last": 1_000_019}]
    assert engine.ask("select count(*) as n from logs").table.to_pylist() == [{"n": 0}]
    assert capture.manifest.meta == Meta("job", 5, 9, {"h1": -3})
    assert (capture.manifest.first_us, capture.manifest.last_us) == (1_000_000, 1_000_019)
    assert capture.manifest.versions["monarch-telemetry"] and "pyarrow" in capture.manifest.versions


def test_rows_of_several_groups_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "job.capture"
    count = 150_000
    base = EVENTS.table.slice(0, 1)
    table = pa.table({name: pa.array(base.column(name).to_pylist() * count, base.schema.field(name).type) for name in base.schema.names})
    table = table.set_column(4, "timestamp_us", pa.array(range(count), pa.int64()))
    write(path, {"events": Answer(table, COVERAGE)})
    batches = read(path)["events"]
    assert len(batches) == 3
    assert [time for batch in batches for time in batch.column("timestamp_us").to_pylist()] == list(range(count))


def test_answers_of_the_engine_can_be_written(tmp_path: Path) -> None:
    """Their schemas have metadata, and every column is nullable."""
    engine = OneHost({"events": EVENTS.table.to_batches()})
    write(tmp_path / "a", {"events": engine.ask("select * from events where level = 'info'")})
    assert read(tmp_path / "a").manifest.tables["events"].rows == 20


def test_secrets_are_nowhere_in_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = "correct-" + "horse"
    monkeypatch.setenv("DB_PASSWORD", known)
    hidden = "battery-" + "staple"
    texts = [f"password={hidden}", f"x {known} y", f'{{"auth_token": "{hidden}"}}']
    events = answer("events", [event(n, name=text, fields_json=texts[2]) for n, text in enumerate(texts)])
    variables = answer(
        "pyspy_local_variables",
        [{"dump_id": "d", "thread_id": 1, "frame_depth": 0, "name": "password", "addr": 1, "arg": True, "repr": f"'{hidden}'"}],
    )
    path = tmp_path / "job.capture"
    coverage = Coverage(1, 0, (Missing("h", f"https://me:{hidden}@h refused"),))
    tables = {"events": events._replace(coverage=coverage), "pyspy_local_variables": variables}
    write(path, tables, meta=Meta(job=f"token={hidden}"))
    capture = read(path)
    shown = repr([batch.to_pylist() for batches in capture.values() for batch in batches]) + repr(capture.manifest)
    assert hidden not in shown and known not in shown and shown.count("***") >= 6
    assert hidden.encode() not in path.read_bytes() and known.encode() not in path.read_bytes()


def test_archive_is_private_and_the_only_file(tmp_path: Path) -> None:
    path = tmp_path / "job.capture"
    write(path, {"events": EVENTS})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["job.capture"]
    with zipfile.ZipFile(path) as archive:
        assert [one.compress_type for one in archive.infolist()] == [zipfile.ZIP_STORED] * 2
        assert archive.testzip() is None


def test_existing_targets_are_replaced_with_force_only(tmp_path: Path) -> None:
    path = tmp_path / "job.capture"
    path.write_text("mine")
    with pytest.raises(TelemetryError, match=r"exists\nhint: "):
        write(path, {"events": EVENTS})
    assert path.read_text() == "mine"
    write(path, {"events": EVENTS}, force=True)
    assert read(path)["events"]
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(TelemetryError, match="exists"):
        write(tmp_path / "link", {"events": EVENTS})
    for force in (False, True):
        with pytest.raises(TelemetryError, match="is a directory"):
            write(tmp_path, {"events": EVENTS}, force=force)
    with pytest.raises(TelemetryError, match="nowhere/x was not written: no such file"):
        write(tmp_path / "nowhere" / "x", {"events": EVENTS})


def test_concurrently_made_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "job.capture"

    def answers() -> Iterator[tuple[str, Answer]]:
        yield "events", EVENTS
        path.write_text("other")

    with pytest.raises(TelemetryError, match="exists"):
        write(path, answers())
    assert path.read_text() == "other" and os.listdir(tmp_path) == ["job.capture"]


def test_file_system_without_hard_links_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_paths: str, **_more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    write(tmp_path / "a", {"events": EVENTS})
    assert read(tmp_path / "a")["events"]
    with pytest.raises(TelemetryError, match="exists"):
        write(tmp_path / "a", {"events": EVENTS})


@pytest.mark.parametrize("most", [0, 100, 3000])
def test_full_disk_leaves_no_file_and_is_named(tmp_path: Path, most: int) -> None:
    """A limit on the size of files fails a write as a full disk does."""
    path = tmp_path / "job.capture"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(TelemetryError) as raised:
            write(path, {"events": EVENTS, "pyspy_dumps": FRAMES})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(raised.value) == f"{path} was not written: file too large"
    assert os.listdir(tmp_path) == []


def test_error_of_an_answer_leaves_no_file(tmp_path: Path) -> None:
    def answers() -> Iterator[tuple[str, Answer]]:
        yield "events", EVENTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a", answers())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "table", "match"),
    [
        ("nothing", EVENTS.table, "nothing is no stored table"),
        ("live_procs", EVENTS.table, "live_procs is no stored table"),
        ("../x", EVENTS.table, "is no stored table"),
        ("events", EVENTS.table.drop(["level"]), "column 'level' of table events is missing"),
        ("events", EVENTS.table.append_column("more", EVENTS.table.column(0)), "table events has no column 'more'"),
        ("events", EVENTS.table.set_column(4, "timestamp_us", pa.array(["x"] * 20)), "columns of table events have other types"),
    ],
)
def test_other_tables_and_columns_are_not_written(tmp_path: Path, name: str, table: Any, match: str) -> None:
    with pytest.raises(TelemetryError, match=match):
        write(tmp_path / "a", {name: Answer(table, COVERAGE)})
    assert os.listdir(tmp_path) == []


def test_table_is_written_once(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="events is there twice"):
        write(tmp_path / "a", [("events", EVENTS), ("events", EVENTS)])


def test_path_of_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, match in ((tmp_path / "pipe", "no regular file"), (tmp_path, "no regular file"), (tmp_path / "no", "no such file")):
        with pytest.raises(TelemetryError, match=match):
            read(path)
    with pytest.raises(TelemetryError, match="null"):
        read("a\0b")


def test_tables_and_columns_of_other_versions_are_reported(tmp_path: Path, good: bytes) -> None:
    table = EVENTS.table.drop(["level", "line"]).append_column("colour", pa.array(["red"] * 20))

    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["tables"]["dreams"] = manifest["tables"]["events"]
        manifest["another"] = {"field": 1}
        members["manifest.json"] = json.dumps(manifest).encode()
        members["dreams.parquet"] = b"whatever"
        members["events.parquet"] = parquet(table)

    path = tmp_path / "a"
    path.write_bytes(repacked(good, change))
    capture = read(path)
    assert sorted(capture.notes) == [
        "column colour of table events is left out: this version does not know it",
        "column level of table events is null: the capture does not have it",
        "column line of table events is null: the capture does not have it",
        "table dreams is left out: this version does not know it",
    ]
    assert "dreams" not in capture
    assert {(row["level"], row["name"][:5]) for batch in capture["events"] for row in batch.to_pylist()} == {(None, "event")}
    assert OneHost(capture).ask("select count(*) as n from events where level is null").table.to_pylist() == [{"n": 20}]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("../events.parquet", "neither the manifest nor a table"),
        ("/etc/passwd", "neither the manifest nor a table"),
        ("a/b.parquet", "neither the manifest nor a table"),
        ("a\\b.parquet", "neither the manifest nor a table"),
        ("folder/", "neither the manifest nor a table"),
        ("Events.parquet", "neither the manifest nor a table"),
        (".parquet", "neither the manifest nor a table"),
        ("links.parquet", "links.parquet is only in the manifest, or only in the archive"),
    ],
)
def test_other_members_are_refused(tmp_path: Path, good: bytes, name: str, match: str) -> None:
    refused(tmp_path / "a", repacked(good, lambda members: members.update({name: b"x"})), match)
    assert os.listdir(tmp_path) == ["a"]


def test_missing_doubled_and_compressed_members_are_refused(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "a"
    refused(path, repacked(good, lambda members: members.pop("manifest.json") and None), "it has no manifest.json")
    refused(path, repacked(good, lambda members: members.pop("events.parquet") and None), "events.parquet is only in the manifest")
    refused(path, repacked(good, lambda members: None, compression=zipfile.ZIP_DEFLATED), "compressed or encrypted")
    twice = io.BytesIO(good)
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("events.parquet", b"x")
    refused(path, twice.getvalue(), "it has events.parquet twice")


def test_members_that_overlap_are_refused(tmp_path: Path, good: bytes) -> None:
    """Several names of one large member: what a zip bomb without compression is."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        directory = archive.start_dir
    end = good.index(b"PK\x05\x06", directory)
    entries = good[directory:end]
    one = entries[: entries.index(b"PK\x01\x02", 4)]
    assert b"events.parquet" in one
    more = [one.replace(b"events.parquet", b"event%c.parquet" % letter) for letter in range(ord("a"), ord("s"))]
    body = entries + b"".join(more)
    count = (2 + 1 + len(more)).to_bytes(2, "little")
    tail = good[end : end + 8] + count + count + len(body).to_bytes(4, "little") + good[end + 16 :]
    refused(tmp_path / "a", good[:directory] + body + tail, "more or larger members")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda manifest: manifest.update(format=2), "format 2, this version reads 1\nhint: install"),
        (lambda manifest: manifest.update(format="1"), "'format' is missing or malformed"),
        (lambda manifest: manifest.pop("format"), "'format' is missing or malformed"),
        (lambda manifest: manifest.update(tables=[]), "'tables' is missing or malformed"),
        (lambda manifest: manifest["tables"].update({"../x": {}}), "no name of a table"),
        (lambda manifest: manifest["tables"].update(events=3), "events is no JSON object"),
        (lambda manifest: manifest["tables"]["events"].update(rows=-1), "rows, bytes or sha256"),
        (lambda manifest: manifest["tables"]["events"].update(rows=True), "'rows' is missing or malformed"),
        (lambda manifest: manifest["tables"]["events"].update(rows=21), "table events has 20 rows, the manifest has 21"),
        (lambda manifest: manifest["tables"]["events"].update(coverage={"hosts": 1}), "coverage of a table is malformed"),
        (lambda manifest: manifest["tables"]["events"].update(coverage={"missing": 1, "stages": []}), "coverage of a table is malformed"),
        (lambda manifest: manifest.update(offsets_us={"h": "1"}), "'h' is missing or malformed"),
        (lambda manifest: manifest.update(offsets_us={"h": 1 << 63}), "'h' is missing or malformed"),
        (lambda manifest: manifest.update(versions=None), "'versions' is missing or malformed"),
    ],
)
def test_malformed_manifests_are_refused(tmp_path: Path, good: bytes, change: Callable[[dict[str, Any]], None], match: str) -> None:
    refused(tmp_path / "a", repacked(good, manifested(change)), match)


def test_malformed_manifest_is_refused(tmp_path: Path, good: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for body in (b"", b"[" * 100_000, b"\xff\xfe{", b"[]", b'{"format": ' + b"9" * 5000 + b"}"):
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            for name, found in {**members, "manifest.json": body}.items():
                archive.writestr(name, found)
        refused(tmp_path / "a", sink.getvalue(), "manifest.json")


def test_other_types_of_columns_are_refused(tmp_path: Path, good: bytes) -> None:
    nested = pa.array([{"a": 1}] * 20)
    for at, column, values in ((4, "timestamp_us", pa.array([1.5] * 20)), (0, "name", nested), (0, "name", pa.array([b"x"] * 20))):
        table = EVENTS.table.set_column(at, column, values)
        changed = repacked(good, lambda members, table=table: members.update({"events.parquet": parquet(table)}))
        refused(tmp_path / "a", changed, f"column {column} of table events is .*, not ")
    names = [*EVENTS.table.schema.names, "name"]
    doubled = pa.Table.from_arrays([*EVENTS.table.columns, EVENTS.table.column(0)], names=names)
    refused(tmp_path / "a", repacked(good, lambda members: members.update({"events.parquet": parquet(doubled)})), "two columns 'name'")


def test_limits_of_readers(tmp_path: Path, good: bytes) -> None:
    refused(tmp_path / "a", good, "too large: .* the limit is 100", ReadLimits(file=100))
    refused(tmp_path / "a", good, "table events has 20 rows, the limit is 10", ReadLimits(rows=10))
    refused(tmp_path / "a", good, "need more than 1,000 bytes of memory", ReadLimits(memory=1000))


def test_decompression_bomb_is_refused_before_decoding(tmp_path: Path, good: bytes) -> None:
    """One long text on each of 100,000 rows: 100 GB decoded, and some kB in the file."""
    count = 100_000
    columns: Mapping[str, Any] = {
        field.name: pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 1_000_000]))
        if field.name == "name"
        else pa.array([EVENTS.table.column(field.name)[0].as_py()] * count, field.type)
        for field in EVENTS.table.schema
    }
    body = parquet(pa.table(columns), compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert len(body) < 1_000_000

    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["tables"]["events"]["rows"] = count
        members["manifest.json"], members["events.parquet"] = json.dumps(manifest).encode(), body

    bomb = repacked(good, change)
    refused(tmp_path / "a", bomb, "need more than .* bytes of memory", ReadLimits(memory=1 << 30))
    many = parquet(pa.concat_tables([EVENTS.table] * 60_000), compression="zstd", row_group_size=1 << 24)

    def rows(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["tables"]["events"]["rows"] = 1_200_000
        members["manifest.json"], members["events.parquet"] = json.dumps(manifest).encode(), many

    refused(tmp_path / "a", repacked(good, rows), "row group of more than 1,048,576 rows")


def reads_or_refuses(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        capture = read(path, limits=ReadLimits(memory=64 << 20))
        OneHost(capture).ask("select count(*) as n from events")
    except TelemetryError as error:
        assert str(path) in str(error)


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6)
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def damaged(data: bytes, changes: list[tuple[float, int]], length: float) -> bytes:
    found = bytearray(data)
    for at, value in changes:
        found[int(at * len(found))] = value
    return bytes(found[: int(length * len(found)) or 1])


@FUZZ
@given(CHANGES, st.just(1.0) | st.floats(0, 1))
def test_damaged_archives_are_errors_of_telemetry(tmp_path: Path, good: bytes, changes: list[tuple[float, int]], length: float) -> None:
    reads_or_refuses(tmp_path / "a", damaged(good, changes, length))


@FUZZ
@given(CHANGES, st.just(1.0) | st.floats(0, 1))
def test_damaged_tables_are_errors_of_telemetry(tmp_path: Path, good: bytes, changes: list[tuple[float, int]], length: float) -> None:
    """With digests that agree: the damage reaches the reader of Parquet."""
    data = repacked(good, lambda members: members.update({"events.parquet": damaged(members["events.parquet"], changes, length)}))
    reads_or_refuses(tmp_path / "a", data)


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_are_an_error_of_telemetry(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path / "a", data, "is no readable capture")


def test_every_truncation_is_refused(tmp_path: Path, good: bytes) -> None:
    for length in range(0, len(good), max(len(good) // 100, 1)):
        refused(tmp_path / "a", good[:length], "is no readable capture")
