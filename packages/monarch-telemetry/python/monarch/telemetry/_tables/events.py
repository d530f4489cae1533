"""What processes did: actors, meshes, messages, spans, and events of programs."""

from __future__ import annotations

from monarch.telemetry._tables.table import Column, Table, time

ACTORS = Table(
    "actors",
    (
        Column("id", "u64", "the actor; the same number in every table"),
        time("timestamp_us", "when the actor was made"),
        Column("mesh_id", "u64", "the actor mesh (meshes.id)"),
        Column("rank", "u64", "the rank in its mesh, from 0"),
        Column("full_name", "text", "the name with proc, class, mesh and point, as errors show it"),
        Column("display_name", "text", "a short name for people", True),
    ),
    "Every actor, alive or one of the last that have ended",
    "SELECT m.given_name, a.rank, a.display_name FROM actors a JOIN meshes m ON a.mesh_id = m.id ORDER BY a.timestamp_us DESC LIMIT 20",
    "entities",
)
MESHES = Table(
    "meshes",
    (
        Column("id", "u64", "the mesh; unique over host, proc and actor meshes"),
        time("timestamp_us", "when the mesh was made"),
        Column("class", "text", "'Host', 'Proc', or the class of the actors"),
        Column("given_name", "text", "the name that the program gave"),
        Column("full_name", "text", "the name with those of its parents"),
        Column("shape_json", "text", "labels of the dimensions, and the slice (offset, sizes, strides), as JSON"),
        Column("parent_mesh_id", "u64", "the mesh on which it was spawned (meshes.id)", True),
        Column("parent_view_json", "text", "the part of the parent on which it was spawned, as JSON like `shape_json`", True),
    ),
    "Every mesh of hosts, procs or actors",
    "SELECT class, count(*) AS meshes FROM meshes GROUP BY class ORDER BY meshes DESC",
    "entities",
)
ACTOR_STATUS_EVENTS = Table(
    "actor_status_events",
    (
        Column("id", "u64", "the event; within a microsecond, later ones of a process have larger numbers"),
        time("timestamp_us", "when the status changed"),
        Column("actor_id", "u64", "the actor (actors.id)"),
        Column("new_status", "text", "Created, Client, Initializing, Idle, Processing, Stopping, Stopped, Failed and others"),
        Column("reason", "text", "why, for an actor that stopped or failed", True),
    ),
    "Each change of the status of an actor",
    "SELECT a.full_name, e.timestamp_us, e.reason FROM actor_status_events e JOIN actors a ON e.actor_id = a.id"
    " WHERE e.new_status = 'Failed' ORDER BY e.timestamp_us",
    "history",
)
SENT_MESSAGES = Table(
    "sent_messages",
    (
        Column("id", "u64", "the message, or the cast"),
        time("timestamp_us", "when it was sent"),
        Column("sender_actor_id", "u64", "the actor that sent (actors.id)"),
        Column("actor_mesh_id", "u64", "the mesh it was sent to (meshes.id)"),
        Column("view_json", "text", "the part of the mesh it was sent to, as JSON like `shape_json`"),
        Column("shape_json", "text", "labels of that part, and its slice, as JSON"),
    ),
    "Each call or cast at its sender, one row whatever the number of receivers",
    "SELECT m.given_name, count(*) AS sent FROM sent_messages s JOIN meshes m ON s.actor_mesh_id = m.id"
    " GROUP BY m.given_name ORDER BY sent DESC",
    "history",
)
MESSAGES = Table(
    "messages",
    (
        Column("id", "u64", "the message at this receiver"),
        time("timestamp_us", "when it was received"),
        Column("from_actor_id", "u64", "the actor that sent (actors.id)"),
        Column("to_actor_id", "u64", "the actor that received (actors.id)"),
        Column("endpoint", "text", "the method, where the message is a call", True),
        Column("port_index", "u64", "the number of the port, where the message is for a port", True),
    ),
    "Each message at its receiver; above 10,000 per second and proc a sample of them, with its weight in telemetry_status",
    "SELECT endpoint, count(*) AS received FROM messages GROUP BY endpoint ORDER BY received DESC LIMIT 20",
    "history",
)
MESSAGE_STATUS_EVENTS = Table(
    "message_status_events",
    (
        Column("id", "u64", "the event; within a microsecond, later ones of a process have larger numbers"),
        time("timestamp_us", "when the status changed"),
        Column("message_id", "u64", "the message (messages.id)"),
        Column("status", "text", "queued, active, complete or failed"),
    ),
    "Each change of the status of a message at its receiver",
    "SELECT m.endpoint, avg(c.timestamp_us - a.timestamp_us) AS handled_us FROM messages m"
    " JOIN message_status_events a ON a.message_id = m.id AND a.status = 'active'"
    " JOIN message_status_events c ON c.message_id = m.id AND c.status = 'complete' GROUP BY m.endpoint",
    "history",
)
SPANS = Table(
    "spans",
    (
        Column("process_id", "u64", "the process (procs.proc_id)"),
        Column("id", "u64", "the span, unique in its process"),
        Column("name", "text", "the name of the span"),
        Column("target", "text", "the module that made it"),
        Column("level", "text", "trace, debug, info, warn or error"),
        Column("fields_json", "text", "its fields, as a JSON object"),
        time("timestamp_us", "when it was made"),
        Column("parent_id", "u64", "the span around it, of the same process", True),
        Column("thread_name", "text", "the thread that made it"),
        Column("file", "text", "the source file", True),
        Column("line", "i32", "the line of the file, from 1", True),
    ),
    "Each span: a piece of work with a beginning and an end, of the runtime or of the program",
    "SELECT name, count(*) AS spans FROM spans GROUP BY name ORDER BY spans DESC LIMIT 20",
    "history",
)
SPAN_EVENTS = Table(
    "span_events",
    (
        Column("process_id", "u64", "the process (procs.proc_id)"),
        Column("id", "u64", "the span (spans.id)"),
        time("timestamp_us", "when it was entered, left or closed"),
        Column("event_type", "text", "enter, exit or close"),
    ),
    "When spans were entered, left and closed",
    "SELECT s.name, max(e.timestamp_us) - min(e.timestamp_us) AS took_us FROM spans s"
    " JOIN span_events e ON e.process_id = s.process_id AND e.id = s.id GROUP BY s.name, s.process_id, s.id ORDER BY took_us DESC LIMIT 20",
    "history",
)
EVENTS = Table(
    "events",
    (
        Column("name", "text", "the name of the event"),
        Column("target", "text", "the module that recorded it"),
        Column("level", "text", "trace, debug, info, warn or error"),
        Column("fields_json", "text", "its fields, as a JSON object"),
        time("timestamp_us", "when it was recorded"),
        Column("parent_span", "u64", "the span around it (spans.id)", True),
        Column("thread_id", "u64", "the thread, as the operating system numbers it"),
        Column("thread_name", "text", "the name of the thread"),
        Column("module_path", "text", "the module in full", True),
        Column("file", "text", "the source file", True),
        Column("line", "i32", "the line of the file, from 1", True),
    ),
    "Events of the runtime and of programs, from monarch.telemetry.record, and errors of telemetry itself",
    "SELECT timestamp_us, target, name, fields_json FROM events WHERE level IN ('warn', 'error') ORDER BY timestamp_us DESC LIMIT 50",
    "history",
)

TABLES = (ACTORS, MESHES, ACTOR_STATUS_EVENTS, SENT_MESSAGES, MESSAGES, MESSAGE_STATUS_EVENTS, SPANS, SPAN_EVENTS, EVENTS)
