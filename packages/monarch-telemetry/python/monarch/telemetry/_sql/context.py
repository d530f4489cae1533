"""Sessions of datafusion: made for one query over given tables, which are all that can be read. The library's types stay in here.

Fields are nullable in every session: the planner leaves out a column whose values cannot matter, and a column of nulls stands in for it
where rows are shipped; both sides have to see the same schema for that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module, metadata
from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry._sql import functions
from monarch.telemetry._sql.known_parts import KnownParts
from monarch.telemetry._sql.limits import DEFAULT, Limits

# The library logs each step of a plan: hundreds of lines per query, which would be rows of `logs` if a program logs at the level DEBUG. A
# level set by the program has precedence.
_LOGGERS = (
    *("datafusion", "datafusion_catalog", "datafusion_common", "datafusion_common_runtime", "datafusion_datasource"),
    *(
        "datafusion_execution",
        "datafusion_expr",
        "datafusion_functions",
        "datafusion_functions_aggregate",
        "datafusion_functions_nested",
        "datafusion_optimizer",
    ),
    *("datafusion_functions_window", "datafusion_physical_expr", "datafusion_physical_optimizer", "datafusion_physical_plan"),
    *("datafusion_proto", "datafusion_python", "datafusion_session", "datafusion_sql", "sqlparser"),
)
for _logger in map(logging.getLogger, _LOGGERS):
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.WARNING)

# Tables by name: the schema and the rows.
Tables = Mapping[str, tuple[Any, Sequence[Any]]]
PARTITIONS = 2
# The most rows of a batch while a plan runs; larger ones are cut, so that a step over one needs little memory.
_BATCH_ROWS = 32_768
# Batches of fewer bytes than these in all are joined to one.
_JOINED_BYTES = 1 << 20
# The most schemas whose empty batch is kept: creating it costs as much as a table in a session. There are about 60 tables and functions.
_MOST_SCHEMAS = 256
# Functions in FROM that are built into datafusion: only the tables of Monarch are allowed there.
_TABLE_FUNCTIONS = ("range", "generate_series")
# Functions with a value that may exceed the memory: no limit is checked while a value is computed.
_UNBOUNDED = (
    *("repeat", "lpad", "rpad", "array_repeat", "list_repeat", "array_resize", "list_resize"),
    *("range", "gen_series", "generate_series"),
)
# The most bytes of a statement. A chain of more than about 10,000 operators overflows the stack of the parser, which ends the process.
LONGEST_SQL = 16 << 10


@cache
def _library() -> Any:
    """Loaded by the first plan: a process that only asks has workers that plan."""
    return import_module("datafusion")


@lru_cache(maxsize=_MOST_SCHEMAS)
def nullable(schema: Any) -> Any:
    """The schema as sessions have it: every field may be null, and no metadata."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


class Session:
    """Tables, and plans over them. One thread at a time."""

    def __init__(
        self,
        tables: Tables,
        limits: Limits = DEFAULT,
        *,
        information_schema: bool = False,
        show_columns: bool = False,
        known: KnownParts | None = None,
    ) -> None:
        """With `show_columns`, EXPLAIN writes the columns of each node. Tables that are `known` are not made again."""
        library = _library()
        config = library.SessionConfig().with_target_partitions(PARTITIONS).with_information_schema(information_schema)
        config = config.set("datafusion.explain.show_schema", "true") if show_columns else config
        # Without room on disk: a query that needs more memory than its limit ends with an error that names the limit.
        runtime = library.RuntimeEnvBuilder().with_disk_manager_disabled().with_greedy_memory_pool(limits.memory)
        self._context = library.SessionContext(config, runtime)
        self._options = library.SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
        for function in _TABLE_FUNCTIONS:
            self._context.deregister_udtf(function)
        for function in _UNBOUNDED:
            self._context.deregister_udf(function)
        # Calls of table functions in the planned statements, in order.
        self.calls: list[str] = []
        for name, (schema, batches) in tables.items():
            if not functions.is_call(name):
                self._register(name, schema, batches, known)
        for function, given in functions.by_function(tables).items():
            self._context.register_udtf(functions.table_function(function, _providers(given), self.calls))

    def _register(self, name: str, schema: Any, batches: Sequence[Any], known: KnownParts | None) -> None:
        held = None if known is None else known.table(name, batches)
        if held is not None:
            self._context.register_table(name, held)
            return
        self._context.register_record_batches(name, _partitions(nullable(schema), batches))
        if known is not None:
            known.keep(name, batches, self._context.catalog().schema().table(name))

    def hide_sizes(self, names: Sequence[str]) -> None:
        """Makes the number of rows of these tables unknown to the planner, which would answer a count from it.

        A filter that is always true and cannot be computed ahead stands before the table.
        """
        for name in names:
            inner = self._context.sql(f'select * from "{name}" where random() >= 0')
            self._context.deregister_table(name)
            self._context.register_view(name, inner)

    def frame(self, sql: str) -> Any:
        """The planned statement; the library's error where it is wrong, or anything but a question."""
        return self._context.sql_with_options(sql, self._options)

    def scan(self, batches: Sequence[Any], schema: Any, partitions: int = PARTITIONS) -> Any:
        """A plan node that gives these batches."""
        name = "_scan"
        # Many hosts answer with few rows each: each batch on its way to the library costs as much as some hundred rows.
        if len(batches) > 1 and sum(batch.nbytes for batch in batches) < _JOINED_BYTES:
            batches = [pa.concat_batches(batches)]
        self._context.deregister_table(name)
        self._context.register_record_batches(name, _partitions(schema, batches, partitions))
        return self._context.sql(f"select * from {name}").execution_plan()

    def plan(self, data: bytes) -> Any:
        """The physical plan of these bytes; the library's error where they are none."""
        return _library().ExecutionPlan.from_bytes(self._context, data)

    def filtered(self, name: str, batch: Any, condition: Any) -> list[Any]:
        """The rows of a batch, in the place of the table of this name, for which an expression of a logical plan is true."""
        self._context.register_record_batches(name, [[batch]])
        return self._context.table(f'"{name}"').filter(_expression(condition)).collect()

    def run(self, plan: Any) -> Iterator[Any]:
        """The batches of a physical plan, all partitions one after the other."""
        for partition in range(plan.partition_count):
            for batch in self._context.execute(plan, partition):
                yield batch.to_pyarrow()


def _providers(given: Mapping[str | None, tuple[Any, Sequence[Any]]]) -> dict[str | None, Any]:
    """Tables by the mesh, in a context of their own: a table function may not make one while a statement is planned."""
    inner = _library().SessionContext()
    for number, (schema, batches) in enumerate(given.values()):
        inner.register_record_batches(f"rows_{number}", _partitions(nullable(schema), batches))
    schema = inner.catalog().schema()
    return {mesh: schema.table(f"rows_{number}") for number, mesh in enumerate(given)}


def _expression(raw: Any) -> Any:
    """What the library makes of an expression of its own plan."""
    expression: Any = import_module("datafusion.expr").Expr
    return raw if isinstance(raw, expression) else expression(raw)


def either(operator: str, one: Any, other: Any) -> Any:
    """Two expressions of a logical plan with AND or OR between them."""
    return _expression(one) & _expression(other) if operator == "AND" else _expression(one) | _expression(other)


def filter_sql(plan: Any) -> str:
    """A logical plan as SQL; the library's error where it cannot be written."""
    unparser: Any = import_module("datafusion.unparser")
    return unparser.Unparser(unparser.Dialect.default()).plan_to_sql(plan)


def version() -> str:
    """Of datafusion: states and plans are exchanged between equal ones only."""
    return metadata.version("datafusion")


def _partitions(schema: Any, batches: Sequence[Any], partitions: int = PARTITIONS) -> list[list[Any]]:
    """The rows in equal shares; each has a batch, as a table takes its schema from one."""
    cut: list[Any] = []
    for batch in batches:
        plain = pa.RecordBatch.from_arrays(batch.columns, schema=schema) if batch.num_columns else batch
        cut.extend(plain.slice(at, _BATCH_ROWS) for at in range(0, plain.num_rows, _BATCH_ROWS))
    shares = [cut[index::partitions] for index in range(partitions)]
    return [share or [_empty(schema)] for share in shares]


@lru_cache(maxsize=_MOST_SCHEMAS)
def _empty(schema: Any) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
