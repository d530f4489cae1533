"""Which statements are run: those that read our tables. The plan of datafusion decides, before anything is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from monarch.telemetry._sql.context import LONGEST_SQL, Session
from monarch.telemetry._sql.functions import mentioned, refused
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._sql.problems import needs_catalog, query_error, unknown_table
from monarch.telemetry.errors import QueryError, QueryRejected

Kind = Literal["select", "explain", "analyze", "describe", "show"]
ALLOWED = "SELECT, WITH, VALUES, EXPLAIN [ANALYZE], SHOW TABLES, SHOW COLUMNS, DESCRIBE"

# The planning time of a chain of operators grows with the square of its length, without a check of the deadline.
MOST_OPERATORS = 1000
_OPERATOR = re.compile(r"[-+*/%|&^<>=~!]+|::|\b(?:AND|OR|UNION|JOIN|LIKE|INTERSECT|EXCEPT)\b", re.IGNORECASE)

_REFUSED = (
    re.compile(r"(?:DDL|DML|Statement) not supported: ([\w ]+)"),
    re.compile(r"Unsupported SQL statement: (\w+(?: (?:TABLE|VIEW|INDEX|SCHEMA|DATABASE|ROLE|TRANSACTION|FUNCTION)\b)?)", re.IGNORECASE),
    re.compile(r"Query (INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE),
    re.compile(r"(SHOW CREATE TABLE|SHOW \[VARIABLE\]|Nested EXPLAIN)s? (?:is|are) not supported"),
)
_SEVERAL = "only supports a single SQL statement"
_INFORMATION = re.compile(r"\binformation_schema\b", re.IGNORECASE)
# Data of the library other than tables and their columns: settings, functions.
_KEPT = re.compile(r"TableScan: (?:\w+\.)?(information_schema\.(?!(?:tables|columns)\b)\w+)")
_SHOWN = ["table_catalog", "table_schema", "table_name"]
# Space and comments before the first word.
_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_FIRST = re.compile(
    rf"(?:{_SPACE}|[(;])*(?:EXPLAIN{_SPACE}+(?:ANALYZE{_SPACE}+)?(?:VERBOSE{_SPACE}+)?)?([A-Za-z]+)", re.IGNORECASE | re.DOTALL
)
_ANALYZE = re.compile(rf"{_SPACE}*EXPLAIN{_SPACE}+ANALYZE{_SPACE}+(?:VERBOSE{_SPACE}+)?", re.IGNORECASE | re.DOTALL)
# First words of statements with effects; used in the error of a statement that could not be parsed or planned.
_VERBS = frozenset(
    """ALTER ANALYZE ATTACH BEGIN CALL CLOSE COMMENT COMMIT COPY CREATE DEALLOCATE DECLARE DELETE DETACH DISCARD DROP EXECUTE EXPORT FETCH
    FLUSH GRANT INSERT INSTALL KILL LISTEN LOAD LOCK MERGE MSCK NOTIFY OPTIMIZE PRAGMA PREPARE REFRESH RELEASE RENAME REPLACE RESET
    REVOKE ROLLBACK SAVEPOINT SET SHOW START TRUNCATE UNCACHE UNLISTEN UNLOAD UNLOCK UPDATE USE VACUUM""".split()
)
_FILE = re.compile(r"[/\\]|\.(?:csv|tsv|json|jsonl|ndjson|parquet|arrow|avro|txt|gz|zst|db)$", re.IGNORECASE)
_FILE_FUNCTION = re.compile(r"table function '((?:read|scan|from|parquet|csv|json|glob|url|file)[^']*)' not found", re.IGNORECASE)


class Statement(NamedTuple):
    """What was parsed; `frame` is the library's plan, `session` that in which it runs."""

    kind: Kind
    frame: Any
    session: Session


def check(sql: str, schemas: Mapping[str, Any] | None = None) -> None:
    """`QueryRejected` for a statement that is no question, `QueryError` for one that is wrong; nothing is executed.

    `schemas` are the tables there are; without them only statements that name none are right.
    """
    statement(sql, {name: (schema, ()) for name, schema in (schemas or {}).items()})


def statement(sql: str, tables: Mapping[str, tuple[Any, Any]], limits: Limits = DEFAULT) -> Statement:
    """Plans the statement over tables. The errors of `check`."""
    if not reads_catalog(sql):
        return in_session(sql, Session(mentioned(sql, tables), limits), tables, limits)
    stated = in_session(sql, Session(tables, limits, information_schema=True), tables, limits)
    if kept := _KEPT.search(str(stated.frame.logical_plan().display_indent())):
        raise rejected(f"reading {kept[1]}")
    return stated


def reads_catalog(sql: str) -> bool:
    """Whether it may read `information_schema`, which has all tables, named or not. SHOW does so by itself."""
    if _INFORMATION.search(sql) is None:
        return False
    first = _FIRST.match(sql)
    return first is None or first[1].upper() != "SHOW"


def in_session(sql: str, session: Session, tables: Mapping[str, tuple[Any, Any]], limits: Limits = DEFAULT) -> Statement:
    """Plans the statement in a session that has the tables already. The errors of `check`."""
    checked_size(sql)
    try:
        frame = session.frame(sql)
    except Exception as error:
        if wrong := refused(error):
            raise QueryError(wrong) from None
        if needs_catalog(error):
            return _show(sql, tables, limits)
        raise _refusal(error, sql, {name: schema for name, (schema, _) in tables.items()}, limits) from None
    return Statement(_kind(frame), frame, session)


def checked_size(sql: str) -> bool:
    """True. `QueryError` for a statement that is too long to be parsed."""
    try:
        size = len(sql.encode())
    except UnicodeEncodeError as error:
        raise QueryError(f"a statement is Unicode: half of a character stands at place {error.start + 1}") from None
    if size > LONGEST_SQL:
        raise QueryError(f"a statement has at most {LONGEST_SQL:,} bytes")
    if len(_OPERATOR.findall(sql)) > MOST_OPERATORS:
        raise QueryError(f"a statement has at most {MOST_OPERATORS:,} operators", hint="a list is `x IN (1, 2, 3)`")
    return True


def analyzed(sql: str) -> str:
    """The question of an EXPLAIN ANALYZE."""
    found = _ANALYZE.match(sql)
    if found is None:
        raise QueryError("EXPLAIN ANALYZE takes the question itself, and VERBOSE")
    return sql[found.end() :]


def _kind(frame: Any) -> Kind:
    node = str(frame.logical_plan().display())
    kinds: tuple[tuple[str, Kind], ...] = (("Explain", "explain"), ("Analyze", "analyze"), ("DescribeTable", "describe"))
    for name, kind in kinds:
        if node.startswith(name):
            return kind
    return "select"


def _show(sql: str, tables: Mapping[str, tuple[Any, Any]], limits: Limits) -> Statement:
    """SHOW TABLES and SHOW COLUMNS read what datafusion keeps of its settings too: that is there for these statements only."""
    session = Session(tables, limits, information_schema=True)
    try:
        frame = session.frame(sql)
    except Exception as error:
        raise _refusal(error, sql, {name: schema for name, (schema, _) in tables.items()}, limits) from None
    if list(frame.schema().names)[:3] != _SHOWN:
        raise rejected("EXPLAIN of SHOW")
    return Statement("show", frame, session)


def rejected(kind: str) -> QueryRejected:
    """The error for a kind of statement."""
    return QueryRejected(f"{kind}: telemetry is read-only; allowed is one statement of {ALLOWED}")


def _refusal(error: Exception, sql: str, schemas: Mapping[str, Any], limits: Limits) -> QueryError:
    text = str(error)
    if _SEVERAL in text:
        return rejected("several statements")
    first = _FIRST.match(sql)
    verb = first[1].upper() if first and first[1].upper() in _VERBS else None
    for pattern in _REFUSED:
        if found := pattern.search(text):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", found[1]).upper().replace("SHOW [VARIABLE]", "SHOW of a setting")
            return rejected(words if verb is None or verb in words else verb)
    if found := _FILE_FUNCTION.search(text):
        return rejected(f"{found[1]}(), which reads files")
    table = unknown_table(error) or ""
    if "information_schema" in table:
        return rejected(f"reading {table.removeprefix('datafusion.')}")
    if _FILE.search(table):
        return rejected(f"a file as a table ({table!r})")
    if verb is not None:
        return rejected(verb)
    return query_error(error, sql, schemas, limits)
