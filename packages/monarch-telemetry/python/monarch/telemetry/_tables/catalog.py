"""Every table by its name, in the order of the pages, and the catalog as text."""

from __future__ import annotations

from monarch.telemetry._tables import events, facts, live, metrics, snapshots, stacks
from monarch.telemetry._tables.table import Table
from monarch.telemetry.errors import QueryError

SECTIONS: dict[str, tuple[Table, ...]] = {
    "Events": events.TABLES,
    "Metrics": metrics.TABLES,
    "Stored stacks": stacks.TABLES,
    "Snapshots": snapshots.TABLES,
    "Facts": facts.TABLES,
    "Live state": live.TABLES,
}
TABLES: dict[str, Table] = {one.name: one for tables in SECTIONS.values() for one in tables}


def table(name: str) -> Table:
    """A table or table function by its name. `QueryError` for a name that there is not, with the nearest one."""
    found = TABLES.get(name)
    if found is not None:
        return found
    from difflib import get_close_matches

    near = get_close_matches(name, TABLES, n=1, cutoff=0.5)
    raise QueryError(f"there is no table {name!r}", hint=f"the nearest name is {near[0]!r}" if near else "SHOW TABLES lists the names")


def catalog() -> str:
    """Every table with its columns, one a line: each line names its table, so that a search for a word finds both."""
    return "".join(f"{line}\n" for one in TABLES.values() for line in _lines(one))


def _lines(one: Table) -> list[str]:
    columns = [f"  {one.name}.{column.name} {column.type}: {column.meaning}" for column in one.columns]
    return [f"{one.source} ({one.retention}): {one.meaning}", *columns, f"  {one.name} example: {one.example}"]
