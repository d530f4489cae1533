"""Nodes of the topology over a made-up job: references, properties of each kind, the tree, and hosts that are silent."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.http_parts import engine
from support.made_up_job import END, HOSTS, LOADER, PROC_MESH, PROCS, START, TRAINER, rows

from monarch.telemetry._asking import Answer
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._http import models, sql_nodes
from monarch.telemetry._http.placement import Placement, viewed
from monarch.telemetry._http.references import KINDS, ROOT, Reference, parse
from monarch.telemetry._http.schema import checked
from monarch.telemetry._http.sql_nodes import SqlNodes, instant
from monarch.telemetry._ingest.ids import actor_id
from monarch.telemetry._sql.coverage import Missing

# Also on a busy machine: optional parts of a node are omitted if time is short.
SECONDS = 25.0


def nodes(source: Any = None) -> SqlNodes:
    return SqlNodes(source or engine(), clock=lambda: END / 1e6)


def node(kind: str, number: int, source: Any = None) -> Any:
    found = nodes(source).node(str(Reference(kind, number)), timeout=SECONDS)
    assert found is not None
    checked(found, models.NodePayload, "node")
    return found


@given(st.sampled_from(KINDS[1:]), st.integers(0, (1 << 64) - 1))
def test_reference_reads_back(kind: str, number: int) -> None:
    reference = Reference(kind, number)
    assert parse(str(reference)) == reference
    assert str(reference).replace("-", "").replace("_", "").isalnum()


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9_\-]{0,50}", fullmatch=True))
def test_other_texts_are_no_references(text: str) -> None:
    found = parse(text)
    assert found is None or str(found) == text


@pytest.mark.parametrize("path", ["root", "tree", "admin", "schema", "query", "stacks", "events", "openapi.json"])
def test_paths_of_the_api_are_no_references(path: str) -> None:
    assert parse(path) is None


def test_root_has_the_hosts() -> None:
    found: Any = nodes().root(timeout=SECONDS)
    assert found["properties"]["Root"] == {
        "num_hosts": 2,
        "started_at": "2023-11-14T22:13:20.000Z",
        "started_by": "ada",
        "system_children": [],
    }
    assert found["children"] == [str(Reference("host", host)) for host in HOSTS]
    assert found["parent"] is None and found["identity"] == str(ROOT)
    assert nodes().node(str(ROOT), timeout=SECONDS) == found


def test_every_node_can_be_reached_from_the_root() -> None:
    seen: set[str] = set()
    queue = [(str(ROOT), None)]
    while queue:
        reference, parent = queue.pop()
        found = nodes().node(reference, timeout=SECONDS)
        assert found is not None and found["parent"] == parent
        seen.add(reference)
        queue += [(child, reference) for child in found["children"]]
    # Each trainer and loader, and an actor of the runtime that only the snapshot contains.
    assert len(seen) == 1 + 2 + 4 + 7


def test_host_has_its_procs_and_memory() -> None:
    found = node("host", HOSTS[0])
    host = found["properties"]["Host"]
    assert (host["addr"], host["num_procs"], host["memory"]["process_rss_bytes"]) == ("tcp://10.0.0.0:26600", 2, (1 << 30) + 2)
    assert found["children"] == [str(Reference("proc", proc)) for proc in PROCS[:2]]


def test_proc_counts_its_failures_and_queues() -> None:
    found = node("proc", PROCS[3])
    proc = found["properties"]["Proc"]
    failed = {str(Reference("actor", actor)) for actor in (TRAINER[3], LOADER[1])}
    assert (proc["proc_name"], proc["is_poisoned"], proc["failed_actor_count"], proc["num_actors"]) == ("workers[3]", True, 2, 0)
    assert set(proc["stopped_children"]) == failed == set(found["children"])
    assert proc["stopped_retention_cap"] == 100
    assert proc["debug"]["actor_work_queue_depth_high_water_mark"] == 3
    assert proc["debug"]["last_nonzero_queue_depth_age_ms"] == 40_000
    system = str(Reference("actor", 99))
    first = node("proc", PROCS[0])
    assert first["properties"]["Proc"]["system_children"] == [system] and system in first["children"]


def test_actor_has_its_failure_and_cause() -> None:
    actor = node("actor", TRAINER[3])["properties"]["Actor"]
    assert actor["actor_status"] == "Failed" and actor["instance_id"] == str(TRAINER[3])
    assert actor["failure_info"] == {
        "error_message": "ValueError: bad batch",
        "root_cause_actor": "<root>.<Trainer trainer{'gpus': 3/4}>",
        "root_cause_name": "trainer[3]",
        "occurred_at": "2023-11-14T22:13:25.000Z",
        "is_propagated": False,
    }
    consequence = node("actor", LOADER[1])["properties"]["Actor"]["failure_info"]
    assert consequence["is_propagated"] and consequence["root_cause_actor"] == "trainer[3]"


def test_actor_has_what_the_snapshot_adds() -> None:
    actor = node("actor", TRAINER[0])["properties"]["Actor"]
    assert (actor["actor_type"], actor["messages_processed"], actor["last_message_handler"]) == ("Trainer", 8, "step")
    assert actor["execution"]["active_handlers"][0]["name"] == "step"
    assert actor["inbound_ordering"]["sessions"][0]["buffered_count"] == 2
    recorded = json.loads(actor["flight_recorder"])
    assert recorded[0]["timestamp_us"] >= recorded[-1]["timestamp_us"] and {"stdout"} <= {row["kind"] for row in recorded}
    assert "failure_info" not in actor


def test_actor_of_the_runtime_is_in_the_snapshot() -> None:
    found = node("actor", 99)
    assert found["properties"]["Actor"]["is_system"] and found["parent"] == str(Reference("proc", PROCS[0]))


def test_live_state_comes_before_the_snapshot() -> None:
    live = rows()
    from monarch.telemetry._tables.live import LIVE_ACTORS

    row = {
        "actor_id": TRAINER[0],
        "proc_id": PROCS[0],
        "host": "host0",
        "mesh_name": "trainer",
        "rank": 0,
        "actor_type": "Trainer",
        "actor_status": "Processing",
        "endpoint": "load",
        "endpoint_since_us": START,
        "queue_depth": 17,
        "messages_processed": 123,
        "total_processing_time_us": 9,
        "is_system": False,
    }
    live["live_actors('trainer')"] = [pa.RecordBatch.from_pylist([row], schema=LIVE_ACTORS.schema())]
    live["live_actors()"] = live["live_actors('trainer')"]

    class Live(OneHost):
        def ask(self, sql: str, **more: Any) -> Answer:
            return super().ask(sql.replace("live_actors('trainer')", "live_actors()"), **more)

    actor = node("actor", TRAINER[0], Live(live))["properties"]["Actor"]
    assert (actor["queue_depth"], actor["messages_processed"]) == (17, 123)
    assert actor["execution"]["active_handlers"] == [{"name": "load", "active_count": 1, "oldest_since": "2023-11-14T22:13:20.000Z"}]


@pytest.mark.parametrize("reference", ["", "x", str(Reference("actor", 5)), str(Reference("host", 5)), str(Reference("proc", 5)), "ÿ" * 10])
def test_reference_to_nothing_is_none(reference: str) -> None:
    assert nodes().node(reference, timeout=SECONDS) is None


def test_node_of_a_silent_host_is_an_error() -> None:
    class Partial(OneHost):
        def ask(self, sql: str, **more: Any) -> Answer:
            found = super().ask(sql, **more)
            return found._replace(coverage=found.coverage._replace(missing=(Missing("host1", "no answer in 0.8 s"),)))

    partial = Partial(rows())
    lost = node("proc", 5, partial)
    assert lost["properties"]["Error"]["code"] == "gateway_timeout" and "host1" in lost["properties"]["Error"]["message"]
    assert "Proc" in node("proc", PROCS[0], partial)["properties"]
    assert "! host1 did not answer: no answer in 0.8 s" in nodes(partial).tree(timeout=SECONDS)


def test_tree_shows_all_with_their_status() -> None:
    text = nodes().tree(timeout=SECONDS)
    lines = text.splitlines()
    assert lines[0] == "job: 2 hosts, 4 procs, 6 actors"
    assert "└── host1 (tcp://10.0.0.1:26600) [ready]" in lines
    assert "        └── trainer[3] [Failed]" in lines
    assert "│       ├── loader[0] [Stopped]" in lines
    assert len(lines) == 1 + 2 + 4 + 6


def test_tree_of_a_large_job_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_nodes, "TREE_LINES", 5)
    lines = nodes().tree(timeout=SECONDS).splitlines()
    assert len(lines) == 6 and lines[-1].startswith("… 8 more lines")


def test_actors_are_placed_by_their_numbers() -> None:
    meshes = [{"id": 7, "parent_mesh_id": PROC_MESH, "parent_view_json": '{"gpus": 2}'}]
    procs = [{"proc_id": proc, "mesh_id": PROC_MESH, "rank": rank} for rank, proc in enumerate(PROCS)]
    placement = Placement(meshes, procs)
    # Rank 0 of a mesh on a part of the procs that starts at the third.
    assert placement.proc(actor_id(PROCS[2], 7), 7, 0) == PROCS[2]
    assert placement.proc(actor_id(PROCS[1], 7), 7, 1) == PROCS[1]
    assert placement.proc(5, 7, 3) == PROCS[3]
    assert placement.proc(5, 7, 9) is None and placement.proc(5, 8, 0) is None


@pytest.mark.parametrize(
    ("view", "rank", "found"),
    [
        (None, 3, 3),
        ("{", 3, 3),
        ('{"gpus": 2}', 1, 1),
        ('{"offset": 1, "sizes": [2], "strides": [2]}', 1, 3),
        ('{"slice": {"offset": 4, "sizes": [2, 2], "strides": [8, 1]}}', 3, 13),
        ('{"offset": 0, "sizes": [2], "strides": []}', 1, 1),
        ('{"offset": 0, "sizes": [2], "strides": [1]}', 5, 5),
    ],
)
def test_ranks_of_views(view: str | None, rank: int, found: int) -> None:
    assert viewed(view, rank) == found


@pytest.mark.parametrize(
    ("us", "text"), [(None, None), (0, "1970-01-01T00:00:00.000Z"), (1_500_999, "1970-01-01T00:00:01.500Z"), (1 << 62, None)]
)
def test_times_are_rfc_3339(us: int | None, text: str | None) -> None:
    assert instant(us) == text
