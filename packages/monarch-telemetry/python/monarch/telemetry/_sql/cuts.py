"""Where a physical plan is cut: nodes whose work is the same on the rows of each host as on all rows.

Such a node reads tables and nothing else, row by row. Above it may stand a partial aggregate whose states can be merged, or a limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from monarch.telemetry._sql.plan_bytes import UnknownPlan

# Aggregates that give the same result from the states of several hosts as from all rows. Quantiles, and those that depend on the order, do
# not.
_MERGED = frozenset(
    """approx_distinct avg bit_and bit_or bit_xor bool_and bool_or corr count covar covar_pop covar_samp max mean min regr_avgx regr_avgy
    regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy stddev stddev_pop stddev_samp sum var var_pop var_population
    var_samp var_sample""".split()
)
_BY_ROW = frozenset(
    {"ProjectionExec", "FilterExec", "CoalesceBatchesExec", "CooperativeExec", "DataSourceExec", "UnionExec", "RepartitionExec"}
)
# Nodes that have nothing left of a run when the next one begins. A TopK keeps its bound, an exchange its channels.
_RUN_AGAIN = (_BY_ROW - {"RepartitionExec"}) | {"CoalescePartitionsExec", "LocalLimitExec"}
_CONSTANT = frozenset({"PlaceholderRowExec", "EmptyExec"})
# Nodes whose form depends on the number of rows of a table, which differs between hosts, and nodes whose inputs are not children.
_BY_SIZE = ("Join", "Subquery", "Recursive", "WorkTable", "LazyMemory")
_LIMITS = ("SortExec: TopK(", "CoalescePartitionsExec: fetch=", "LocalLimitExec")
_AGGREGATE = re.compile(r"AggregateExec: mode=(\w+)")

Path = tuple[int, ...]


class Cut(NamedTuple):
    """A node by the way to it from the root. `run` is what a host executes: the node, or a limit of its rows above it.

    `final` is the node that merges states, of a cut at a partial aggregate.
    """

    node: Path
    run: Path
    final: Path | None = None


class NoCut(Exception):
    """This plan is not cut: rows are shipped."""


def cuts(plan: Any) -> tuple[Cut, ...]:
    """The cuts that have all tables of the plan below them, from left to right; `NoCut` where there are none."""
    if any(word in name(node) for node in _nodes(plan) for word in _BY_SIZE):
        raise NoCut("joins and subqueries")
    # A filter that leaves one value of a column is the order that a window of groups relies on; the rows that replace it have none.
    grouped = (node for node in _nodes(plan) if "WindowAggExec" in name(node) and "PARTITION BY [" in line(node))
    if any(name(below) == "FilterExec" for node in grouped for below in _nodes(node)):
        raise NoCut("windows of groups")
    return tuple(_cuts([plan], ()))


def shape(plan: Any, depth: int = 0) -> str:
    """The operators of a plan: equal on every host that plans the same statement, whatever its rows."""
    aggregate = _AGGREGATE.match(line(plan))
    own = f"{depth} {name(plan)}{' ' + aggregate[1] if aggregate else ''}"
    return "\n".join([own, *(shape(child, depth + 1) for child in plan.children())])


def at(plan: Any, path: Path) -> Any:
    """The node at the end of the way; `UnknownPlan` where the plan has none."""
    for index in path:
        children = plan.children()
        if index >= len(children):
            raise UnknownPlan("a plan of another form")
        plan = children[index]
    return plan


def runs_again(node: Any) -> bool:
    """Whether a node that has run may run again over the same rows: one that is not known to may not."""
    text = line(node)
    # The least and the largest value of all rows may be a bound for the rows below.
    bound = "gby=[]" in text and ("min(" in text or "max(" in text)
    fresh = name(node) in _RUN_AGAIN or (text.startswith("AggregateExec: mode=Partial") and not bound)
    return fresh and all(map(runs_again, node.children()))


def line(node: Any) -> str:
    """How the library writes this node, without those below."""
    return str(node.display()).partition("\n")[0].strip()


def name(node: Any) -> str:
    """The kind of the node."""
    return line(node).partition(":")[0]


def mergeable(functions: set[str]) -> bool:
    """Whether states of these aggregates can be merged."""
    return functions <= _MERGED


def _cuts(above: list[Any], path: Path) -> Iterator[Cut]:
    node = above[-1]
    if name(node) in _CONSTANT:
        return
    children = node.children()
    if line(node).startswith("AggregateExec: mode=Partial") and "ordering_mode=" not in line(node) and _by_row(children[0], limits=False):
        final = next((up for up in range(len(path) - 1, -1, -1) if name(above[up]) == "AggregateExec"), None)
        if final is not None and line(above[final]).startswith("AggregateExec: mode=Final") and _by_chain(above[final + 1 : -1]):
            yield Cut(path, path, path[:final])
            return
    if _by_row(node, limits=True):
        limited = bool(path) and line(above[-2]).startswith(_LIMITS)
        if _has_limit(node) and not _limit_above(above):
            raise NoCut("a limit without one above it")
        yield Cut(path, path[:-1] if limited else path)
        return
    if not children:
        raise NoCut(f"{name(node)} reads something else")
    for index, child in enumerate(children):
        yield from _cuts([*above, child], (*path, index))


def _by_row(node: Any, *, limits: bool) -> bool:
    # Nodes above rely on the partition of a row by its hash: rows of other hosts have to go through the same exchange.
    placed = name(node) == "RepartitionExec" and "RoundRobin" not in line(node)
    return (
        name(node) in _BY_ROW
        and not placed
        and (limits or not _limited(node))
        and all(_by_row(child, limits=limits) for child in node.children())
    )


def _by_chain(nodes: list[Any]) -> bool:
    """Whether only the exchange between partitions stands between partial and final aggregate."""
    return all(name(node) in {"RepartitionExec", "CoalescePartitionsExec", "CoalesceBatchesExec"} for node in nodes)


def _limited(node: Any) -> bool:
    return "fetch=" in line(node) or "limit=" in line(node)


def _has_limit(node: Any) -> bool:
    return any(_limited(inner) for inner in _nodes(node))


def _limit_above(above: list[Any]) -> bool:
    return len(above) > 1 and (_limited(above[-2]) or "Limit" in name(above[-2]))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in plan.children():
        yield from _nodes(child)
