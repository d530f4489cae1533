"""The tree of a job as it was, every `snapshot_interval_secs`: hosts, procs and actors with their state.

Each host writes the nodes of its own processes; the client's host writes the rows of `snapshots` and `root_nodes` too.
"""

from __future__ import annotations

from monarch.telemetry._tables.table import Column, Table, time

_SNAPSHOT = Column("snapshot_id", "u64", "the snapshot (snapshots.snapshot_id)")
_NODE = Column("node_id", "u64", "the node (nodes.node_id)")
_LAST = "WHERE {0}.snapshot_id = (SELECT max(snapshot_id) FROM snapshots)"


def _count(name: str, meaning: str) -> Column:
    return Column(name, "u64", meaning)


SNAPSHOTS = Table(
    "snapshots",
    (
        Column("snapshot_id", "u64", "the snapshot: when its interval began, in milliseconds since the epoch; the same on all hosts"),
        time("snapshot_ts", "when the client's host took it"),
    ),
    "Each snapshot of the live state",
    "SELECT snapshot_id, snapshot_ts FROM snapshots ORDER BY snapshot_id DESC LIMIT 10",
    "history",
)
NODES = Table(
    "nodes",
    (
        _SNAPSHOT,
        Column("node_id", "u64", "the root, host, proc or actor (hosts.host_id, procs.proc_id, actors.id); the client is also its host"),
        Column("node_kind", "text", "root, host, proc, actor or error (a host whose agent did not answer)"),
        time("as_of", "when its state was read"),
    ),
    "Each node of the tree of a job",
    "SELECT snapshot_id, node_kind, count(*) AS nodes FROM nodes GROUP BY snapshot_id, node_kind ORDER BY snapshot_id DESC",
    "history",
)
CHILDREN = Table(
    "children",
    (
        _SNAPSHOT,
        Column("parent_id", "u64", "the node above (nodes.node_id)"),
        Column("child_id", "u64", "the node below (nodes.node_id)"),
        Column("child_sort_key", "text", "the order of the children of a node"),
        Column("is_system", "bool", "whether the child belongs to the runtime"),
        Column("is_stopped", "bool", "whether the child has ended"),
    ),
    "Which node is below which; without a row for the client below its host, which is the same process",
    f"SELECT parent_id, count(*) AS children FROM children {_LAST.format('children')} AND NOT is_system GROUP BY parent_id",
    "history",
)
ROOT_NODES = Table(
    "root_nodes",
    (
        _SNAPSHOT,
        _NODE,
        _count("num_hosts", "hosts of the job"),
        time("started_at", "when the job started"),
        Column("started_by", "text", "the user that started it"),
    ),
    "The job itself, one row in each snapshot",
    "SELECT snapshot_id, num_hosts, started_by FROM root_nodes ORDER BY snapshot_id DESC LIMIT 1",
    "history",
)
HOST_NODES = Table(
    "host_nodes",
    (
        _SNAPSHOT,
        _NODE,
        Column("addr", "text", "the address of its agent"),
        _count("host_num_procs", "procs of the job on it, its client too"),
    ),
    "Each host in a snapshot",
    f"SELECT addr, host_num_procs FROM host_nodes {_LAST.format('host_nodes')} ORDER BY host_num_procs DESC",
    "history",
)
PROC_NODES = Table(
    "proc_nodes",
    (
        _SNAPSHOT,
        _NODE,
        Column("proc_name", "text", "the name of the proc"),
        _count("num_actors", "actors that live in it"),
        _count("stopped_retention_cap", "ended actors of it that a snapshot shows at most"),
        Column("is_poisoned", "bool", "whether an actor of it has failed, so that it takes no new ones"),
        _count("failed_actor_count", "actors of it that have failed"),
    ),
    "Each proc in a snapshot",
    f"SELECT proc_name, num_actors, failed_actor_count FROM proc_nodes {_LAST.format('proc_nodes')} AND is_poisoned",
    "history",
)
ACTOR_NODES = Table(
    "actor_nodes",
    (
        _SNAPSHOT,
        _NODE,
        Column("actor_status", "text", "its status, as in actor_status_events.new_status"),
        Column("actor_type", "text", "its class"),
        Column("instance_id", "u64", "the actor (actors.id)"),
        _count("messages_processed", "messages it has handled; of an ended actor, those since it was recorded"),
        time("created_at", "when it was made", nullable=True),
        Column("last_message_handler", "text", "the endpoint it ran last", True),
        _count("total_processing_time_us", "microseconds in its endpoints since it was recorded"),
        _count("queue_depth", "messages that wait for it"),
        Column("is_system", "bool", "whether it belongs to the runtime"),
    ),
    "Each actor of a living proc in a snapshot, with those that have ended last",
    "SELECT s.snapshot_ts, sum(n.queue_depth) AS waiting FROM actor_nodes n JOIN snapshots s ON n.snapshot_id = s.snapshot_id"
    " GROUP BY s.snapshot_ts ORDER BY s.snapshot_ts",
    "history",
)
ACTOR_FAILURES = Table(
    "actor_failures",
    (
        _SNAPSHOT,
        _NODE,
        Column("failure_error_message", "text", "the text of the error"),
        Column("failure_root_cause_actor", "text", "the full name of the actor that failed first"),
        Column("failure_root_cause_name", "text", "the short name of that actor", True),
        time("failure_occurred_at", "when it failed"),
        Column("failure_is_propagated", "bool", "whether the failure came from another actor"),
    ),
    "Each failed actor of a living proc in a snapshot",
    "SELECT DISTINCT node_id, failure_error_message FROM actor_failures WHERE NOT failure_is_propagated",
    "history",
)
ACTOR_EXECUTIONS = Table(
    "actor_executions",
    (
        _SNAPSHOT,
        _NODE,
        _count("active_count", "endpoints in progress"),
        Column("complete", "bool", "whether all of them could be read: a snapshot has the oldest one in progress"),
        Column("truncated", "bool", "whether active_handlers has some of them only"),
    ),
    "How many endpoints each actor was running in a snapshot",
    f"SELECT node_id, active_count FROM actor_executions {_LAST.format('actor_executions')} AND active_count > 0",
    "history",
)
ACTIVE_HANDLERS = Table(
    "active_handlers",
    (
        _SNAPSHOT,
        _NODE,
        Column("name", "text", "the endpoint"),
        _count("active_count", "calls of it in progress that are known"),
        time("oldest_since", "when the oldest of them began"),
    ),
    "Which endpoints each actor was running in a snapshot",
    "SELECT s.snapshot_ts - h.oldest_since AS running_us, h.name, h.node_id FROM active_handlers h"
    " JOIN snapshots s ON h.snapshot_id = s.snapshot_id ORDER BY running_us DESC LIMIT 20",
    "history",
)
ACTOR_INBOUND_ORDERINGS = Table(
    "actor_inbound_orderings",
    (
        _SNAPSHOT,
        _NODE,
        Column("enabled", "bool", "whether messages of a sender are put in order for this actor"),
        Column("snapshot_complete", "bool", "whether all sessions could be read"),
        _count("skipped_session_count", "sessions that could not be read"),
        _count("known_session_count", "sessions that there are"),
        _count("returned_buffered_session_count", "sessions of ordering_sessions that wait for an earlier message"),
        _count("returned_buffered_message_count", "messages that wait in those sessions"),
        _count("returned_max_buffered_count", "messages that wait in the fullest of them"),
    ),
    "Messages of each actor that waited for an earlier one in a snapshot; collectors do not know them, and write no rows",
    "SELECT node_id, max(returned_buffered_message_count) AS most FROM actor_inbound_orderings GROUP BY node_id ORDER BY most DESC",
    "history",
)
ORDERING_SESSIONS = Table(
    "ordering_sessions",
    (
        _SNAPSHOT,
        _NODE,
        Column("session_id", "u64", "the session: one sender and this actor"),
        Column("sender", "text", "the name of the sender", True),
        _count("last_released_seq", "the number of the last message that was handed to the actor"),
        _count("expected_next_seq", "the number of the message that is waited for"),
        _count("buffered_count", "messages that wait for it"),
        Column("oldest_buffered_seq", "u64", "the lowest number of those", True),
        Column("newest_buffered_seq", "u64", "the highest number of those", True),
    ),
    "Each sender whose messages waited for an earlier one in a snapshot; collectors do not know them, and write no rows",
    f"SELECT node_id, sender, expected_next_seq, buffered_count FROM ordering_sessions {_LAST.format('ordering_sessions')}"
    " AND buffered_count > 0",
    "history",
)
RESOLUTION_ERRORS = Table(
    "resolution_errors",
    (
        _SNAPSHOT,
        _NODE,
        Column("error_code", "text", "not_found, gateway_timeout, service_unavailable or internal_error"),
        Column("error_message", "text", "the text of the error"),
    ),
    "Each host or proc that did not answer when a snapshot was taken",
    "SELECT error_code, count(*) AS nodes FROM resolution_errors GROUP BY error_code ORDER BY nodes DESC",
    "history",
)

TABLES = (
    SNAPSHOTS,
    NODES,
    CHILDREN,
    ROOT_NODES,
    HOST_NODES,
    PROC_NODES,
    ACTOR_NODES,
    ACTOR_FAILURES,
    ACTOR_EXECUTIONS,
    ACTIVE_HANDLERS,
    ACTOR_INBOUND_ORDERINGS,
    ORDERING_SESSIONS,
    RESOLUTION_ERRORS,
)
