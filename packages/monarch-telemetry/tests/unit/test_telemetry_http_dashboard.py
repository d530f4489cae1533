"""The dashboard API over a made-up job: what each list has, filters, pages, and ids as texts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.asgi_call import call, send
from support.http_parts import TOKENS, app
from support.made_up_job import (
    ACTORS,
    END,
    FAILURE,
    HOST_MESH,
    LOADER,
    LOADERS,
    MESSAGES,
    PROC_MESH,
    SECOND,
    START,
    TRAINER,
    TRAINERS,
    rows,
)

from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._http.summary import health_score


def get(path: str, *, status: int = 200, engine: Any = None) -> Any:
    answer = call(lambda: app(**({} if engine is None else {"engine": engine})), "GET", f"/api/{path}", token=TOKENS.read)
    assert answer.status == status, answer.text
    return answer.json


def pages(path: str) -> list[Any]:
    """The rows of all pages."""

    async def run() -> list[Any]:
        application, found, cursor = app(), [], None
        while True:
            url = f"/api/{path}" + (f"&cursor={cursor}" if cursor else "")
            answer = (await send(application, "GET", url, token=TOKENS.read)).json
            found += answer["rows"]
            if answer["cursor"] is None or not answer["rows"]:
                return found
            cursor = answer["cursor"]

    return asyncio.run(run())


def test_summary_counts_the_job() -> None:
    found = get("summary")
    assert found["mesh_counts"] == {"total": 4}
    assert found["hierarchy_counts"] == {"host_meshes": 1, "proc_meshes": 1, "actor_meshes": 2}
    assert found["actor_counts"] == {"total": 6, "by_status": {"Failed": 2, "Idle": 2, "Processing": 1, "Stopped": 1}}
    messages = found["message_counts"]
    assert messages["total"] == MESSAGES
    assert messages["by_status"] == {"queued": 1, "active": 1, "complete": 9, "failed": 1}
    assert messages["by_endpoint"] == {"load": 6, "step": 6}
    assert messages["delivery_rate"] == 0.75
    assert found["errors"]["failed_messages"] == 1
    assert {one["actor_id"] for one in found["errors"]["failed_actors"]} == {str(TRAINER[3]), str(LOADER[1])}
    assert [one["reason"] for one in found["errors"]["stopped_actors"]] == ["stopped by its owner"]
    times = found["timeline"]
    assert times["start_us"] == START + 100 and times["end_us"] == START + 12 * SECOND
    assert times["failure_onset_us"] == START + 5 * SECOND + 3
    assert (times["total_status_events"], times["total_message_events"]) == (22, 33)
    assert found["health_score"] == pytest.approx((2 * 100 + 80 + 20) / 6, abs=0.01)


def test_empty_job_has_answers_of_the_same_form() -> None:
    empty = OneHost({})
    found = get("summary", engine=empty)
    assert found["actor_counts"] == {"total": 0, "by_status": {}}
    assert found["message_counts"]["delivery_rate"] == 1.0 and found["health_score"] == 100.0
    assert found["timeline"]["start_us"] is None
    assert get("message-stats", engine=empty)["endpoints"] == []
    assert get("message-activity", engine=empty) == {"start_us": None, "end_us": None, "total": 0, "buckets": []}
    dag = get("dag", engine=empty)
    assert (dag["nodes"], dag["edges"], dag["snapshot_pending"]) == ([], [], True)
    for path in ("logs", "metrics", "stacks", "timeline", "hosts"):
        page = get(path, engine=empty)
        assert (page["rows"], page["cursor"]) == ([], None)


@pytest.mark.parametrize(
    ("statuses", "score"),
    [
        ({}, 100.0),
        ({"Idle": 1}, 100.0),
        ({"Processing": 1}, 80.0),
        ({"Client": 1, "Unknown": 1}, 50.0),
        ({"Stopping": 1, "Created": 1}, 30.0),
        ({"Stopped": 1}, 20.0),
        ({"Failed": 3, "idle": 1}, 25.0),
    ],
)
def test_health_is_the_mean_over_actors(statuses: dict[str, int], score: float) -> None:
    assert health_score(statuses) == score


def test_old_status_comes_from_the_last_snapshot() -> None:
    old = rows()
    events = old["actor_status_events"][0]
    old["actor_status_events"] = [events.slice(0, 0)]
    found = get("summary", engine=OneHost(old))
    assert found["actor_counts"]["by_status"] == {"Idle": 6}
    old["actor_nodes"] = [old["actor_nodes"][0].slice(0, 0)]
    assert get("summary", engine=OneHost(old))["actor_counts"]["by_status"] == {"Unknown": 6}


def test_message_stats_count_endpoints_and_pairs() -> None:
    found = get("message-stats")
    assert found["lifecycle"] == {"queued": 1, "active": 1, "completed": 9, "failed": 1}
    assert found["endpoints"] == [{"endpoint": "load", "total": 6, "completed": 6}, {"endpoint": "step", "total": 6, "completed": 5}]
    assert sum(pair["total"] for pair in found["pairs"]) == MESSAGES
    assert {pair["from_actor_id"] for pair in found["pairs"]} == {str(one) for one in LOADER}
    without = rows()
    without["endpoint_stats"] = []
    counted = get("message-stats", engine=OneHost(without))["endpoints"]
    assert counted == [{"endpoint": "load", "total": 6, "completed": 5}, {"endpoint": "step", "total": 6, "completed": 4}]


def test_message_activity_fills_its_buckets() -> None:
    found = get("message-activity?buckets=11")
    assert sum(bucket["count"] for bucket in found["buckets"]) == MESSAGES
    assert found["total"] == MESSAGES and len(found["buckets"]) == 11
    part = get(f"message-activity?start_us={START}&end_us={START + 4 * SECOND}&buckets=4")
    assert [bucket["count"] for bucket in part["buckets"]] == [0, 1, 1, 1]
    assert get(f"message-activity?start_us={END}&end_us={START}")["buckets"] == []


def test_dag_links_actors_to_procs_and_hosts() -> None:
    found = get("dag")
    nodes = {node["id"]: node for node in found["nodes"]}
    assert len(nodes) == 2 + 4 + 6
    edges = {(edge["source_id"], edge["target_id"]) for edge in found["edges"] if edge["type"] == "hierarchy"}
    assert ("host:11", "proc:21") in edges and ("proc:24", f"actor:{TRAINER[3]}") in edges
    # A mesh on every second proc.
    assert {("proc:22", f"actor:{LOADER[0]}"), ("proc:24", f"actor:{LOADER[1]}")} <= edges
    assert len(edges) == 4 + 6
    messages = [edge for edge in found["edges"] if edge["type"] == "message"]
    assert sum(edge["count"] for edge in messages) == MESSAGES
    assert nodes[f"actor:{TRAINER[3]}"]["status"] == "Failed"
    assert nodes[f"actor:{TRAINER[3]}"]["entity_id"] == str(TRAINER[3])
    assert (found["snapshot_pending"], found["snapshot_partial"], found["resolution_error_count"]) == (False, True, 1)


def test_dag_rolls_up_into_meshes() -> None:
    found = get("dag?mode=mesh")
    nodes = {node["entity_id"]: node for node in found["nodes"]}
    assert nodes[str(TRAINERS)]["count"] == 4 and nodes[str(TRAINERS)]["status"] == "Failed"
    assert nodes[str(PROC_MESH)]["tier"] == "proc_mesh" and nodes[str(HOST_MESH)]["count"] == 2
    edges = {(edge["source_id"], edge["target_id"], edge["type"]): edge["count"] for edge in found["edges"]}
    assert edges[f"actor_mesh:{LOADERS}", f"actor_mesh:{TRAINERS}", "message"] == MESSAGES
    assert (f"proc_mesh:{PROC_MESH}", f"actor_mesh:{LOADERS}", "hierarchy") in edges


def test_system_actors_can_be_hidden() -> None:
    system = rows()
    import pyarrow as pa

    actors = system["actor_nodes"][0].to_pylist()
    for row in actors:
        row["is_system"] = row["node_id"] == LOADER[0]
    system["actor_nodes"] = [pa.RecordBatch.from_pylist(actors, schema=system["actor_nodes"][0].schema)]
    engine = OneHost(system)
    assert {node["id"] for node in get("dag", engine=engine)["nodes"] if node["is_system"]} == {f"actor:{LOADER[0]}"}
    assert not any(node["is_system"] for node in get("dag?hide_system=true", engine=engine)["nodes"])


def test_client_and_runtime_are_not_of_the_program() -> None:
    import pyarrow as pa

    job = rows()
    meshes = job["meshes"][0].to_pylist()
    meshes += [{**meshes[2], "id": 51, "class": "Client", "given_name": "client"}, {**meshes[2], "id": 52, "class": "monarch.x.Y"}]
    # The procs of a service have actors of the runtime only.
    meshes += [{**meshes[1], "id": 53, "given_name": "service x"}, {**meshes[2], "id": 54, "parent_mesh_id": 53, "class": "monarch.x.Y"}]
    actors = job["actors"][0].to_pylist()
    actors += [{**actors[0], "id": 61, "mesh_id": 51}, {**actors[0], "id": 62, "mesh_id": 52}]
    for name, its in (("meshes", meshes), ("actors", actors)):
        job[name] = [pa.RecordBatch.from_pylist(its, schema=job[name][0].schema)]
    engine = OneHost(job)
    found = get("summary", engine=engine)
    # The mesh of the program's client is no actor mesh, and neither is a mesh of the runtime.
    before = get("summary")
    assert found["mesh_counts"]["total"] == before["mesh_counts"]["total"] + 1
    assert found["hierarchy_counts"] == before["hierarchy_counts"]
    assert found["actor_counts"]["by_status"]["Client"] == 1
    shown = {node["entity_id"] for node in get("dag?hide_system=true", engine=engine)["nodes"]}
    assert "61" in shown and "62" not in shown
    shown = {node["entity_id"] for node in get("dag?hide_system=true&mode=mesh", engine=engine)["nodes"]}
    assert "51" in shown and str(PROC_MESH) in shown and not shown & {"52", "53", "54"}
    assert {"52", "53", "54"} <= {node["entity_id"] for node in get("dag?mode=mesh", engine=engine)["nodes"]}


def test_meshes_are_filtered() -> None:
    assert [mesh["id"] for mesh in get("meshes")] == [str(one) for one in (HOST_MESH, PROC_MESH, TRAINERS, LOADERS)]
    assert [mesh["given_name"] for mesh in get("meshes?class=Trainer")] == ["trainer"]
    assert {mesh["class"] for mesh in get("meshes?exclude_classes=Host,Proc")} == {"Trainer", "Loader"}
    assert [mesh["given_name"] for mesh in get(f"meshes?parent_mesh_id={HOST_MESH}")] == ["workers"]
    assert get(f"meshes/{TRAINERS}")["parent_mesh_id"] == str(PROC_MESH)
    assert [mesh["class"] for mesh in get(f"meshes/{PROC_MESH}/children?exclude_classes=Loader")] == ["Trainer"]
    assert [mesh["class"] for mesh in get(f"meshes/{PROC_MESH}/children?mesh_class=Loader")] == ["Loader"]
    assert get("meshes?class=O'Brien%20--") == []


@pytest.mark.parametrize("path", ["meshes/{}", "meshes/{}/children", "actors/{}", "actors/{}/status_events", "actors/{}/messages"])
@pytest.mark.parametrize("id", ["5", "x", "-1", "1.5", "99999999999999999999", "1%20OR%201=1"])
def test_unknown_ids_are_not_found(path: str, id: str) -> None:
    assert isinstance(get(path.format(id), status=404)["error"], str)


def test_actors_have_their_last_status() -> None:
    found = {actor["id"]: actor for actor in get("actors")}
    assert set(found) == {str(one) for one in ACTORS}
    assert found[str(TRAINER[0])]["latest_status"] == "Processing"
    assert [actor["rank"] for actor in get(f"actors?mesh_id={LOADERS}")] == [0, 1]
    one = get(f"actors/{TRAINER[3]}")
    assert (one["latest_status"], one["status_reason"], one["mesh_name"]) == ("Failed", "ValueError: bad batch", "trainer")
    statuses = [event["new_status"] for event in get(f"actors/{TRAINER[3]}/status_events")]
    assert statuses == ["Created", "Initializing", "Idle", "Failed"]


def test_messages_are_filtered_and_have_their_last_status() -> None:
    assert len(get("messages")) == MESSAGES
    assert [one["latest_status"] for one in get("messages?limit=3")] == ["failed", "active", "queued"]
    assert [one["id"] for one in get("messages")] == [str((1 << 63) + 100 + number) for number in range(MESSAGES)]
    mine = get(f"messages?from_actor_id={LOADER[0]}&to_actor_id={TRAINER[0]}")
    assert {(one["from_actor_id"], one["to_actor_id"]) for one in mine} == {(str(LOADER[0]), str(TRAINER[0]))} and len(mine) == 2
    assert {one["direction"] for one in get(f"actors/{LOADER[0]}/messages")} == {"out"}
    assert {one["direction"] for one in get(f"actors/{TRAINER[0]}/messages")} == {"in"}
    last = get("messages?limit=1")[0]["id"]
    assert [one["status"] for one in get(f"message_status_events?message_id={last}")] == ["queued"]
    assert len(get(f"sent_messages?sender_actor_id={LOADER[1]}")) == MESSAGES // 2


@pytest.mark.parametrize("limit", [1, 7, 40, 100])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_logs_are_all_of_them(limit: int, order: str) -> None:
    found = [row["seq"] for row in pages(f"logs?limit={limit}&order={order}")]
    assert found == list(range(40))[:: 1 if order == "asc" else -1]


def test_logs_are_filtered() -> None:
    assert {row["rank"] for row in get("logs?rank=2")["rows"]} == {2}
    assert {row["stream"] for row in get("logs?stream=stderr")["rows"]} == {"stderr"}
    assert len(get("logs?level=warning")["rows"]) == 10
    assert len(get("logs?host=host0&mesh=trainer")["rows"]) == 20
    assert [row["seq"] for row in get("logs?text=LINE%201%2C")["rows"]] == [1]
    # Special characters of LIKE and SQL.
    assert len(get("logs?text=100%25%20done_")["rows"]) == 40
    assert get("logs?text=100_")["rows"] == [] and get("logs?text=%25%27%3B--")["rows"] == []
    assert len(get("logs?text=it%27s")["rows"]) == 40
    between = get(f"logs?since_us={START + 5 * SECOND}&until_us={START + 8 * SECOND}&order=asc")
    assert [row["seq"] for row in between["rows"]] == [5, 6, 7]
    assert {row["actor_id"] for row in get(f"logs?actor_id={TRAINER[1]}")["rows"]} == {str(TRAINER[1])}


def test_follower_goes_on_where_it_was() -> None:
    last = get("logs?order=asc&limit=40")
    assert len(last["rows"]) == 40
    again = get(f"logs?order=asc&cursor={last['cursor']}")
    assert (again["rows"], again["cursor"]) == ([], last["cursor"])
    assert get("logs?limit=40")["cursor"] is None


def test_metrics_have_one_form() -> None:
    found = pages("metrics?limit=3&order=desc")
    assert len(found) == 11
    assert {row["kind"] for row in found} == {"gauge", "sum", "histogram"}
    assert [row["value"] for row in get("metrics?name=steps&order=asc")["rows"]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    histogram = get("metrics?kind=histogram")["rows"][0]
    assert (histogram["count"], histogram["value"], histogram["max"], histogram["bounds_json"]) == (4, 10.0, 4.0, "[2, 5]")


def test_stacks_are_dumps_and_then_frames() -> None:
    assert [row["dump_id"] for row in get("stacks")["rows"]] == ["d1"]
    frames = get("stacks?dump_id=d1&limit=1")
    assert frames["rows"][0]["name"] == "step" and frames["cursor"]
    assert [row["name"] for row in pages("stacks?dump_id=d1&limit=1")] == ["step", "main"]


def test_timeline_has_ends_of_spans() -> None:
    found = {row["id"]: row for row in pages("timeline?limit=3&order=asc")}
    assert len(found) == 8
    assert found["900"]["end_us"] == START + 600 and found["900"]["rank"] == 0 and found["900"]["host"] == "host0"
    assert found["907"]["end_us"] is None and found["907"]["parent_id"] == "906"
    assert {row["name"] for row in get("timeline?name=step")["rows"]} == {"step"}


def test_hosts_have_their_procs_and_use() -> None:
    found = pages("hosts?limit=1")
    assert [(row["name"], row["num_procs"], row["rss_bytes"]) for row in found] == [
        ("host0", 2, (1 << 30) + 2),
        ("host1", 2, (1 << 30) + 2),
    ]
    assert found[0]["host_id"] == "11" and found[0]["cpu_pct"] == 52.0


def test_dashboard_query_reads_only() -> None:
    def post(sql: str) -> Any:
        return call(app, "POST", "/api/query", token=TOKENS.read, body={"sql": sql}).json

    assert post(f"SELECT id FROM failures WHERE id = {FAILURE}")["rows"] == [{"id": str(FAILURE)}]
    assert "read-only" in post("DELETE FROM failures")["error"]
