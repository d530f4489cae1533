"""Table functions: live state, read from the processes when a statement calls them, with the name of a mesh or for all."""

from __future__ import annotations

from monarch.telemetry._tables.table import Column, Table, time

_HOST = Column("host", "text", "the host (hosts.name)", of_host="name")
_PROC = Column("proc_id", "u64", "the proc (procs.proc_id)")
_PID = Column("pid", "i32", "the process")
_ACTOR = Column("actor_id", "u64", "the actor (actors.id)")
# The process of the client is not a proc of a mesh.
_PLACE = (Column("mesh_name", "text", "the mesh, none for the client", True), Column("rank", "u64", "the rank in it, from 0", True))

STACKS = Table(
    "stacks",
    (
        _HOST,
        _PROC,
        _PID,
        *_PLACE,
        Column("thread_id", "u64", "the thread, as the operating system numbers it"),
        Column("thread_name", "text", "the name of the thread", True),
        Column("owns_gil", "bool", "whether it held the GIL; unknown where the stack was read from outside without it", True),
        Column("frame_depth", "i32", "the place in the stack: 0 is the innermost call"),
        Column("name", "text", "the function"),
        Column("filename", "text", "the source file with its path"),
        Column("line", "i32", "the line of the file, 0 where it is not known"),
        Column("source", "text", "gil or no_gil (read by the process itself), or py-spy (read from outside)"),
    ),
    "Each frame of each thread, as it is now",
    "SELECT filename, line, name, count(*) AS threads FROM stacks() WHERE frame_depth = 0"
    " GROUP BY filename, line, name ORDER BY threads DESC LIMIT 20",
    "live",
    function=True,
)
LIVE_PROCS = Table(
    "live_procs",
    (
        _PROC,
        _HOST,
        *_PLACE,
        _PID,
        Column("state", "text", "starting, running, unresponsive (it runs no Python) or stopping"),
        time("started_us", "when it was started"),
        Column("silent_us", "u64", "microseconds since it last ran Python", True),
        Column("num_actors", "u64", "actors that live in it"),
        Column("failed_actor_count", "u64", "actors of it that have failed"),
        Column("queue_depth", "u64", "messages that wait for its actors"),
        Column("rss_bytes", "u64", "memory that it has in use", True),
    ),
    "Each proc that lives, and the client",
    "SELECT host, mesh_name, rank, state, silent_us FROM live_procs() WHERE state = 'unresponsive' ORDER BY silent_us DESC",
    "live",
    function=True,
)
LIVE_ACTORS = Table(
    "live_actors",
    (
        _ACTOR,
        _PROC,
        _HOST,
        Column("mesh_name", "text", "its actor mesh"),
        Column("rank", "u64", "the rank in its mesh, from 0"),
        Column("actor_type", "text", "its class"),
        Column("actor_status", "text", "its status, as in actor_status_events.new_status; Unknown where its process does not answer"),
        Column("endpoint", "text", "the oldest endpoint in progress", True),
        time("endpoint_since_us", "when that began", nullable=True),
        time("overdue_since_us", "the deadline of a call in progress that has passed; none if no deadline has passed", nullable=True),
        Column("queue_depth", "u64", "messages that wait for it"),
        Column("messages_processed", "u64", "messages it has handled"),
        Column("total_processing_time_us", "u64", "microseconds in its endpoints"),
        Column("is_system", "bool", "whether it belongs to the runtime"),
    ),
    "Each actor that lives, with what it does now",
    "SELECT l.mesh_name, l.rank, l.endpoint, g.line FROM live_actors() l JOIN logs g ON g.actor_id = l.actor_id"
    " WHERE l.endpoint IS NOT NULL ORDER BY l.endpoint_since_us, g.timestamp_us DESC LIMIT 20",
    "live",
    function=True,
)
LIVE_QUEUES = Table(
    "live_queues",
    (
        _HOST,
        _PROC,
        Column("actor_id", "u64", "the actor (actors.id), none for a queue of the proc", True),
        *_PLACE,
        Column("kind", "text", "messages (for an actor), ordering (behind a missing message), outgoing (for a peer)"),
        Column("peer", "text", "the receiver of outgoing messages, or the sender of those behind a missing one", True),
        Column("depth", "u64", "messages that wait"),
        Column("depth_max", "u64", "messages that waited at most since the start", True),
        Column("bytes", "u64", "bytes that wait", True),
        time("oldest_us", "since when the oldest waits", nullable=True),
    ),
    "Each queue of messages that is not empty",
    "SELECT mesh_name, rank, kind, depth FROM live_queues() ORDER BY depth DESC LIMIT 20",
    "live",
    function=True,
)
MEMORY = Table(
    "memory",
    (
        _HOST,
        _PROC,
        _PID,
        *_PLACE,
        Column("rss_bytes", "u64", "memory in use", True),
        Column("vm_bytes", "u64", "address space", True),
        Column("shared_bytes", "u64", "the part of rss_bytes that other processes share", True),
        Column("swap_bytes", "u64", "memory that was written to swap", True),
        Column("gpu", "u64", "the number of the GPU, none in the row of main memory", True),
        Column("gpu_used_bytes", "u64", "memory of the GPU that the process has in use", True),
        Column("gpu_total_bytes", "u64", "memory of the GPU", True),
    ),
    "The memory of each process: a row of main memory, and one for each GPU that it uses",
    "SELECT host, sum(rss_bytes) AS rss, sum(gpu_used_bytes) AS gpu_used FROM memory() GROUP BY host ORDER BY rss DESC",
    "live",
    function=True,
)

TABLES = (STACKS, LIVE_PROCS, LIVE_ACTORS, LIVE_QUEUES, MEMORY)
