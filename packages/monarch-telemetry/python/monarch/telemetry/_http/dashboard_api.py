"""The dashboard API: meshes, actors and messages as lists, each by one statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monarch.telemetry._arrow import pc
from monarch.telemetry._http import json_parts
from monarch.telemetry._http.calls import Call, Handler, Reply
from monarch.telemetry._http.json_parts import batches, reply
from monarch.telemetry._http.json_rows import encode, rows, text
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.statements import ACTORS

# Rows of a list; `limit` of a request is at most the second number.
ROWS, MOST_ROWS = 1_000, 10_000
_ID_MOST = (1 << 64) - 1
# The most ids in one statement: a statement has at most 16 KiB.
_IDS = 500


def listed(call: Call, sql: str) -> Reply:
    """The rows of a statement as a list."""
    return reply(json_parts.listed(batches(call.table(sql), ids_as_text=True)))


def single(call: Call, sql: str, what: str) -> Reply:
    """The only row of a statement, or 404."""
    found = rows(call.ask(sql).table, ids_as_text=True)
    if not found:
        raise Problem.not_found(f"there is no {what} {call.path['id']!r}")
    return Reply(encode(found[0]))


def path_id(call: Call, what: str) -> int:
    """The number in the path, or 404: what is no number is no id."""
    given = call.path["id"]
    if not given.isascii() or not given.isdigit() or len(given) > 20 or int(given) > _ID_MOST:
        raise Problem.not_found(f"there is no {what} {given!r}")
    return int(given)


def where(*conditions: str | None) -> str:
    """The conditions that there are."""
    given = [one for one in conditions if one]
    return f" WHERE {' AND '.join(given)}" if given else ""


def equals(column: str, value: int | str | None) -> str | None:
    """A condition, where there is a value."""
    return None if value is None else f"{column} = {text(value) if isinstance(value, str) else value}"


def limit(call: Call, usual: int = ROWS) -> int:
    given = call.parameters.get("limit", usual)
    if not 0 < given <= MOST_ROWS:
        raise Problem.bad_request(f"limit is from 1 to {MOST_ROWS:,}")
    return int(given)


def _without(classes: str | None) -> str | None:
    names = [name.strip() for name in (classes or "").split(",") if name.strip()]
    return f"class NOT IN ({', '.join(map(text, names))})" if names else None


def meshes(call: Call) -> Reply:
    given = call.parameters
    conditions = where(
        equals("class", given.get("class")), equals("parent_mesh_id", given.get("parent_mesh_id")), _without(given.get("exclude_classes"))
    )
    return listed(call, f"SELECT * FROM meshes{conditions} ORDER BY timestamp_us, id")


def mesh(call: Call) -> Reply:
    return single(call, f"SELECT * FROM meshes WHERE id = {path_id(call, 'mesh')}", "mesh")


def mesh_children(call: Call) -> Reply:
    parent = _known(call, "meshes", "mesh")
    conditions = where(
        equals("parent_mesh_id", parent),
        equals("class", call.parameters.get("mesh_class")),
        _without(call.parameters.get("exclude_classes")),
    )
    return listed(call, f"SELECT * FROM meshes{conditions} ORDER BY timestamp_us, id")


def _known(call: Call, table: str, what: str) -> int:
    """The number in the path, where the table has it; else 404."""
    number = path_id(call, what)
    if not call.rows(f"SELECT 1 AS found FROM {table} WHERE id = {number} LIMIT 1"):
        raise Problem.not_found(f"there is no {what} {call.path['id']!r}")
    return number


def actors(call: Call) -> Reply:
    return listed(call, f"SELECT * FROM ({ACTORS}){where(equals('mesh_id', call.parameters.get('mesh_id')))} ORDER BY mesh_id, rank, id")


def actor(call: Call) -> Reply:
    return single(call, f"SELECT * FROM ({ACTORS}) WHERE id = {path_id(call, 'actor')}", "actor")


def actor_status_events(call: Call) -> Reply:
    number = _known(call, "actors", "actor")
    return listed(call, f"SELECT * FROM actor_status_events WHERE actor_id = {number} ORDER BY timestamp_us, id")


def actor_messages(call: Call) -> Reply:
    number = _known(call, "actors", "actor")
    direction = f", CASE WHEN to_actor_id = {number} THEN 'in' ELSE 'out' END AS direction"
    return _messages(call, f" WHERE from_actor_id = {number} OR to_actor_id = {number}", ROWS, direction)


def messages(call: Call) -> Reply:
    given = call.parameters
    conditions = where(equals("from_actor_id", given.get("from_actor_id")), equals("to_actor_id", given.get("to_actor_id")))
    return _messages(call, conditions, limit(call))


def _messages(call: Call, conditions: str, most: int, more: str = "") -> Reply:
    """The latest messages with their last status, the earliest first.

    The status is asked for by id: a statement over the events of all messages takes seconds where there are millions.
    """
    table = call.table(f"SELECT *{more} FROM messages{conditions} ORDER BY timestamp_us DESC, id DESC LIMIT {most}")
    ordered = table.take(list(range(table.num_rows - 1, -1, -1))) if table.num_rows else table
    statuses = [call.table(_statuses_of(ordered.column("id").slice(at, _IDS))) for at in range(0, ordered.num_rows, _IDS)]

    def shown() -> Iterator[list[Any]]:
        for number, found in enumerate(statuses):
            some = ordered.slice(number * _IDS, _IDS)
            at = pc.index_in(some.column("id"), value_set=found.column("message_id"))
            yield from batches(some.append_column("latest_status", found.column("status").take(at)), ids_as_text=True)

    return reply(json_parts.listed(shown()))


def _statuses_of(ids: Any) -> str:
    """The last status of each of these messages."""
    return (
        "SELECT message_id, last_value(status ORDER BY timestamp_us, id) AS status FROM message_status_events"
        f" WHERE message_id IN ({', '.join(map(str, ids.to_pylist()))}) GROUP BY message_id"
    )


def message_status_events(call: Call) -> Reply:
    return listed(call, _latest("message_status_events", where(equals("message_id", call.parameters.get("message_id"))), limit(call)))


def sent_messages(call: Call) -> Reply:
    return listed(call, _latest("sent_messages", where(equals("sender_actor_id", call.parameters.get("sender_actor_id"))), limit(call)))


def _latest(table: str, conditions: str, most: int) -> str:
    chosen = f"SELECT * FROM {table}{conditions} ORDER BY timestamp_us DESC, id DESC LIMIT {most}"
    return f"SELECT * FROM ({chosen}) ORDER BY timestamp_us, id"


HANDLERS: dict[str, Handler] = {
    "api_meshes": meshes,
    "api_mesh": mesh,
    "api_mesh_children": mesh_children,
    "api_actors": actors,
    "api_actor": actor,
    "api_actor_status_events": actor_status_events,
    "api_actor_messages": actor_messages,
    "api_messages": messages,
    "api_message_status_events": message_status_events,
    "api_sent_messages": sent_messages,
}
