"""The rows of a healthy made-up job, and faults that are added to them: each is one that a canned query of its name has to find.

The job: 4 hosts with 2 procs and 2 GPUs each, a mesh of 8 trainers, snapshots every 30 s and resources every 10 s for 10 minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch.telemetry._tables.catalog import TABLES

START = 1_700_000_040_000_000
SECOND = 1_000_000
MINUTES = 10
END = START + MINUTES * 60 * SECOND
BIG = 1 << 63
HOSTS = ("host0", "host1", "host2", "host3")
RANKS = range(8)
PROC_MESH, TRAINERS = BIG + 1, BIG + 2
SNAPSHOTS = MINUTES * 2

Row = dict[str, Any]
Rows = dict[str, list[Row]]
_EMPTY = {"text": "", "u64": 0, "i64": 0, "i32": 0, "f64": 0.0, "bool": False}


def actor(rank: int) -> int:
    """The number of the trainer of this rank."""
    return BIG + 100 + rank


def host(rank: int) -> str:
    """The host of the trainer of this rank."""
    return HOSTS[rank // 2]


def batches(rows: Rows) -> dict[str, list[Any]]:
    """Batches by table; columns that a row leaves out are null, or empty where they may not be."""
    import pyarrow as pa

    found: dict[str, list[Any]] = {}
    for name, given in rows.items():
        # A table function has the rows of a call.
        table = TABLES[name.removesuffix("()")]
        columns = table.columns
        full = [{one.name: row.get(one.name, None if one.nullable else _EMPTY[one.kind]) for one in columns} for row in given]
        assert all(set(row) <= {one.name for one in columns} for row in given), name
        found[name] = [pa.RecordBatch.from_pylist(full, schema=table.schema())]
    return found


def healthy() -> Rows:
    """The rows of the job without a fault."""
    return {
        "hosts": [
            {"host_id": 10 + at, "name": name, "address": f"tcp://10.0.0.{at}:1", "state": "ready", "joined_us": START}
            for at, name in enumerate(HOSTS)
        ],
        "meshes": [
            {"id": PROC_MESH, "class": "Proc", "given_name": "workers", "full_name": "<root>.<workers>"},
            {"id": TRAINERS, "class": "Trainer", "given_name": "trainer", "full_name": "<root>.<trainer>", "parent_mesh_id": PROC_MESH},
        ],
        "procs": [
            {"proc_id": 20 + rank, "host_id": 10 + rank // 2, "mesh_id": PROC_MESH, "rank": rank, "pid": 1000 + rank, "started_us": START}
            for rank in RANKS
        ],
        "actors": [
            {"id": actor(rank), "mesh_id": TRAINERS, "rank": rank, "full_name": f"<root>.<trainer{{'gpus': {rank}/8}}>"} for rank in RANKS
        ],
        "failures": [],
        "job_events": [{"timestamp_us": START, "job": "j", "kind": "local", "event": "running"}],
        "fs_events": [{"timestamp_us": START, "host": name, "target": "/data", "event": "mount", "bytes": 100} for name in HOSTS],
        "mounts": [
            {"host": name, "target": "/data", "source": "/source", "generation": 4, "state": "running", "faults": 110 + at}
            for at, name in enumerate(HOSTS)
        ],
        "links": [
            {"link_id": 16 * one + other, "from_host": HOSTS[one], "to_host": HOSTS[other], "kind": "tcp", "state": "up"}
            | {"rtt_us": 200 + 10 * one, "reconnects": 1}
            for one in range(4)
            for other in range(4)
            if one != other
        ],
        "endpoint_stats": [
            {"window_us": START + 60 * SECOND * at, "side": side, "mesh_name": "trainer", "endpoint": name, "adverb": "call"}
            | {"count": 60, "latency_sum_us": 60 * longest // 2, "latency_max_us": longest}
            for at in range(MINUTES)
            for side in ("client", "server")
            # Checkpoints take half a minute.
            for name, longest in (("step", SECOND), ("checkpoint", 30 * SECOND))
        ],
        **_snapshots(),
        **_messages(),
        "resources": _resources(),
        "logs": [
            {"timestamp_us": START + SECOND * at, "seq": at, "host": host(rank), "proc": f"workers[{rank}]", "pid": 1000 + rank}
            | {"mesh_name": "trainer", "rank": rank, "stream": "stdout", "line": f"step {at} of rank {rank}"}
            for rank in RANKS
            for at in range(0, MINUTES * 60, 2)
        ],
    }


def _snapshots() -> Rows:
    found: Rows = {name: [] for name in ("snapshots", "children", "proc_nodes", "actor_nodes", "active_handlers")}
    for number in range(1, SNAPSHOTS + 1):
        at = START + number * 30 * SECOND
        own: Row = {"snapshot_id": number}
        found["snapshots"].append({**own, "snapshot_ts": at})
        for rank in RANKS:
            found["proc_nodes"].append({**own, "node_id": 20 + rank, "proc_name": f"workers[{rank}]"})
            found["children"].append({**own, "parent_id": 20 + rank, "child_id": actor(rank), "child_sort_key": str(rank)})
            found["actor_nodes"].append(
                {**own, "node_id": actor(rank), "instance_id": actor(rank), "actor_status": "Processing", "actor_type": "Trainer"}
                # 60 messages and 20 s of work between two snapshots; ranks differ by a few percent.
                | {"messages_processed": 60 * number, "total_processing_time_us": number * 20 * SECOND + rank * number * SECOND // 4}
                | {"last_message_handler": "step", "queue_depth": 5 + (number * 7 + rank) % 11}
            )
            # A call that always takes long, and a call that has just started.
            name, age = ("checkpoint", 25) if rank == 0 else ("step", 0.4)
            found["active_handlers"].append(
                {**own, "node_id": actor(rank), "name": name, "active_count": 1, "oldest_since": at - int(age * SECOND)}
            )
    # An actor of the runtime is busy forever, and its queue grows.
    for number in range(1, SNAPSHOTS + 1):
        found["actor_nodes"].append(
            {
                "snapshot_id": number,
                "node_id": 99,
                "instance_id": 99,
                "actor_status": "Processing",
                "actor_type": "Agent",
                "is_system": True,
            }
            | {"queue_depth": 1000 * number}
        )
        found["active_handlers"].append({"snapshot_id": number, "node_id": 99, "name": "run", "active_count": 1, "oldest_since": START})
    return found


def _messages() -> Rows:
    """Ranks call each other both ways all the time, and are answered; the last calls are in progress."""
    found: Rows = {"messages": [], "message_status_events": []}
    for at in range(0, MINUTES * 60, 5):
        for rank in RANKS:
            number, when = BIG + 10_000 + at * 8 + rank, START + at * SECOND
            found["messages"].append(
                {"id": number, "timestamp_us": when, "from_actor_id": actor(rank), "to_actor_id": actor(rank ^ 1), "endpoint": "step"}
            )
            for status in ("queued", "active", *(["complete"] if at < MINUTES * 60 - 5 else [])):
                found["message_status_events"].append({"timestamp_us": when + 1, "message_id": number, "status": status})
    return found


def _resources() -> list[Row]:
    found: list[Row] = []
    for step in range(MINUTES * 6):
        at = START + step * 10 * SECOND
        for rank in RANKS:
            # Memory increases and decreases with the batches.
            rss = (2 << 30) + (step * 37 % 11) * (100 << 20)
            found.append({"timestamp_us": at, "host": host(rank), "proc": f"workers[{rank}]", "rss_bytes": rss})
            found.append(
                {"timestamp_us": at, "host": host(rank), "gpu": rank % 2, "gpu_util_pct": 90.0 + step % 7, "gpu_memory_bytes": 30 << 30}
            )
        for name in HOSTS:
            found.append({"timestamp_us": at, "host": name, "rss_bytes": 64 << 30})
            # A GPU that the job does not use.
            found.append({"timestamp_us": at, "host": name, "gpu": 7, "gpu_util_pct": 0.0, "gpu_memory_bytes": 3 << 20})
    return found


def _failure(number: int, seconds: float, **more: Any) -> Row:
    return {"id": 700 + number, "timestamp_us": START + int(seconds * SECOND), "kind": "user", "mesh_name": "trainer", **more}


def first_cause(rows: Rows) -> None:
    """Rank 3 fails in `step`; two other failures follow from it."""
    rows["failures"] += [
        _failure(2, 101, rank=2, cause_id=701, message="a peer has failed", exit_reason="failed"),
        _failure(1, 100, rank=3, first_cause=True, host="host1", pid=1003, endpoint="step", exit_reason="failed")
        | {"message": "ValueError: bad batch", "last_lines": "x" * 1000 + "loss is nan"},
        _failure(3, 102, cause_id=701, message="a child has failed", exit_reason="failed"),
    ]


def straggler(rows: Rows) -> None:
    """Rank 5 needs twice the time."""
    for row in rows["actor_nodes"]:
        if row["node_id"] == actor(5):
            row["total_processing_time_us"] *= 2


def stuck_endpoint(rows: Rows) -> None:
    """Rank 2 has been in `step` since three minutes before the end."""
    rows["active_handlers"] = [
        row for row in rows["active_handlers"] if row["node_id"] != actor(2) or row["snapshot_id"] < SNAPSHOTS - 6
    ] + [
        {"snapshot_id": number, "node_id": actor(2), "name": "step", "active_count": 1, "oldest_since": END - 180 * SECOND}
        for number in range(SNAPSHOTS - 6, SNAPSHOTS + 1)
    ]


def queue_growth(rows: Rows) -> None:
    """The queue of rank 7 grows by 40 messages a snapshot."""
    for row in rows["actor_nodes"]:
        if row["node_id"] == actor(7):
            row["queue_depth"] += 40 * row["snapshot_id"]


def memory_growth(rows: Rows) -> None:
    """The proc of rank 6 grows by 100 MiB a measurement."""
    for row in rows["resources"]:
        if row.get("proc") == "workers[6]":
            row["rss_bytes"] += (row["timestamp_us"] - START) // (10 * SECOND) * (100 << 20)


def slow_link(rows: Rows) -> None:
    """host1 to host3 takes 40 ms; host2 to host0 was lost and made again."""
    for row in rows["links"]:
        if (row["from_host"], row["to_host"]) == ("host1", "host3"):
            row["rtt_us"] = 40_000
        if (row["from_host"], row["to_host"]) == ("host2", "host0"):
            row |= {"reconnects": 9, "last_error": "no heartbeat"}


def gpu_idle(rows: Rows) -> None:
    """GPU 1 of host2 has done nothing for six minutes."""
    for row in rows["resources"]:
        if (row["host"], row.get("gpu")) == ("host2", 1) and row["timestamp_us"] >= END - 360 * SECOND:
            row["gpu_util_pct"] = 0.0


def lost_host(rows: Rows) -> None:
    """host3 is lost after eight minutes: the scheduler has taken it; host2 has left as it should."""
    rows["hosts"][3] |= {"state": "lost", "reason": "no heartbeat for 3 s", "left_us": START + 480 * SECOND}
    rows["hosts"][2] |= {"state": "left", "left_us": END}
    for proc in rows["procs"][6:]:
        proc |= {"ended_us": START + 480 * SECOND, "exit_reason": "host_lost"}
    rows["job_events"] += [
        {"timestamp_us": START + at * SECOND, "job": "j", "kind": "slurm", "event": event, "host": "host3", "detail": detail}
        for at, event, detail in ((1, "running", None), (479, "preempted", "by job 7"))
    ]


def log_burst(rows: Rows) -> None:
    """Rank 4 writes 3,000 lines of errors within half a minute."""
    rows["logs"] += [
        {"timestamp_us": START + 120 * SECOND + at * 10_000, "seq": 10_000 + at, "host": "host2", "proc": "workers[4]", "pid": 1004}
        | {"mesh_name": "trainer", "rank": 4, "stream": "logging", "level": "ERROR", "line": f"retry {at} of the connection"}
        for at in range(3000)
    ]


def slow_mount(rows: Rows) -> None:
    """host1 waits for every read, host2 shows an older tree, host3 has failed reads."""
    rows["mounts"][1]["faults"] = 50_000
    rows["mounts"][2]["generation"] = 3
    rows["fs_events"] += [
        {"timestamp_us": START + SECOND, "host": "host3", "target": "/data", "event": "error", "path": "a/b.bin", "detail": "EIO: gone"}
    ] * 3


def crash_loop(rows: Rows) -> None:
    """Rank 1 fails every 20 s, each time in the same way; all ranks of another mesh failed once."""
    rows["failures"] += [
        _failure(number, 100 + 20 * number, rank=1, first_cause=True, host="host0", exit_reason="exit code 1", message="no such device")
        for number in range(6)
    ]
    rows["failures"] += [
        _failure(100 + rank, 50, mesh_name="loader", rank=rank, first_cause=True, exit_reason="failed", message="disk full")
        for rank in RANKS
    ]


def deadlock(rows: Rows) -> None:
    """Ranks 2 and 3 call each other from their endpoints 40 s before the end, and wait."""
    since = END - 40 * SECOND
    for rank, other in ((2, 3), (3, 2)):
        rows["active_handlers"] = [
            row for row in rows["active_handlers"] if row["node_id"] != actor(rank) or row["snapshot_id"] < SNAPSHOTS - 1
        ] + [
            {"snapshot_id": number, "node_id": actor(rank), "name": f"exchange_{rank}", "active_count": 1, "oldest_since": since}
            for number in (SNAPSHOTS - 1, SNAPSHOTS)
        ]
        number = BIG + 900_000 + rank
        rows["messages"].append(
            {"id": number, "timestamp_us": since + SECOND, "from_actor_id": actor(rank), "to_actor_id": actor(other), "endpoint": "give"}
        )
        rows["message_status_events"].append({"timestamp_us": since + SECOND, "message_id": number, "status": "queued"})


FAULTS: dict[str, Callable[[Rows], None]] = {
    one.__name__: one
    for one in (
        first_cause,
        straggler,
        stuck_endpoint,
        queue_growth,
        memory_growth,
        slow_link,
        gpu_idle,
        lost_host,
        log_burst,
        slow_mount,
        crash_loop,
        deadlock,
    )
}
