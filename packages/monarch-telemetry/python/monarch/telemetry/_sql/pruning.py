"""The hosts without a row for a statement: all their rows have the name or the number of the host, and its conditions exclude these.

The optimizer of datafusion moves conditions to scans, where that changes no result: through views, windows of groups and equalities of
joins. Each scan below a condition counts; the parts of AND and OR that need another column count as true, which only adds hosts. The
library itself evaluates the rest, over the names and numbers of all hosts. A condition of an unknown form excludes no host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry._sql.context import Session, either

# The key in the metadata of a column whose values are all those of the host of their collector, and the two columns there are.
OF_HOST, NAME, NUMBER = b"of_host", b"name", b"number"
# The column of the number of the host, beside those of a table.
_OF = "_of_host"
_NONE: Mapping[bytes, bytes] = {}
# Functions that have another value for each row.
VOLATILE = re.compile(r"\b(?:random|rand|uuid)\(", re.IGNORECASE)


def without(logical: Any, scans: int, schemas: Mapping[str, Any], hosts: Mapping[int, str]) -> tuple[int, ...]:
    """Those of `hosts`, names by number, that have no row for an optimized plan with so many scans."""
    found = list(_scans(logical, None))
    # The scans of a subquery in an expression are no inputs of a node.
    if len(found) != scans:
        return ()
    left = dict(hosts)
    for table, condition in found:
        known: dict[str, bytes] = {field.name: of for field in schemas.get(table, ()) if (of := (field.metadata or _NONE).get(OF_HOST))}
        weaker = None if condition is None or not known else _weaker(condition, known.keys())
        if weaker is None or not left:
            return ()
        for number in _numbers(table, weaker, known, left):
            del left[number]
    return tuple(sorted(left))


def _numbers(table: str, condition: Any, known: Mapping[str, bytes], hosts: Mapping[int, str]) -> list[int]:
    names, numbers = pa.array(hosts.values(), pa.string()), pa.array(hosts, pa.uint64())
    columns = {name: names if of == NAME else numbers for name, of in known.items()}
    batch = pa.RecordBatch.from_pydict({**columns, _OF: numbers})
    return [number for found in Session({}).filtered(table, batch, condition) for number in found.column(_OF).to_pylist()]


def _scans(node: Any, above: Any) -> Iterator[tuple[str, Any]]:
    """Each scan: its table, and the condition right above it."""
    kind = str(node.display()).partition(":")[0]
    if kind == "TableScan":
        scan = node.to_variant()
        yield str(scan.table_name()), above if scan.fetch() is None else None
    condition = node.to_variant().predicate() if kind == "Filter" else None
    for inner in node.inputs():
        yield from _scans(inner, condition)


def _weaker(condition: Any, columns: Any) -> Any:
    """A condition of these columns that is true wherever the given one is; None for one that is always true."""
    operator = condition.rex_call_operator() if condition.variant_name() == "BinaryExpr" else ""
    if operator not in ("AND", "OR"):
        return condition if _is_of(condition, columns) else None
    one, other = (_weaker(part, columns) for part in condition.rex_call_operands())
    if one is None or other is None:
        return None if operator == "OR" else other if one is None else one
    return either(operator, one, other)


def _is_of(expression: Any, columns: Any) -> bool:
    """Whether the expression reads these columns and nothing else."""
    kind = expression.variant_name()
    if kind in ("Column", "Literal"):
        return kind == "Literal" or expression.to_variant().name() in columns
    try:
        operands = expression.rex_call_operands()
    except Exception:  # the library has no operands of this kind, such as a subquery
        return False
    return not VOLATILE.search(str(expression)) and all(_is_of(one, columns) for one in operands)
