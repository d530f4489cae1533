"""How a question is answered by many hosts: planned once, a part on each host, parts merged on the way, finished at the entry node.

The ways are `local` (no table is read), `states` (partial aggregates, and rows beside them), `rows` (filtered and projected rows, the
first ones only below a limit) and `ship` (the needed columns of each table; the statement runs at the entry node). Every function is
pure. The result equals that of the statement over the rows of all hosts.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from monarch.telemetry._arrow import pa
from monarch.telemetry._sql import cuts as cutting
from monarch.telemetry._sql import functions, gate
from monarch.telemetry._sql.context import Session, Tables, filter_sql, nullable
from monarch.telemetry._sql.cuts import Cut, NoCut
from monarch.telemetry._sql.expansion import check as check_expansion
from monarch.telemetry._sql.expected import columns_of
from monarch.telemetry._sql.growth import may_grow
from monarch.telemetry._sql.known_parts import CLOCK, KnownParts
from monarch.telemetry._sql.limits import DEFAULT, Count, Limits
from monarch.telemetry._sql.plan_bytes import UnknownPlan, partial_reduce, replaced
from monarch.telemetry._sql.problems import PlanMismatch, query_error
from monarch.telemetry._sql.pruning import VOLATILE, without
from monarch.telemetry._sql.wire import by_stream, marked
from monarch.telemetry.errors import QueryError

Way = Literal["local", "states", "rows", "ship"]
Clock = Callable[[], float]

_SCAN = re.compile(r"TableScan: (\S+?)(?: |$)(?:projection=\[([^\]]*)\])?", re.MULTILINE)
# Seconds of processor time: a statement with a longer planning time is not planned on hosts. Long statements of this wheel need a tenth of
# it.
_HOST_PLANS = 0.1


class Fragment(NamedTuple):
    """What is shipped of a table: a statement, and its columns."""

    table: str
    sql: str
    columns: tuple[str, ...]


class Plan(NamedTuple):
    """Made at the entry node; every host has the same schemas."""

    sql: str
    kind: gate.Kind
    way: Way
    schemas: Mapping[str, Any]
    cuts: tuple[Cut, ...] = ()
    shape: str = ""
    # Tables whose number of rows must be hidden from the planner.
    hidden: tuple[str, ...] = ()
    fragments: tuple[Fragment, ...] = ()
    # Tables and calls of table functions that the plan reads.
    reads: tuple[str, ...] = ()
    # The columns of batches of the cuts, see `expected`.
    columns: tuple[str, ...] = ()
    # The numbers of hosts without a row for it, see `pruning`; hosts do not get them.
    without: tuple[int, ...] = ()

    def to_json(self) -> str:
        """For the hosts; without the schemas, which they have."""
        return json.dumps({name: value for name, value in self._asdict().items() if name != "schemas"})

    @staticmethod
    def from_json(text: str | bytes, schemas: Mapping[str, Any]) -> Plan:
        """`QueryError` for a text that is no plan."""
        try:
            fields = cast("dict[str, Any]", json.loads(text))
            fields["cuts"] = tuple(
                Cut(tuple(node), tuple(run), None if final is None else tuple(final)) for node, run, final in fields["cuts"]
            )
            fields["fragments"] = tuple(Fragment(table, sql, tuple(columns)) for table, sql, columns in fields["fragments"])
            fields |= {name: tuple(fields[name]) for name in ("hidden", "reads", "columns", "without")}
            return Plan(**fields, schemas=schemas)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise QueryError(f"this is no plan of a query: {error}") from None


class Prepared(NamedTuple):
    """A planned part. `nodes` are what runs for each cut; None where they run only once, and the statement is planned again."""

    session: Session
    frame: Any
    nodes: tuple[Any, ...] | None


def make(
    sql: str, schemas: Mapping[str, Any], *, limits: Limits = DEFAULT, cut: bool = True, hosts: Mapping[int, str] | None = None
) -> Plan:
    """Plans the statement once, for `hosts`: names by number. `QueryRejected` and `QueryError` as of the gate.

    `cut=False` ships rows whatever the statement. Columns are shipped, and no host plans or runs the statement, where its values may
    grow or its plan is far larger than its text.
    """
    gate.checked_size(sql)
    check_expansion(sql)
    stated = gate.statement(sql, _none(schemas), limits)
    if stated.kind == "analyze":
        return make(gate.analyzed(sql), schemas, limits=limits, cut=cut, hosts=hosts)._replace(kind="analyze")
    if stated.kind != "select":
        return Plan(sql, stated.kind, "local", schemas)
    try:
        logical = stated.frame.optimized_logical_plan()
        text = str(logical.display_indent())
        scanned = _SCAN.findall(text)
        calls = tuple(sorted(set(stated.session.calls)))
        reads = (*sorted({name for name, _ in scanned if name in schemas and not functions.is_call(name)}), *calls)
        if not reads:
            return Plan(sql, "select", "local", schemas)
        pruned = without(logical, len(scanned), schemas, hosts) if hosts and not may_grow(sql) else ()
        if cut and "Values:" not in text and not may_grow(sql) and not gate.reads_catalog(sql):
            found = _cut(stated, logical, sql, schemas, limits)
            if found is not None:
                columns = columns_of(_session_of(found.hidden, sql, schemas, limits, show_columns=True), sql, found.cuts)
                if all(columns):
                    return found._replace(reads=reads, columns=columns, without=pruned)
        whole = [Fragment(call, f"SELECT * FROM {call}", tuple(schemas[f"{functions.parsed(call)[0]}()"].names)) for call in calls]
        fragments = (*_fragments(logical, scanned, schemas, limits), *whole)
        return Plan(sql, "select", "ship", schemas, fragments=fragments, reads=reads, without=pruned)
    except QueryError:
        raise
    except Exception as error:
        raise query_error(error, sql, schemas, limits) from None


def part(
    plan: Plan,
    tables: Tables,
    *,
    limits: Limits = DEFAULT,
    deadline: float | None = None,
    clock: Clock = time.monotonic,
    known: KnownParts | None = None,
) -> list[Any]:
    """What a host runs over its tables: the batches of every cut or table, marked with it. It ships at most `limits.memory` bytes.

    The plans of `known` are used, and that of this part is known afterwards. `deadline` is a time of `clock`, looked at between
    batches. `PlanMismatch` where this host's plan has another form.
    """
    count = Count(None, limits.memory, name="shipped bytes", deadline=deadline, clock=clock)
    own = {name: tables.get(name, (schema, ())) for name, schema in plan.schemas.items()}
    own |= {call: tables[call] for call in plan.reads if functions.is_call(call) and call in tables}
    if plan.way == "local":
        return []
    if plan.way == "ship":
        return [batch for fragment in plan.fragments for batch in _shipped(fragment, own, plan, limits, count)]
    if plan.hidden and not any(batch.num_rows for name in plan.hidden for batch in own[name][1]):
        # An aggregate without rows adds nothing; the planner would answer it from the size of the table.
        return []
    asked = (plan.sql, plan.shape, plan.cuts, plan.hidden, limits.memory)
    rows = {name: own[name][1] for name in plan.reads if name in own}
    found: Prepared | None = None if known is None else known.take(asked, rows)
    try:
        prepared = _prepared(plan, own, limits, known) if found is None else found
        nodes = prepared.nodes or _nodes(plan, prepared.frame)
        batches = [batch for index, node in enumerate(nodes) for batch in _counted(prepared.session.run(node), count, str(index))]
    except QueryError:
        raise
    except Exception as error:
        raise query_error(error, plan.sql, plan.schemas, limits) from None
    if known is not None and (found is not None or not CLOCK.search(plan.sql)):
        known.give(asked, rows, prepared)
    return batches


def _prepared(plan: Plan, tables: Tables, limits: Limits, known: KnownParts | None) -> Prepared:
    session = _session(plan, tables, limits, known)
    stated = gate.in_session(plan.sql, session, tables, limits)
    if stated.kind != "select":
        raise gate.rejected(stated.kind.upper())
    nodes = _nodes(plan, stated.frame)
    return Prepared(session, stated.frame, nodes if all(map(cutting.runs_again, nodes)) else None)


def _nodes(plan: Plan, frame: Any) -> tuple[Any, ...]:
    """What a host runs for each cut."""
    physical = frame.execution_plan()
    if cutting.shape(physical) != plan.shape:
        raise PlanMismatch("the plan of a host has another form than that of the entry node")
    return tuple(cutting.at(physical, cut.run) for cut in plan.cuts)


def merge(plan: Plan, parts: Sequence[Sequence[Any]], *, limits: Limits = DEFAULT) -> list[Any]:
    """Parts of several hosts as one part: states are merged into states, limits applied again, other rows joined."""
    batches = [batch for each in parts for batch in each]
    if len(parts) < 2 or plan.way in {"local", "ship"}:
        return batches
    streams = by_stream(batches)
    session, frame = _skeleton(plan, limits)
    physical = frame.execution_plan()
    merged: list[Any] = []
    for index, cut in enumerate(plan.cuts):
        mine = streams.get(str(index), [])
        try:
            reduced = list(session.run(session.plan(reducer))) if mine and (reducer := _reducer(session, physical, cut, mine)) else mine
        except UnknownPlan:
            reduced = mine
        except Exception as error:
            raise query_error(error, plan.sql, plan.schemas, limits) from None
        merged.extend(marked(batch.replace_schema_metadata(None), str(index)) for batch in reduced)
    return merged


def finish(
    plan: Plan, parts: Sequence[Sequence[Any]], *, limits: Limits = DEFAULT, deadline: float | None = None, clock: Clock = time.monotonic
) -> Any:
    """The answer at the entry node, of the parts of its hosts. `QueryLimit` beyond rows, bytes or memory."""
    count = Count(limits.rows, limits.bytes, deadline=deadline, clock=clock)
    batches = list(stream(plan, parts, limits=limits, count=count))
    return pa.Table.from_batches(batches[1:], schema=batches[0].schema)


def stream(plan: Plan, parts: Sequence[Sequence[Any]], *, limits: Limits = DEFAULT, count: Count | None = None) -> Iterator[Any]:
    """The batches of the answer, after an empty one that has its schema."""
    streams = by_stream([batch for each in parts for batch in each])
    try:
        first = True
        for batch in _answer(plan, streams, limits):
            if first:
                yield batch.slice(0, 0)
                first = False
            if count is not None:
                count.add(batch)
            yield batch
    except QueryError:
        raise
    except Exception as error:
        raise query_error(error, plan.sql, plan.schemas, limits) from None


def _answer(plan: Plan, streams: Mapping[str, list[Any]], limits: Limits) -> Iterator[Any]:
    """At least one batch, an empty one if need be."""
    if plan.way in {"states", "rows"} and streams:
        session, frame = _skeleton(plan, limits)
        physical = frame.execution_plan()
        data = physical.to_bytes()
        for index, cut in enumerate(plan.cuts):
            if batches := streams.get(str(index)):
                scan = session.scan(batches, batches[0].schema)
                data = replaced(data, cutting.at(physical, cut.node).to_bytes(), scan.to_bytes())
        yield from _or_empty(session.run(session.plan(data)), frame)
        return
    stated = gate.statement(plan.sql, _received(plan, streams), limits)
    rows = _or_empty(_rows(stated), stated.frame)
    if stated.kind == "show":
        rows = (
            batch.filter(pa.array([name != "information_schema" for name in batch.column(1).to_pylist()], pa.bool_())) for batch in rows
        )
    yield from rows


def _rows(stated: gate.Statement) -> Iterator[Any]:
    """The rows of a planned statement."""
    return stated.session.run(stated.frame.execution_plan())


def _or_empty(batches: Iterator[Any], frame: Any) -> Iterator[Any]:
    none = True
    for batch in batches:
        none = False
        yield batch
    if none:
        schema = frame.schema()
        yield pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _received(plan: Plan, streams: Mapping[str, list[Any]]) -> dict[str, tuple[Any, list[Any]]]:
    """The tables of the entry node: what was shipped, and nulls in the columns that are not needed."""
    tables: dict[str, tuple[Any, list[Any]]] = {}
    for name, schema in plan.schemas.items():
        tables[name] = (schema, [_widened(batch, nullable(schema)) for batch in streams.get(name, [])])
    for call in filter(functions.is_call, plan.reads):
        schema = plan.schemas[functions.key(functions.parsed(call)[0])]
        tables[call] = (schema, [_widened(batch, nullable(schema)) for batch in streams.get(call, [])])
    return tables


def _widened(batch: Any, schema: Any) -> Any:
    have = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in have else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _none(schemas: Mapping[str, Any]) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    return {name: (schema, ()) for name, schema in schemas.items()}


def _session(plan: Plan, tables: Tables, limits: Limits, known: KnownParts | None) -> Session:
    session = Session(functions.mentioned(plan.sql, tables), limits, known=known)
    session.hide_sizes(plan.hidden)
    return session


def _skeleton(plan: Plan, limits: Limits) -> tuple[Session, Any]:
    """The statement planned without rows of hosts."""
    return _planned(plan.sql, plan.schemas, plan.hidden, limits)


def _planned(sql: str, schemas: Mapping[str, Any], hidden: Sequence[str], limits: Limits) -> tuple[Session, Any]:
    session = _session_of(hidden, sql, schemas, limits)
    return session, session.frame(sql)


def _session_of(hidden: Sequence[str], sql: str, schemas: Mapping[str, Any], limits: Limits, *, show_columns: bool = False) -> Session:
    """A session with the tables of a statement, and without rows of hosts."""
    tables: dict[str, tuple[Any, Sequence[Any]]] = dict(_none(schemas))
    for name in hidden:
        # One row of nulls: the planner knows the answer of an empty table, hidden or not.
        tables[name] = (
            schemas[name],
            [pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in schemas[name]], schema=nullable(schemas[name]))] * 2,
        )
    session = Session(functions.mentioned(sql, tables), limits, show_columns=show_columns)
    session.hide_sizes(hidden)
    return session


def _counted(batches: Iterator[Any], count: Count, stream_name: str) -> Iterator[Any]:
    for batch in batches:
        count.add(batch)
        yield marked(batch, stream_name)
    count.look()


def _shipped(fragment: Fragment, tables: Tables, plan: Plan, limits: Limits, count: Count) -> Iterator[Any]:
    stated = gate.statement(fragment.sql, tables, limits)
    if stated.kind != "select":
        raise gate.rejected(stated.kind.upper())
    try:
        yield from _counted(_rows(stated), count, fragment.table)
    except QueryError:
        raise
    except Exception as error:
        raise query_error(error, plan.sql, plan.schemas, limits) from None


def _reducer(session: Session, physical: Any, cut: Cut, batches: list[Any]) -> bytes | None:
    """The plan that makes these batches of a cut fewer; None where nothing does."""
    # One partition: a group in two partitions would remain two rows.
    scan = session.scan(batches, batches[0].schema, 1).to_bytes()
    if cut.final is None:
        if cut.run == cut.node:
            return None
        return replaced(cutting.at(physical, cut.run).to_bytes(), cutting.at(physical, cut.node).to_bytes(), scan)
    final, partial = cutting.at(physical, cut.final), cutting.at(physical, cut.node).to_bytes()
    data = partial_reduce(replaced(final.to_bytes(), final.children()[0].to_bytes(), scan), partial)
    if not cutting.line(session.plan(data)).startswith("AggregateExec: mode=PartialReduce"):
        raise UnknownPlan("the mode of an aggregate has another number")
    return data


def _cut(stated: gate.Statement, logical: Any, sql: str, schemas: Mapping[str, Any], limits: Limits) -> Plan | None:
    """The plan with cuts; None where rows have to be shipped."""
    aggregates = list(_aggregates(logical))
    if any(functions is None for functions in aggregates):
        return None
    merged = all(cutting.mergeable(functions) for functions in aggregates if functions is not None)
    hidden: tuple[str, ...] = ()
    physical = stated.frame.execution_plan()
    if "PlaceholderRowExec" in str(physical.display_indent()):
        if stated.session.calls:
            return None
        # The planner has answered from the size of the empty table.
        hidden = tuple(sorted({name for name, _ in _SCAN.findall(str(logical.display_indent())) if name in schemas}))
        _, frame = _planned(sql, schemas, hidden, limits)
        physical = frame.execution_plan()
    try:
        found = cutting.cuts(physical)
    except NoCut:
        return None
    states = [cut for cut in found if cut.final is not None]
    if (
        not found
        or (states and not merged)
        or (hidden and (len(found) != 1 or "gby=[]" not in cutting.line(cutting.at(physical, found[0].node))))
    ):
        return None
    plan = Plan(sql, "select", "states" if states else "rows", schemas, found, cutting.shape(physical), hidden)
    return plan if _can_be_edited(plan, limits) else None


def _can_be_edited(plan: Plan, limits: Limits) -> bool:
    """Whether hosts can plan the statement too, and the library reads its own plan back with scans in place of the cuts."""
    try:
        began = time.process_time()
        session, frame = _skeleton(plan, limits)
        physical = frame.execution_plan()
        data = physical.to_bytes()
        for cut in plan.cuts:
            node = cutting.at(physical, cut.node)
            data = replaced(data, node.to_bytes(), node.to_bytes())
        return cutting.shape(session.plan(data)) == plan.shape and time.process_time() - began <= _HOST_PLANS
    except Exception:
        return False


def _aggregates(logical: Any) -> Iterator[set[str] | None]:
    """The functions of each aggregate below; None for one that is not known."""
    if str(logical.display()).startswith("Aggregate: "):
        node = logical.to_variant()
        try:
            yield {str(node.agg_func_name(expression)).lower() for expression in node.aggregate_exprs()}
        except Exception:
            yield None
    for inner in logical.inputs():
        yield from _aggregates(inner)


def _fragments(logical: Any, scanned: list[tuple[str, str]], schemas: Mapping[str, Any], limits: Limits) -> Iterator[Fragment]:
    filters = dict(_filters(logical))
    for table in sorted({name for name, _ in scanned}):
        if table not in schemas or functions.is_call(table):
            continue
        known, wanted = schemas[table].names, set[str]()
        for columns in (columns for name, columns in scanned if name == table):
            names = [column.strip() for column in columns.split(",") if column.strip()]
            wanted |= set(names) if names and set(names) <= set(known) else set(known[:1]) if not names else set(known)
        columns = tuple(column for column in known if column in wanted)
        listed = ", ".join('"' + column.replace('"', '""') + '"' for column in columns)
        plain = f'SELECT {listed} FROM "{table}"'
        once = sum(name == table for name, _ in scanned) == 1
        where = filters.get(table, "") if once else ""
        if may_grow(plain + where):
            where = ""
        yield Fragment(table, _if_planned(plain + where, plain, schemas, limits) if where else plain, columns)


def _filters(logical: Any) -> Iterator[tuple[str, str]]:
    """For each scan with a filter upon it: the table, and the filter as SQL."""
    inputs = logical.inputs()
    if str(logical.display()).startswith("Filter: ") and len(inputs) == 1 and str(inputs[0].display()).startswith("TableScan: "):
        scan, text = inputs[0].to_variant(), str(logical.display())
        if scan.fetch() is None and "subquery" not in text.lower() and not VOLATILE.search(text):
            try:
                written = filter_sql(logical)
            except Exception:
                written = ""
            head, where, condition = written.partition(f" FROM {scan.table_name()} WHERE ")
            if head.startswith("SELECT ") and where:
                yield str(scan.table_name()), f" WHERE {condition}"
    for inner in inputs:
        yield from _filters(inner)


def _if_planned(sql: str, otherwise: str, schemas: Mapping[str, Any], limits: Limits) -> str:
    try:
        began = time.process_time()
        gate.statement(sql, _none(schemas), limits).frame.execution_plan()
        return sql if time.process_time() - began <= _HOST_PLANS else otherwise
    except Exception:
        return otherwise
