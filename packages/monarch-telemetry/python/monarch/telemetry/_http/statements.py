"""Pieces of SQL that several routes need."""

from __future__ import annotations

# The last status of each actor in the history.
LATEST_STATUS = (
    "(SELECT actor_id, last_value(new_status ORDER BY timestamp_us, id) AS new_status,"
    " last_value(reason ORDER BY timestamp_us, id) AS reason, max(timestamp_us) AS status_us FROM actor_status_events GROUP BY actor_id)"
)
_LAST_SNAPSHOT = "(SELECT max(snapshot_id) FROM snapshots)"


def in_last_snapshot(alias: str) -> str:
    """The condition that a row is one of the last snapshot."""
    return f"{alias}.snapshot_id = {_LAST_SNAPSHOT}"


# The state of each actor in the last snapshot: a status that is older than the history.
SNAPSHOT_STATUS = f"(SELECT n.node_id, n.actor_status, n.is_system, n.actor_type FROM actor_nodes n WHERE {in_last_snapshot('n')})"
# A status without rows, and the class of the mesh of the client, whose script is an actor without changes of status.
UNKNOWN, CLIENT = "Unknown", "Client"
# The classes of actors of the runtime.
RUNTIME = "LIKE 'monarch.%'"
# Meshes of procs in which only the runtime has actors.
SERVICES = f"SELECT parent_mesh_id FROM meshes WHERE parent_mesh_id IS NOT NULL GROUP BY parent_mesh_id HAVING bool_and(class {RUNTIME})"

# All actors with their last status. Columns after those of the table: latest_status, status_timestamp_us, status_reason, is_system,
# mesh_name, mesh_class.
ACTORS = (
    f"SELECT a.*, coalesce(s.new_status, n.actor_status, CASE WHEN m.class = '{CLIENT}' THEN '{CLIENT}' ELSE '{UNKNOWN}' END)"
    " AS latest_status, s.status_us AS status_timestamp_us, s.reason AS status_reason,"
    f" coalesce(n.is_system, m.class {RUNTIME}, false) AS is_system, m.given_name AS mesh_name, m.class AS mesh_class FROM actors a"
    f" LEFT JOIN {LATEST_STATUS} s ON s.actor_id = a.id LEFT JOIN {SNAPSHOT_STATUS} n ON n.node_id = a.id"
    " LEFT JOIN meshes m ON m.id = a.mesh_id"
)
