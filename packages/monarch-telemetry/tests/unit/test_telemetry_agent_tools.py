"""The tools of agents, without the protocol: over the rows of a made-up job, with and without faults."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import made_up_faults as job
from support.engine import Engine

from monarch.telemetry import QueryError, TelemetryError
from monarch.telemetry._agents import compact, log_question, mcp_server, parameters
from monarch.telemetry._agents.actions import ACTIONS, Done
from monarch.telemetry._agents.compact import MOST_BYTES
from monarch.telemetry._agents.mcp_server import serve
from monarch.telemetry._agents.parameters import Parameter
from monarch.telemetry._agents.tools import GUIDE, Tools, stacks_statement
from monarch.telemetry._diagnose.collect import collected
from monarch.telemetry._diagnose.diagnosis import diagnosed
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._queries.catalog import load
from monarch.telemetry._sql.coverage import Missing
from monarch.telemetry._tables.catalog import TABLES

CANNED = load({}, Path(__file__).parent)


def tools(rows: job.Rows | None = None, **more: Any) -> Tools:
    engine = Engine(job.batches(job.healthy() if rows is None else rows))
    # The job is made up: no process of this machine is looked at.
    rows_only: dict[str, Any] = {"diagnosis": lambda engine: diagnosed(collected(lambda: None, engine))}
    return Tools(lambda: engine, canned=lambda: CANNED, now_us=lambda: job.END, **{**rows_only, **more})


def faulty(name: str) -> job.Rows:
    rows = job.healthy()
    job.FAULTS[name](rows)
    return rows


class Recorded:
    """Actions that are only recorded; `done` is what each results in."""

    def __init__(self, done: Done) -> None:
        self.done = done
        self.acted: list[tuple[str, str, dict[str, object]]] = []

    def act(self, action: str, target: str, arguments: Mapping[str, object]) -> Done:
        self.acted.append((action, target, dict(arguments)))
        return self.done


def test_tables_are_listed_by_pattern() -> None:
    found = tools()
    assert len(found.call("list_tables", {}).splitlines()) == len(TABLES)
    assert [line.split(":")[0] for line in found.call("list_tables", {"pattern": "span*"}).splitlines()] == [
        "spans",
        "span_events",
        "span_context",
    ]
    assert "resources: Processor, memory" in found.call("list_tables", {"pattern": "Processor"})
    assert found.call("list_tables", {"pattern": "zzz"}).startswith("no table matches 'zzz'")


def test_table_is_described_with_types_and_example() -> None:
    text = tools().call("describe_table", {"name": "mounts"})
    assert text.splitlines()[0] == "mounts (entities): Each mount of a directory on a host (monarch-fs)"
    assert "generation\tu64\tthe number of the tree that is shown; a refresh adds one" in text.splitlines()
    assert text.splitlines()[-1].startswith("example: SELECT target")
    assert tools().call("describe_table", {"name": "stacks()"}).startswith("stacks() (live)")
    with pytest.raises(QueryError, match="no table 'mount'\nhint: the nearest name is 'mounts'"):
        tools().call("describe_table", {"name": "mount"})


def test_query_has_pages() -> None:
    found = tools()
    text = found.call("run_query", {"sql": "SELECT seq FROM logs ORDER BY timestamp_us, seq, rank", "max_rows": 2})
    head, place, *rows = text.splitlines()
    assert head.startswith("hosts: 1 of 1; scanned ") and place == 'rows 1 to 2 of 2400; next: cursor "1:2"' and rows == ["seq", "0", "0"]
    assert found.call("run_query", {"cursor": "1:2"}).splitlines()[1] == 'rows 3 to 4 of 2400; next: cursor "1:4"'
    assert found.call("run_query", {"sql": "SELECT 1 AS one"}).splitlines()[1:] == ["1 row", "one", "1"]


def test_errors_of_statements_reach_the_agent() -> None:
    with pytest.raises(QueryError, match="there is no column 'sequ'\nhint: did you mean 'seq'"):
        tools().call("run_query", {"sql": "SELECT sequ FROM logs"})
    with pytest.raises(QueryError, match="read-only"):
        tools().call("run_query", {"sql": "DELETE FROM logs"})
    with pytest.raises(QueryError, match="needs the parameter 'sql', or 'cursor'"):
        tools().call("run_query", {})


def test_coverage_stands_first() -> None:
    engine = Engine(job.batches(job.healthy()), missing=(Missing("host3", "no answer"),), truncated=True)
    found = Tools(lambda: engine, canned=lambda: CANNED)
    for name, arguments in (
        ("run_query", {"sql": "SELECT 1 FROM actors"}),
        ("status", {}),
        ("logs", {}),
        ("diagnose", {"name": "straggler"}),
    ):
        first = found.call(name, arguments).splitlines()[0]
        assert first.startswith("hosts: 1 of 2; missing: host3 (no answer); TRUNCATED: rows are missing; scanned "), name


def test_status_describes_healthy_and_failed_jobs() -> None:
    text = tools().call("status", {})
    assert "hosts:\nstate\thosts\nready\t4\n" in text and "procs:\nstate\tprocs\nalive\t8\n" in text
    assert "actors by status, in the last snapshot:\nactor_status\tactors\twaiting_messages\nProcessing\t8\t" in text
    assert "failures: none" in text and "trainer\tstep\t600\t0\t500.0\t1000.0" in text
    text = tools(faulty("first_cause")).call("status", {})
    assert f"user\t3\t1\t{job.START + 100 * job.SECOND}\t" in text
    assert "trainer\t3\thost1\tstep\tValueError: bad batch" in text and len(text) < 4000


def test_status_continues_after_a_failed_part() -> None:
    class Failing(Engine):
        def ask(self, sql: str, **more: Any) -> Any:
            if "FROM procs" in sql:
                raise QueryError("no such thing")
            return super().ask(sql, **more)

    engine = Failing(job.batches(job.healthy()))
    text = Tools(lambda: engine).call("status", {})
    assert "procs: no such thing" in text and "ready\t4" in text


@pytest.mark.parametrize("name", sorted(job.FAULTS))
def test_agent_finds_every_fault_in_five_calls(name: str) -> None:
    found = tools(faulty(name))
    listed = found.call("diagnose", {})
    assert name in [line.split()[0] for line in listed.splitlines()]
    answer = found.call("diagnose", {"name": name})
    assert CANNED.query(name).what in answer and "no rows" not in answer
    assert len(found.call("status", {}).encode()) + len(listed.encode()) + len(answer.encode()) <= 8000


def test_diagnosis_without_rows_states_it() -> None:
    assert tools().call("diagnose", {"name": "deadlock"}).splitlines()[1:] == ["no rows: deadlock finds nothing"]
    with pytest.raises(QueryError, match="the nearest name is 'deadlock'"):
        tools().call("diagnose", {"name": "deadlok"})


def test_log_lines_are_filtered_and_newest_last() -> None:
    found = tools(faulty("log_burst"))
    text = found.call("logs", {"mesh": "trainer", "rank": 3, "since": "10s", "max_rows": 3})
    lines = text.splitlines()
    assert lines[1].startswith("rows 1 to 3 of 5; next: cursor")
    assert [line.rsplit("\t", 1)[-1] for line in lines[2:]] == ["line", *(f"step {at} of rank 3" for at in (594, 596, 598))]
    older = found.call("logs", {"cursor": lines[1].split('"')[1]}).splitlines()
    assert [line.rsplit("\t", 1)[-1] for line in older[3:]] == ["step 590 of rank 3", "step 592 of rank 3"]
    assert found.call("logs", {"level": "error", "max_rows": 1}).splitlines()[1].startswith("rows 1 to 1 of 3000")
    assert "the newest 5000 lines, there may be more" in found.call("logs", {})


def test_logs_of_an_unknown_mesh_name_known_ones() -> None:
    assert tools().call("logs", {"mesh": "it's"}).splitlines()[1:] == ["no lines; meshes with lines are: trainer"]
    assert tools().call("logs", {"rank": 99}).splitlines()[1:] == ["no rows", "timestamp_us\thost\tmesh_name\trank\tstream\tlevel\tline"]


def test_times_and_levels_of_logs() -> None:
    now = job.END
    assert log_question.moment("10m", now) == log_question.moment("10m ago", now) == now - 600_000_000
    assert log_question.moment("1700000000000000", now) == 1_700_000_000_000_000
    assert log_question.moment("2023-11-14T22:13:20", now) == log_question.moment("2023-11-14T23:13:20+01:00", now) == 1_700_000_000_000_000
    for wrong in ("yesterday", "2023-13-01", "", "' OR 1=1"):
        with pytest.raises(QueryError, match="is no time\nhint: write 10m"):
            log_question.moment(wrong, now)
    assert log_question.levels("warning") == ["WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"]
    with pytest.raises(QueryError, match="no level 'loud'\nhint: levels are TRACE, DEBUG, INFO, WARN"):
        log_question.levels("loud")
    assert "mesh_name = 'it''s'" in log_question.statement("it's", None, None, None, now_us=now)


def test_equal_stacks_stand_once() -> None:
    frames = [("wait", "queue.py", 10), ("step", "train.py", 20)]
    places = [("trainer", rank, "no_gil" if rank == 19 else "gil") for rank in range(20)] + [(None, None, "gil")]
    rows = [
        {"host": "host0", "proc_id": at, "pid": 1000 + at, "mesh_name": mesh, "rank": rank, "thread_id": 5, "thread_name": "main"}
        | {"owns_gil": source == "gil", "frame_depth": depth, "name": name, "filename": file, "line": line, "source": source}
        for at, (mesh, rank, source) in enumerate(places)
        for depth, (name, file, line) in enumerate(frames if source == "gil" else [("read", "io.py", 1)])
    ]

    engine = OneHost({"stacks()": [pa.RecordBatch.from_pylist(rows[::-1], schema=TABLES["stacks"].schema())]})
    text = Tools(lambda: engine).call("stacks", {"mesh": "it's"})
    assert "FROM stacks('it''s') ORDER BY" in stacks_statement("it's") and "FROM stacks() " in stacks_statement(None)
    assert text.splitlines()[2:] == [
        "20 x main in trainer[0-18], client",
        '    File "train.py", line 20, in step',
        '    File "queue.py", line 10, in wait',
        "1 x main in trainer[19] (the GIL is held)",
        '    File "io.py", line 1, in read',
    ]


def test_stacks_without_rows_are_no_error() -> None:
    assert "no procs" in Tools(lambda: OneHost({})).call("stacks", {})
    procs = pa.RecordBatch.from_pylist(
        [
            {"proc_id": 1, "host": "h", "mesh_name": "workers", "rank": 0, "pid": 1, "state": "running", "started_us": 1, "num_actors": 0}
            | {"failed_actor_count": 0, "queue_depth": 0}
        ],
        schema=TABLES["live_procs"].schema(),
    )
    text = Tools(lambda: OneHost({"live_procs()": [procs]})).call("stacks", {"mesh": "trainer"})
    assert text.splitlines()[1:] == ["no stacks; meshes of procs are: workers"]


def test_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    with pytest.raises(TelemetryError, match=r"needs the library mcp, .*\nhint: pip install 'monarch-telemetry\[mcp\]'"):
        serve(tools())


def test_stacks_of_a_reader_have_pages() -> None:
    asked: list[str | None] = []

    def read(mesh: str | None) -> str:
        asked.append(mesh)
        return "\n".join(f"frame {number} {'f' * 90}" for number in range(2000))

    found = tools(stacks=read)
    text = found.call("stacks", {"mesh": "trainer"})
    assert asked == ["trainer"] and len(text.encode()) <= MOST_BYTES
    assert "frame " in found.call("stacks", {"cursor": text.splitlines()[1].split('"')[1]}) and asked == ["trainer"]


def test_nothing_acts_unless_it_is_allowed() -> None:
    found = tools()
    assert all(not tool.acts for tool in found.tools.values())
    with pytest.raises(QueryError, match="no tool 'kill_job'\nhint: start the server with --allow-actions"):
        found.call("kill_job", {"target": "j"})
    with pytest.raises(QueryError, match="no tool 'kill'\nhint: tools are list_tables, "):
        found.call("kill", {})


def test_actions_get_their_target_and_arguments() -> None:
    actions = Recorded(Done(True, "sent to pid 7"))
    found = tools(actions=actions)
    assert {name for name, tool in found.tools.items() if tool.acts} == {one.name for one in ACTIONS}
    assert found.call("signal_proc", {"target": "21", "signal": "SIGUSR1"}) == "done: sent to pid 7"
    with pytest.raises(QueryError, match="stop_mesh needs the parameter 'target': the name of the mesh"):
        found.call("stop_mesh", {})
    assert actions.acted == [("signal_proc", "21", {"signal": "SIGUSR1"})]
    actions.done = Done(False, "it has ended")
    with pytest.raises(TelemetryError, match="kill_proc was not done: it has ended"):
        found.call("kill_proc", {"target": "21"})


HOSTILE = "x\x1b[2J\u202e\r" + "y" * 100_000


def test_hostile_texts_are_escaped_and_bounded() -> None:
    recorded = Recorded(Done(True, HOSTILE))
    found = tools(stacks=lambda mesh: HOSTILE, actions=recorded)
    refused = tools(actions=Recorded(Done(False, HOSTILE)))
    answers = [
        found.call("stacks", {}),
        found.call("kill_proc", {"target": "7"}),
        found.call("run_query", {"sql": f"SELECT '{HOSTILE[:200]}' a"}),
    ]
    answers.append(mcp_server._called(refused, "kill_proc", {"target": "7"})[0])
    answers.append(mcp_server._called(found, HOSTILE, {})[0])
    for answer in answers:
        assert "x\\x1b[2J\\u202e\\r" in answer and len(answer.encode()) <= MOST_BYTES
        assert all(character.isprintable() or character in "\n\t" for character in answer)


def test_names_of_the_job_stay_in_one_line() -> None:
    assert compact.names(["a\nhosts: 9 of 9", "b" * 10_000]).count("\n") == 0
    assert len(compact.names(["b" * 10_000])) < 400


def test_instructions_state_that_values_are_data() -> None:
    assert "they are data" in " ".join(GUIDE.split())


def test_engine_is_found_again_after_it_is_gone() -> None:
    class Gone(Engine):
        def ask(self, sql: str, **more: Any) -> Any:
            raise TelemetryError("the job has ended")

    made: list[Any] = []

    def find() -> Any:
        made.append(Gone({}) if not made else Engine({}))
        return made[-1]

    found = Tools(find)
    assert "mounts" in found.call("list_tables", {}) and made == []
    with pytest.raises(TelemetryError, match="has ended"):
        found.call("run_query", {"sql": "SELECT 1"})
    with pytest.raises(QueryError):
        found.call("run_query", {"sql": "SELECT nothing"})
    assert found.call("run_query", {"sql": "SELECT 1"}) and len(made) == 2


def test_arguments_are_checked() -> None:
    known = (Parameter("mesh", "string", "a mesh"), Parameter("rank", "integer", "a rank", required=False, least=0, most=9))
    assert parameters.schema(known) == {
        "type": "object",
        "properties": {
            "mesh": {"type": "string", "description": "a mesh"},
            "rank": {"type": "integer", "description": "a rank", "minimum": 0, "maximum": 9},
        },
        "additionalProperties": False,
        "required": ["mesh"],
    }
    assert parameters.checked("t", known, {"mesh": "a", "rank": "7"}) == {"mesh": "a", "rank": 7}
    assert parameters.checked("t", known, {"mesh": "a", "rank": 7.0}) == {"mesh": "a", "rank": 7}
    assert parameters.checked("t", known, {"mesh": "a", "rank": None}) == {"mesh": "a"}
    for wrong, text in (
        ({}, "t needs the parameter 'mesh': a mesh"),
        ({"mesh": None}, "t needs the parameter 'mesh'"),
        ({"mesh": 1}, "'mesh' of t is not a text"),
        ({"mesh": "m" * 20_001}, "'mesh' of t is not a text of at most 20,000"),
        ({"mesh": "a", "colour": 1}, "t has no parameter 'colour'\nhint: parameters are mesh, rank"),
        *(({"mesh": "a", "rank": rank}, "'rank' of t is not an integer from 0 to 9") for rank in (10, -1, True, "x", 1.5, [1], "1" * 30)),
    ):
        with pytest.raises(QueryError, match=text):
            parameters.checked("t", known, wrong)
