"""The metrics of Monarch itself: names, kinds, units, and the tables that they come from. docs/opentelemetry-reference.md lists them.

`metric_sources` makes their rows. Metrics of programs (`get_meter`) have the names that programs give them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "up_down_counter", "gauge", "histogram"]
# A call by choose is one by call_one, to the chosen receiver: it is counted there.
ADVERBS = ("call", "call_one", "stream", "broadcast")


class Metric(NamedTuple):
    """A metric. `unit` is of UCUM, as in OpenTelemetry: `By` are bytes, `us` microseconds, `{…}` a number of something."""

    name: str
    kind: Kind
    unit: str
    source: str
    # One sentence, without its full stop.
    meaning: str
    attributes: tuple[str, ...] = ()


_ENDPOINT = ("mesh", "endpoint")


def _endpoints() -> tuple[Metric, ...]:
    found: list[Metric] = []
    for adverb in ADVERBS:
        calls = f"Calls by {adverb}"
        found += (
            Metric(f"endpoint_{adverb}_throughput", "counter", "{call}", "endpoint_stats", f"{calls} that have ended", _ENDPOINT),
            Metric(f"endpoint_{adverb}_error", "counter", "{call}", "endpoint_stats", f"{calls} that have failed", _ENDPOINT),
        )
        if adverb != "broadcast":
            name = f"endpoint_{adverb}_latency_us_histogram"
            found.append(Metric(name, "histogram", "us", "endpoint_stats", f"{calls}: the time from call to answer", _ENDPOINT))
    return tuple(found)


METRICS: tuple[Metric, ...] = (
    *_endpoints(),
    Metric("endpoint_message_size", "histogram", "By", "endpoint_stats", "Bytes of a call and its answer, without buckets", _ENDPOINT),
    Metric("py_messages_handled", "counter", "{message}", "endpoint_stats", "Messages that endpoints have handled", _ENDPOINT),
    Metric("mailbox.posts", "counter", "{message}", "messages", "Messages that mailboxes got; an estimate where messages are sampled"),
    Metric(
        "mailbox.undeliverable_messages", "counter", "{message}", "message_status_events", "Messages that failed before an actor took them"
    ),
    Metric("actor.messages_sent", "counter", "{message}", "sent_messages", "Calls and casts of actors; a cast counts once"),
    Metric("actor.messages_received", "counter", "{message}", "endpoint_stats", "Calls that actors have handled", _ENDPOINT),
    Metric("actor.message_receive_errors", "counter", "{message}", "endpoint_stats", "Calls that an endpoint has failed", _ENDPOINT),
    Metric("actor.message_queue_size", "gauge", "{message}", "actor_nodes", "Messages that wait in mailboxes, at the last snapshot"),
    Metric("actor.message_handler_duration.ns", "histogram", "ns", "endpoint_stats", "The time in which an endpoint ran", _ENDPOINT),
    Metric("message.e2e_latency.us", "histogram", "us", "endpoint_stats", "The time from a call to its answer, where there is one"),
    Metric("channel.connections", "gauge", "{connection}", "links", "Connections between hosts that are up", ("from", "to")),
    Metric("channel.reconnections", "counter", "{connection}", "links", "Connections that were made again", ("from", "to")),
    Metric("channel.errors", "counter", "{error}", "links", "Connections that were lost", ("from", "to")),
    Metric("channel.latency.us", "gauge", "us", "links", "The last round trip of a connection", ("from", "to")),
    Metric("channel.throughput.bytes", "counter", "By", "links", "Bytes that connections have sent", ("from", "to")),
    Metric("channel.throughput.messages", "counter", "{message}", "endpoint_stats", "Calls and answers, those within a process too"),
    Metric("channel.remote_message_send_size", "histogram", "By", "endpoint_stats", "Bytes of a call that was sent, without buckets"),
    Metric("proc_mesh.active_procs", "gauge", "{process}", "procs", "Procs that run"),
    Metric("proc_mesh.proc_failures", "counter", "{process}", "procs", "Procs that ended by a signal, or with another status than 0"),
    Metric("proc_mesh.actor_failures", "counter", "{actor}", "actor_status_events", "Actors that have failed"),
    Metric("process.memory.rss_bytes", "gauge", "By", "resources", "Memory of a process in use", ("host", "proc")),
    Metric("process.memory.vm_bytes", "gauge", "By", "/proc", "Address space of a process", ("host", "proc")),
    Metric("monarch.host.cpu", "gauge", "%", "resources", "Processor time of a host, in percent of one processor", ("host",)),
    Metric("monarch.host.memory", "gauge", "By", "resources", "Memory of a host in use", ("host",)),
    Metric("monarch.process.cpu", "gauge", "%", "resources", "Processor time of a process, in percent of one processor", ("host", "proc")),
    Metric("monarch.process.threads", "gauge", "{thread}", "resources", "Threads of a process", ("host", "proc")),
    Metric("monarch.process.open_files", "gauge", "{file}", "resources", "Open file descriptors of a process", ("host", "proc")),
    Metric("monarch.gpu.utilization", "gauge", "%", "resources", "Time in which a GPU was busy", ("host", "gpu")),
    Metric("monarch.gpu.memory", "gauge", "By", "resources", "Memory of a GPU in use", ("host", "gpu")),
    Metric("monarch.rdma.operations", "counter", "{operation}", "rdma_ops", "Operations on memory of another process", ("op", "path")),
    Metric("monarch.rdma.errors", "counter", "{operation}", "rdma_ops", "Operations that have failed", ("op", "path")),
    Metric("monarch.rdma.retries", "counter", "{operation}", "rdma_ops", "Operations that were tried again", ("op", "path")),
    Metric("monarch.rdma.io", "counter", "By", "rdma_ops", "Bytes that operations have moved", ("op", "path")),
    Metric("monarch.rdma.duration", "histogram", "s", "rdma_ops", "The time of an operation, without buckets", ("op", "path")),
    Metric("monarch.rdma.buffers", "gauge", "{buffer}", "rdma_buffers", "Buffers that other processes may use", ("proc",)),
    Metric("monarch.rdma.buffer_memory", "gauge", "By", "rdma_buffers", "The size of those buffers", ("proc",)),
    Metric("monarch.fs.events", "counter", "{event}", "fs_events", "Actions of mounts and pushes of files", ("event",)),
    Metric("monarch.fs.io", "counter", "By", "fs_events", "Bytes that mounts and pushes have moved", ("event",)),
    Metric("monarch.fs.held", "gauge", "By", "mounts", "Bytes of files that a host keeps for a mount", ("host", "target")),
    Metric("monarch.fs.faults", "counter", "{fault}", "mounts", "Reads of a mount that waited for the source", ("host", "target")),
    Metric("monarch.job.hosts", "gauge", "{host}", "hosts", "Hosts of the job, by their state", ("state",)),
    Metric("monarch.job.events", "counter", "{event}", "job_events", "Events of the job at its scheduler", ("event", "kind")),
    Metric("monarch.job.failures", "counter", "{failure}", "failures", "Failures that no other failure caused", ("kind",)),
    Metric("monarch.telemetry.rows", "gauge", "{row}", "telemetry_status", "Rows that collectors keep", ("table",)),
    Metric("monarch.telemetry.dropped", "counter", "{row}", "telemetry_status", "Rows that collectors have dropped", ("host", "table")),
)
BY_NAME = {one.name: one for one in METRICS}


def meaning(name: str) -> str:
    """The meaning of a metric of Monarch; empty for one of a program."""
    known = BY_NAME.get(name)
    return "" if known is None else known.meaning


def markdown() -> str:
    """The metrics as a table of docs/opentelemetry-reference.md."""
    lines = ["| Metric | Kind | Unit | Attributes | Meaning | From |", "|---|---|---|---|---|---|"]
    for one in METRICS:
        attributes = ", ".join(f"`{name}`" for name in one.attributes)
        source = f"[`{one.source}`](sql.md#{one.source})" if one.source != "/proc" else "`/proc`"
        lines.append(f"| `{one.name}` | {one.kind.replace('_', ' ')} | `{one.unit}` | {attributes} | {one.meaning} | {source} |")
    return "\n".join(lines) + "\n"
