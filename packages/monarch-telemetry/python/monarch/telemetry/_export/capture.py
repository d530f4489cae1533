"""Captures: all tables of a job in one file, for bug reports, with secrets masked; and such a file as tables again.

A capture is a zip archive of one Parquet file a table and a manifest. Parquet compresses by columns, so that the archive stores its
members as they are: a member cannot be larger than the archive, and a table is read without unpacking the others.

A file that is read is not trusted: only the expected names, stored members, digests that agree with the manifest, declared sizes within
limits, and columns of the expected types are read. A column of text is decoded by its dictionary, so that a small file cannot ask for
much memory before its size is counted.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module, metadata
from typing import IO, Any, NamedTuple, cast

from monarch.extension.masking import Masking
from monarch.telemetry._arrow import pa
from monarch.telemetry._asking import Answer
from monarch.telemetry._export import manifest as manifests
from monarch.telemetry._export import time_range
from monarch.telemetry._export.manifest import Manifest, Meta, TableEntry
from monarch.telemetry._export.masked_column import masked_column
from monarch.telemetry._export.whole_file import whole_file
from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry._tables.table import Table
from monarch.telemetry.errors import TelemetryError

_SUFFIX = ".parquet"
# Rows of a row group, which is the part that a reader has in memory while it decodes.
_GROUP_ROWS, _MOST_GROUP_ROWS = 65_536, 1 << 20
_MOST_TABLES = 256
_WHEELS = ("monarch-core", "monarch-telemetry", "pyarrow", "datafusion")
# The earliest time in a zip archive: the same tables give the same bytes of members.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_NO_META = Meta()


class ReadLimits(NamedTuple):
    """Of one capture: bytes of the file, bytes of its tables in memory, and rows of one table."""

    file: int = 4 << 30
    memory: int = 4 << 30
    rows: int = 1 << 28


DEFAULT_LIMITS = ReadLimits()


class Capture(Mapping[str, "list[Any]"]):
    """The batches of each table, and the manifest. `notes` are sentences about what was left out or filled with nulls."""

    def __init__(self, tables: Mapping[str, list[Any]], manifest: Manifest, notes: Sequence[str]) -> None:
        self._tables = dict(tables)
        self.manifest, self.notes = manifest, tuple(notes)

    def __getitem__(self, name: str) -> list[Any]:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def write(
    path: str | os.PathLike[str],
    answers: Mapping[str, Answer] | Iterable[tuple[str, Answer]],
    *,
    meta: Meta = _NO_META,
    masking: Masking | None = None,
    force: bool = False,
) -> Manifest:
    """Writes all columns of each table to one archive, with secrets masked (by default also the values of this process's environment).

    The file appears whole or not at all, readable for its owner only; an existing one is replaced with `force` only. Answers are taken
    one after the other, so that an iterator needs to have one in memory. `TelemetryError` names the file and the cause.
    """
    path = os.fspath(path)
    masking = Masking.of_environment(os.environ) if masking is None else masking
    pairs = cast("Mapping[str, Answer]", answers).items() if isinstance(answers, Mapping) else answers
    # The state of the target is checked before the work, and again when the file replaces it.
    if os.path.isdir(path):
        raise TelemetryError(f"{path} is a directory", hint="give the name of a file in it")
    if not force and os.path.lexists(path):
        raise _exists(path)
    try:
        with whole_file(path, force=force) as file:
            return _write(file, pairs, meta, masking)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise _unwritten(path, error) from None


def _exists(path: str) -> TelemetryError:
    return TelemetryError(f"{path} exists", hint="give another name, or replace it with force")


def _unwritten(path: str, error: OSError) -> TelemetryError:
    return TelemetryError(f"{path} was not written: {(error.strerror or str(error)).lower()}")


class _Member:
    """A member of the archive as pyarrow writes a file: counts and digests on the way."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._digest.update(view)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """The archive flushes when it is closed."""

    def close(self) -> None:
        """The archive closes its members."""

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _write(file: IO[bytes], answers: Iterable[tuple[str, Answer]], meta: Meta, masking: Masking) -> Manifest:
    entries: dict[str, TableEntry] = {}
    times: tuple[int, int] | None = None
    archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)
    try:
        for name, answer in answers:
            if name in entries:
                raise TelemetryError(f"table {name} is there twice")
            table = _columns(name, answer.table)
            with archive.open(zipfile.ZipInfo(name + _SUFFIX, _NO_TIME), "w", force_zip64=True) as stream:
                member = _Member(stream)
                _write_table(member, TABLES[name], table, masking)
            entries[name] = TableEntry(table.num_rows, member.size, member.sha256, _masked(answer.coverage, masking))
            times = time_range.joined(times, time_range.of_batches(name, table.to_batches()))
        first, last = times or (None, None)
        shown = meta._replace(job=masking.text(meta.job))
        manifest = Manifest(time.time_ns() // 1000, _versions(), shown, first, last, entries)
        archive.writestr(zipfile.ZipInfo(manifests.NAME, _NO_TIME), manifest.to_json())
    except BaseException:
        # Otherwise its finaliser writes to a file that is closed by then.
        with suppress(OSError, ValueError):
            archive.close()
        raise
    archive.close()
    return manifest


def _columns(name: str, table: Any) -> Any:
    """The table with its columns in order. `TelemetryError` for another table, or other columns."""
    expected = TABLES.get(name)
    if expected is None or expected.function:
        raise TelemetryError(f"{name} is no stored table", hint="SHOW TABLES lists the names")
    schema = expected.schema()
    for column in table.schema.names:
        if column not in schema.names:
            raise TelemetryError(f"table {name} has no column {column!r}")
    for column in schema.names:
        if table.schema.names.count(column) != 1:
            raise TelemetryError(f"column {column!r} of table {name} is missing, or there twice", hint="a capture has all columns")
    plain = pa.schema([pa.field(field.name, field.type) for field in schema])
    try:
        return table.select(schema.names).cast(plain)
    except pa.ArrowException as error:
        raise TelemetryError(f"columns of table {name} have other types: {error}") from None


def _write_table(sink: _Member, expected: Table, table: Any, masking: Masking) -> None:
    pq: Any = import_module("pyarrow.parquet")
    texts = [column.name for column in expected.columns if column.kind == "text"]
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False) as writer:
        for at in range(0, table.num_rows, _GROUP_ROWS):
            writer.write_table(_masked_rows(expected.name, table.slice(at, _GROUP_ROWS), texts, masking), row_group_size=_GROUP_ROWS)


def _masked_rows(name: str, rows: Any, texts: Sequence[str], masking: Masking) -> Any:
    before = rows
    for column in texts:
        values = before.column(column)
        if name == "pyspy_local_variables" and column == "repr":
            masked = pa.array(_named(before, masking), pa.string())
        else:
            masked = masked_column(masking, values, is_json=column.endswith("_json"))
        if masked is not values:
            rows = rows.set_column(rows.schema.get_field_index(column), column, masked)
    return rows


def _named(rows: Any, masking: Masking) -> list[str | None]:
    """Values of local variables: the name of a variable may mean that its value is a secret."""
    pairs = zip(rows.column("name").to_pylist(), rows.column("repr").to_pylist(), strict=True)
    return [value if value is None or name is None else masking.named(name, value) for name, value in pairs]


def _masked(coverage: Coverage, masking: Masking) -> Coverage:
    return coverage._replace(missing=tuple(one._replace(reason=masking.text(one.reason)) for one in coverage.missing))


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for wheel in _WHEELS:
        with suppress(metadata.PackageNotFoundError):
            found[wheel] = metadata.version(wheel)
    return found


def read(path: str | os.PathLike[str], *, limits: ReadLimits = DEFAULT_LIMITS) -> Capture:
    """The tables of a capture. Columns that this version does not know are left out, those that the file lacks are null; `notes` has both.

    `TelemetryError` names the file, and what makes it no capture or too large.
    """
    path = os.fspath(path)
    try:
        # Without O_NONBLOCK, opening a pipe would block.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise TelemetryError(f"{path} was not read: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode):
        os.close(number)
        raise TelemetryError(f"{path} is no regular file")
    with open(number, "rb") as file:
        if status.st_size > limits.file:
            raise TelemetryError(f"{path} is too large: {status.st_size:,} bytes, the limit is {limits.file:,}")
        try:
            return _read(file, status.st_size, limits)
        except TelemetryError as error:
            lines = str(error).partition("\nhint: ")
            raise TelemetryError(f"{path} is no readable capture: {lines[0]}", hint=lines[2] or None) from None
        except MemoryError:
            raise TelemetryError(f"{path} is no readable capture: it needs more memory than there is") from None
        # The file may contain anything: the errors of the libraries for damaged archives, Parquet files and texts are no closed list.
        except Exception as error:
            raise TelemetryError(f"{path} is no readable capture: {type(error).__name__}: {error}") from error


def _read(file: IO[bytes], size: int, limits: ReadLimits) -> Capture:
    with zipfile.ZipFile(file) as archive:
        members = _members(archive.infolist(), size)
        manifest = Manifest.from_json(archive.read(members.pop(manifests.NAME)))
        if members.keys() != {name + _SUFFIX for name in manifest.tables}:
            odd = sorted(members.keys() ^ {name + _SUFFIX for name in manifest.tables})[0]
            raise TelemetryError(f"{odd} is only in the manifest, or only in the archive")
        tables: dict[str, list[Any]] = {}
        notes: list[str] = []
        budget = _Budget(limits.memory)
        for name, entry in manifest.tables.items():
            expected = TABLES.get(name)
            if expected is None or expected.function:
                notes.append(f"table {name} is left out: this version does not know it")
                continue
            if entry.rows > limits.rows:
                raise TelemetryError(f"table {name} has {entry.rows:,} rows, the limit is {limits.rows:,}")
            data = archive.read(members[name + _SUFFIX])
            if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
                raise TelemetryError(f"table {name} is damaged: its digest is another one than the manifest has")
            tables[name] = _read_table(expected, data, entry.rows, budget, notes)
        return Capture(tables, manifest, notes)


def _members(found: Sequence[zipfile.ZipInfo], size: int) -> dict[str, zipfile.ZipInfo]:
    """The members by their names. `TelemetryError` for names, kinds and sizes that no capture has."""
    members: dict[str, zipfile.ZipInfo] = {}
    total = 0
    for member in found:
        name = member.orig_filename
        table = name.removesuffix(_SUFFIX)
        if name != manifests.NAME and (table == name or manifests.TABLE_NAME.fullmatch(table) is None):
            raise TelemetryError(f"it has a member {name[:80]!r}, which is neither the manifest nor a table")
        if name in members:
            raise TelemetryError(f"it has {name} twice")
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size or member.flag_bits & 1:
            raise TelemetryError(f"its member {name} is compressed or encrypted")
        total += member.file_size
        members[name] = member
    if manifests.NAME not in members:
        raise TelemetryError(f"it has no {manifests.NAME}")
    # Overlapping members would have more bytes than the file.
    if total > size or len(members) > _MOST_TABLES or members[manifests.NAME].file_size > manifests.LONGEST:
        raise TelemetryError("it has more or larger members than a capture can have")
    return members


class _Budget:
    """Counts bytes of tables in memory."""

    def __init__(self, most: int) -> None:
        self._most, self._used = most, 0

    def check(self, size: int) -> None:
        if self._used + size > self._most:
            raise TelemetryError(f"its tables need more than {self._most:,} bytes of memory")

    def take(self, size: int) -> None:
        self.check(size)
        self._used += size


def _read_table(expected: Table, data: bytes, rows: int, budget: _Budget, notes: list[str]) -> list[Any]:
    pq: Any = import_module("pyarrow.parquet")
    schema = expected.schema()
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        found, parts = file.schema_arrow, file.metadata
    _check_columns(expected, found, notes)
    texts = [column.name for column in expected.columns if column.kind == "text" and column.name in found.names]
    with pq.ParquetFile(pa.BufferReader(data), metadata=parts, read_dictionary=texts) as file:
        if parts.num_rows != rows:
            raise TelemetryError(f"table {expected.name} has {parts.num_rows:,} rows, the manifest has {rows:,}")
        groups = [parts.row_group(number) for number in range(parts.num_row_groups)]
        if any(not 0 <= group.num_rows <= _MOST_GROUP_ROWS for group in groups):
            raise TelemetryError(f"table {expected.name} has a row group of more than {_MOST_GROUP_ROWS:,} rows")
        # Null in a column of this version that is missing in the file, even if the schema does not allow it.
        shown = pa.schema([field if field.name in found.names else field.with_nullable(True) for field in schema])
        batches: list[Any] = []
        for number, group in enumerate(groups):
            budget.check(max(group.total_byte_size, 0))
            columns = [_column(file, number, group.num_rows, field, field.name in found.names, budget) for field in schema]
            batch = pa.RecordBatch.from_arrays(columns, schema=shown)
            batch.validate(full=True)
            if batch.num_rows:
                batches.append(batch)
        return batches


def _check_columns(expected: Table, found: Any, notes: list[str]) -> None:
    for name in found.names:
        if found.names.count(name) > 1:
            raise TelemetryError(f"table {expected.name} has two columns {name[:80]!r}")
    for field in expected.schema():
        if field.name not in found.names:
            notes.append(f"column {field.name} of table {expected.name} is null: the capture does not have it")
            continue
        kind = found.field(field.name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if kind != field.type:
            raise TelemetryError(f"column {field.name} of table {expected.name} is {kind}, not {field.type}")
    for name in sorted(set(found.names) - set(expected.schema().names)):
        notes.append(f"column {name[:80]} of table {expected.name} is left out: this version does not know it")


def _column(file: Any, group: int, rows: int, field: Any, is_there: bool, budget: _Budget) -> Any:
    """A column of a row group, one column at a time: what is decoded beyond what is counted stays small."""
    if not is_there:
        return pa.nulls(rows, field.type)
    read = file.read_row_group(group, columns=[field.name], use_threads=False).column(0)
    if len(read) != rows:
        raise TelemetryError(f"a row group has {len(read):,} rows in column {field.name}, not {rows:,}")
    read.validate(full=True)
    if pa.types.is_dictionary(read.type):
        budget.check(sum(_decoded_size(chunk) for chunk in read.chunks))
        read = read.cast(field.type)
    column = pa.concat_arrays(read.chunks) if read.num_chunks else pa.array([], field.type)
    budget.take(column.nbytes)
    return column


def _decoded_size(chunk: Any) -> int:
    """Bytes of a column of text when each row has a copy of its value."""
    pc: Any = import_module("pyarrow.compute")
    lengths = pc.cast(pc.binary_length(chunk.dictionary), pa.int64())
    return (pc.sum(lengths.take(chunk.indices)).as_py() or 0) + 4 * len(chunk)
