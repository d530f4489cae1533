"""Facts that torchmonarch 0.7 had no table for: logs, hosts, failures, endpoints, links, resources, other wheels, telemetry itself."""

from __future__ import annotations

from monarch.telemetry._tables.table import Column, Table, time

_TIME = time("timestamp_us", "when it happened")
_HOST = Column("host", "text", "the host (hosts.name)", of_host="name")
# The host as another process gives it.
_GIVEN_HOST = Column("host", "text", "the host (hosts.name)")
_PROC = Column("proc", "text", "the name of the proc")
_DETAIL = Column("detail", "text", "more about it, as text", True)

LOGS = Table(
    "logs",
    (
        time("timestamp_us", "when the line was written"),
        Column("seq", "u64", "the number of the line in its process: the order of lines of the same time"),
        _HOST,
        _PROC,
        Column("pid", "i32", "the process"),
        Column("mesh_name", "text", "the mesh of the actor or proc", True),
        Column("rank", "u64", "the rank in that mesh, from 0", True),
        Column("actor_id", "u64", "the actor (actors.id), where one wrote it", True),
        Column("stream", "text", "stdout, stderr, logging (of Python), or system (of the runtime)"),
        Column("level", "text", "the level of logging and system", True),
        Column("logger", "text", "the name of the logger", True),
        Column("line", "text", "the text without its line end"),
        Column("trace_id", "text", "the trace, 32 hexadecimal digits (span_context.trace_id)", True),
        Column("span_id", "u64", "the span (span_context.span_id)", True),
    ),
    "Each line of stdout, stderr and Python logging of every process, and the runtime's own lines",
    "SELECT timestamp_us, host, rank, line FROM logs WHERE stream = 'stderr' AND line LIKE '%Error%' ORDER BY timestamp_us, seq LIMIT 50",
    "history",
)
HOSTS = Table(
    "hosts",
    (
        Column("host_id", "u64", "the host", of_host="number"),
        Column("name", "text", "its name", of_host="name"),
        Column("address", "text", "the address of its agent"),
        Column("state", "text", "its state, such as joining, ready, lost or left"),
        Column("reason", "text", "why it was lost or has left", True),
        time("joined_us", "when it joined the job"),
        time("left_us", "when it was lost or left", nullable=True),
        Column("cpus", "u64", "processors that the job may use"),
        Column("memory_bytes", "u64", "memory that the job may use"),
        Column("gpus_json", "text", "index, name and memory_bytes of each GPU, as a JSON list of objects"),
        Column("version", "text", "the version of monarch-core on it"),
    ),
    "Every host of the job, those that were lost too",
    "SELECT name, state, reason FROM hosts WHERE left_us IS NOT NULL ORDER BY left_us DESC",
    "entities",
)
PROCS = Table(
    "procs",
    (
        Column("proc_id", "u64", "the proc"),
        Column("host_id", "u64", "its host (hosts.host_id)", of_host="number"),
        Column("mesh_id", "u64", "its proc mesh (meshes.id)"),
        Column("rank", "u64", "the rank in its mesh, from 0"),
        Column("pid", "i32", "the process"),
        time("started_us", "when it was started"),
        time("ended_us", "when it ended", nullable=True),
        Column("exit_reason", "text", "how it ended", True),
        Column("exit_code", "i32", "its exit status, where it exited", True),
        Column("signal", "i32", "the signal that killed it", True),
        Column("rss_peak_bytes", "u64", "the most memory that it had in use, up to the last row of resources", True),
    ),
    "Every proc, alive or one of the last that have ended, with how it ended",
    "SELECT h.name, p.rank, p.exit_reason, p.signal FROM procs p JOIN hosts h ON p.host_id = h.host_id"
    " WHERE p.ended_us IS NOT NULL ORDER BY p.ended_us DESC LIMIT 20",
    "entities",
)
FAILURES = Table(
    "failures",
    (
        Column("id", "u64", "the failure"),
        time("timestamp_us", "when it was noticed"),
        Column(
            "kind",
            "text",
            "user (an exception or exit code of the program), infrastructure (a signal, memory, host, network) or system (runtime)",
        ),
        Column("first_cause", "bool", "whether no other failure caused it"),
        Column("cause_id", "u64", "the failure that caused it (failures.id)", True),
        Column("mesh_name", "text", "the mesh that failed"),
        Column("rank", "u64", "the rank that failed, none for the whole mesh", True),
        Column("host", "text", "the host (hosts.name)", True),
        Column("pid", "i32", "the process", True),
        Column("endpoint", "text", "the endpoint that was running", True),
        Column("exit_reason", "text", "how the actor or process ended"),
        Column("message", "text", "the text of the error"),
        Column("traceback", "text", "the lines of the error after the first: the traceback, where the end of the actor has one", True),
        Column("last_lines", "text", "what the process wrote last", True),
    ),
    "Each failure of an actor, proc or host, linked to its cause",
    "SELECT timestamp_us, kind, mesh_name, rank, host, endpoint, message FROM failures WHERE first_cause ORDER BY timestamp_us LIMIT 10",
    "history",
)
SUPERVISION_EVENTS = Table(
    "supervision_events",
    (
        Column("id", "u64", "the event"),
        time("timestamp_us", "when it was delivered"),
        Column("failure_id", "u64", "the failure (failures.id)"),
        Column("mesh_name", "text", "the mesh that failed"),
        Column("crashed_ranks_json", "text", "the ranks that failed, as a JSON list"),
        Column("delivered_to", "text", "the owner that was notified"),
        Column("handled", "bool", "whether the owner handled it, so that it went no further"),
    ),
    "Each notification of an owner about a failure",
    "SELECT f.message, s.delivered_to FROM supervision_events s JOIN failures f ON s.failure_id = f.id WHERE NOT s.handled",
    "history",
)
ENDPOINT_STATS = Table(
    "endpoint_stats",
    (
        time("window_us", "the start of the window"),
        Column("side", "text", "client (from call to answer) or server (the endpoint itself)"),
        Column("mesh_name", "text", "the actor mesh"),
        Column("endpoint", "text", "the endpoint"),
        Column(
            "adverb",
            "text",
            "call (at a client: of several), call_one (of one, also by choose), stream or broadcast",
        ),
        Column("count", "u64", "calls that ended in the window"),
        Column("errors", "u64", "those of them that failed"),
        Column("latency_sum_us", "u64", "the sum of their latencies, in microseconds"),
        Column("latency_max_us", "u64", "the longest of them, in microseconds"),
        Column("latency_buckets_json", "text", "calls by latency, as a JSON list of [upper bound in microseconds, calls]"),
        Column("bytes_in", "u64", "bytes of the messages that were received"),
        Column("bytes_out", "u64", "bytes of the messages that were sent"),
    ),
    "Latency, throughput, payload and errors of each endpoint by window of time; messages without a row count too",
    "SELECT mesh_name, endpoint, sum(count) AS calls, sum(errors) AS errors, sum(latency_sum_us) / sum(count) AS mean_us,"
    " max(latency_max_us) AS max_us FROM endpoint_stats WHERE side = 'server' GROUP BY mesh_name, endpoint ORDER BY mean_us DESC",
    "history",
)
LINKS = Table(
    "links",
    (
        Column("link_id", "u64", "the link"),
        Column("from_host", "text", "the host at this end (hosts.name)"),
        Column("to_host", "text", "the host at the other end (hosts.name)"),
        Column("kind", "text", "tcp, unix, or another transport"),
        Column("state", "text", "up, down or resuming"),
        Column("rtt_us", "u64", "the last round trip, in microseconds"),
        Column("bytes_out", "u64", "bytes sent since it was made"),
        Column("bytes_in", "u64", "bytes received since it was made"),
        Column("reconnects", "u64", "how often it was connected again"),
        Column("unacked", "u64", "messages that the other end has not acknowledged"),
        Column("last_error", "text", "why it was down last", True),
    ),
    "Each connection between hosts",
    "SELECT from_host, to_host, state, rtt_us, reconnects, last_error FROM links ORDER BY rtt_us DESC LIMIT 20",
    "entities",
)
RESOURCES = Table(
    "resources",
    (
        time("timestamp_us", "when it was measured"),
        _HOST,
        Column("proc", "text", "the name of the proc, none for the whole host", True),
        Column("cpu_pct", "f64", "processor time in percent of one processor, since the last row"),
        Column("rss_bytes", "u64", "memory in use"),
        Column("threads", "u64", "threads"),
        Column("fds", "u64", "open file descriptors"),
        Column("gpu", "u64", "the number of the GPU, for a row of one", True),
        Column("gpu_util_pct", "f64", "time in percent in which the GPU was busy", True),
        Column("gpu_memory_bytes", "u64", "memory of the GPU in use", True),
    ),
    "Processor, memory and descriptors of every host and proc, and each GPU of a host with 0 for these, every 10 seconds",
    "SELECT host, proc, max(rss_bytes) - min(rss_bytes) AS growth FROM resources WHERE proc IS NOT NULL"
    " GROUP BY host, proc ORDER BY growth DESC LIMIT 20",
    "history",
)
SPAN_CONTEXT = Table(
    "span_context",
    (
        Column("process_id", "u64", "the process (procs.proc_id)"),
        Column("span_id", "u64", "the span (spans.id)"),
        Column("trace_id", "text", "the trace, 32 hexadecimal digits"),
        Column("parent_process_id", "u64", "the process of the span around it", True),
        Column("parent_span_id", "u64", "the span around it, which may be of another process", True),
        Column("sampled", "bool", "whether the trace is exported"),
    ),
    "The trace of each span, and its parent across processes",
    "SELECT c.trace_id, s.name, s.timestamp_us FROM span_context c JOIN spans s ON s.process_id = c.process_id AND s.id = c.span_id"
    " WHERE c.sampled ORDER BY c.trace_id, s.timestamp_us LIMIT 50",
    "history",
)
RDMA_OPS = Table(
    "rdma_ops",
    (
        time("timestamp_us", "when it began"),
        Column("proc", "text", "the name of the proc that began it"),
        Column("peer", "text", "the name of the proc that has the buffer"),
        Column("op", "text", "the operation, such as read, write or fetch_add"),
        Column("path", "text", "how the bytes went, such as local or cuda-ipc"),
        Column("bytes", "u64", "bytes that were moved"),
        Column("latency_us", "u64", "how long it took, in microseconds"),
        Column("retries", "u64", "0: an operation that fails is not tried again, and retries of the device are not reported"),
        Column("error", "text", "the text of the error, where it failed", True),
    ),
    "Each operation on the memory of another process (monarch-rdma)",
    "SELECT path, op, count(*) AS ops, sum(bytes) AS bytes, max(latency_us) AS max_us FROM rdma_ops GROUP BY path, op ORDER BY bytes DESC",
    "history",
)
RDMA_BUFFERS = Table(
    "rdma_buffers",
    (
        Column("buffer", "u64", "a short number of the buffer; it is no capability"),
        Column("proc", "text", "the name of the proc that has it"),
        Column("bytes", "u64", "its size in bytes"),
        Column("readonly", "bool", "whether others may only read it"),
        time("created_us", "when it was made"),
        time("lease_until_us", "until when it stays, where it has a lease", nullable=True),
        Column("given_away", "bool", "whether another process has it"),
    ),
    "Each buffer that other processes may use (monarch-rdma)",
    "SELECT proc, count(*) AS buffers, sum(bytes) AS bytes FROM rdma_buffers GROUP BY proc ORDER BY bytes DESC",
    "entities",
)
FS_EVENTS = Table(
    "fs_events",
    (
        _TIME,
        _GIVEN_HOST,
        Column("target", "text", "the mount point"),
        Column("event", "text", "such as mount, refresh, fault, push or unmount"),
        Column("path", "text", "the file", True),
        Column("bytes", "u64", "bytes that were moved", True),
        _DETAIL,
    ),
    "Actions of mounts and pushes of files (monarch-fs)",
    "SELECT host, event, count(*) AS events, sum(bytes) AS bytes FROM fs_events GROUP BY host, event ORDER BY bytes DESC",
    "history",
)
MOUNTS = Table(
    "mounts",
    (
        _GIVEN_HOST,
        Column("target", "text", "the mount point"),
        Column("source", "text", "where the files come from"),
        Column("generation", "u64", "the number of the tree that is shown; a refresh adds one"),
        Column("state", "text", "the state, as monarch mounts shows it"),
        Column("bytes_held", "u64", "bytes of files that the host keeps"),
        Column("faults", "u64", "reads that had to wait for the source"),
    ),
    "Each mount of a directory on a host (monarch-fs)",
    "SELECT target, min(generation) AS oldest, max(generation) AS newest, sum(faults) AS faults FROM mounts GROUP BY target",
    "entities",
)
JOB_EVENTS = Table(
    "job_events",
    (
        _TIME,
        Column("job", "text", "the name of the job"),
        Column("kind", "text", "its scheduler, such as slurm or kubernetes"),
        Column("event", "text", "what happened, such as submitted, running, host_lost or healed"),
        Column("host", "text", "the host that it is about", True),
        _DETAIL,
    ),
    "Events of the job at its scheduler (monarch-jobs)",
    "SELECT timestamp_us, event, host, detail FROM job_events ORDER BY timestamp_us DESC LIMIT 50",
    "history",
)
AUDIT = Table(
    "audit",
    (
        time("timestamp_us", "when it was asked for"),
        Column("who", "text", "the user, or the kind of token"),
        Column("scope", "text", "read, admin or none"),
        Column("source", "text", "the address or program that it came from"),
        Column("action", "text", "the route or command"),
        Column("target", "text", "what it was about"),
        Column("outcome", "text", "done, refused or failed"),
        _DETAIL,
    ),
    "Each query, action and refusal",
    "SELECT timestamp_us, who, source, action, target FROM audit WHERE outcome = 'refused' ORDER BY timestamp_us DESC LIMIT 50",
    "history",
)
TELEMETRY_STATUS = Table(
    "telemetry_status",
    (
        _HOST,
        Column("table_name", "text", "the table"),
        Column("rows", "u64", "rows that are kept"),
        Column("bytes", "u64", "memory of those rows, in bytes"),
        time("oldest_us", "when the oldest of them came", nullable=True),
        Column("dropped", "u64", "rows that were dropped, for their age, for room, or in a full ring"),
        Column("sample_weight", "f64", "for how many rows that happened each kept row stands; 1 where nothing is sampled"),
    ),
    "Rows that the collector of each host keeps and has dropped, by table",
    "SELECT table_name, sum(rows) AS rows, sum(dropped) AS dropped FROM telemetry_status GROUP BY table_name ORDER BY rows DESC",
    "live",
)

METRIC_TOTALS = Table(
    "metric_totals",
    (
        Column("kind", "text", "gauge, sum or histogram"),
        Column("name", "text", "the metric, such as endpoint_message_size"),
        time("timestamp_us", "the last measurement"),
        time("start_timestamp_us", "the start of what is counted"),
        Column("scope_name", "text", "the meter"),
        Column("unit", "text", "the unit of the values, such as us or By"),
        Column("is_monotonic", "bool", "whether the value never falls"),
        Column("attributes_json", "text", "the attributes that a series of the metric has, as a JSON object"),
        Column("resource_attributes_json", "text", "host, job, mesh, rank and process, as a JSON object"),
        Column("value_f64", "f64", "the last value of a gauge, the sum of all others; a floating point number", True),
        Column("value_i64", "i64", "the same, where it is a signed number", True),
        Column("value_u64", "u64", "the same, where it is an unsigned number", True),
        Column("count", "u64", "of a histogram the number of measurements", True),
        Column("bounds_json", "text", "of a histogram the upper bounds of the buckets but the last, as a JSON list", True),
        Column("bucket_counts_json", "text", "of a histogram the measurements in each bucket, as a JSON list", True),
    ),
    "Each series of a metric as it is now; of what is counted the total since the collector or the program began",
    "SELECT name, sum(coalesce(value_f64, value_i64, value_u64)) AS total FROM metric_totals WHERE kind = 'sum' GROUP BY name",
    "live",
)

TABLES = (
    LOGS,
    HOSTS,
    PROCS,
    FAILURES,
    SUPERVISION_EVENTS,
    ENDPOINT_STATS,
    LINKS,
    RESOURCES,
    SPAN_CONTEXT,
    RDMA_OPS,
    RDMA_BUFFERS,
    FS_EVENTS,
    MOUNTS,
    JOB_EVENTS,
    AUDIT,
    TELEMETRY_STATUS,
    METRIC_TOTALS,
)
