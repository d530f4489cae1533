"""What the terminal UI shows, without a terminal: lines, amounts, texts, the tree, details, pages, addresses and the diagnosis."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_job import END, TRAINER
from support.tui_parts import AsgiClient

from monarch.telemetry import TelemetryError
from monarch.telemetry._http.models import NodePayload
from monarch.telemetry._tui import amounts, metrics
from monarch.telemetry._tui.api import Answer, Api, Coverage
from monarch.telemetry._tui.client import Where, address, connect
from monarch.telemetry._tui.config_page import config_lines
from monarch.telemetry._tui.details import details
from monarch.telemetry._tui.diagnose import checks, report
from monarch.telemetry._tui.labels import row_label
from monarch.telemetry._tui.lines import cut, line, plain, span, table, width, wrapped
from monarch.telemetry._tui.logs_page import Kept, log_line
from monarch.telemetry._tui.stacks_page import pyspy_lines
from monarch.telemetry._tui.texts import LANGUAGES, TABLE, Texts
from monarch.telemetry._tui.topology import Node, Topology, is_failed

EN = Texts("en")
NOW = END / 1e6


def node(identity: str, kind: str, children: list[str] | None = None, parent: str | None = None, **facts: Any) -> NodePayload:
    found: Any = {"identity": identity, "properties": {kind: facts}, "children": children or [], "parent": parent, "as_of": ""}
    return found


def tree() -> Topology:
    """A job of a host with two procs; the first one has an actor that runs, one of the runtime, and two that have stopped."""
    topology = Topology()
    topology.put_root(node("root", "Root", ["host"], num_hosts=1), 0)
    topology.put("host", node("host", "Host", ["proc", "gone"], "root", name="host0", state="ready", num_procs=1), 0)
    actors = ["a", "b", "runtime", "failed"]
    hidden = {"system_children": ["runtime"], "stopped_children": ["b", "failed"]}
    topology.put("proc", node("proc", "Proc", actors, "host", proc_name="w[0]", num_actors=2, failed_actor_count=1, **hidden), 0)
    topology.put("gone", node("gone", "Proc", [], "host", proc_name="w[1]", exit_reason="stopped"), 0)
    for name, status in (("a", "Idle"), ("b", "Stopped"), ("runtime", "Idle"), ("failed", "Failed")):
        topology.put(name, node(name, "Actor", [], "proc", actor_status=status, actor_type="T", instance_id="1"), 0)
    for reference in ("host", "proc"):
        topology.expand(reference)
    return topology


def shown(topology: Topology) -> list[str]:
    return [row.reference for row in topology.rows]


# Lines


@given(st.text(max_size=80), st.integers(1, 30))
def test_wrapped_lines_keep_text_and_width(text: str, cells: int) -> None:
    whole = line(text)
    pieces = wrapped(whole, cells, indent=2)
    if len(pieces) > 1:
        indent = min(2, cells // 2)
        kept = plain(pieces[0]) + "".join(plain(piece)[indent:] for piece in pieces[1:])
        assert kept == plain(whole) or cells < 4
    assert all(width(piece) <= cells for piece in pieces) or cells < 4


def test_words_are_wrapped_whole() -> None:
    assert [plain(piece) for piece in wrapped(line("one two three"), 9)] == ["one two ", "  three"]
    assert [plain(piece) for piece in wrapped((span("key: "), span("value")), 8)] == ["key: ", "  value"]


def test_text_of_the_job_is_escaped() -> None:
    evil = "\x1b[31mred\x1b[0m [bold]x[/] \u202e\x9b2J\r"
    assert plain(line(evil)) == "\\x1b[31mred\\x1b[0m [bold]x[/] \\u202e\\x9b2J\\r"
    assert plain(table([evil], [[evil]])[1]) == plain(line(evil))


def test_chinese_characters_have_two_cells() -> None:
    assert cut("进程进程", 5) == "进程…"
    assert [plain(row) for row in table(["名称", "n"], [["a", 1], ["进程", 20]])] == ["名称   n", "a      1", "进程  20"]


def test_table_aligns_numbers_and_names_nulls() -> None:
    found = [plain(row) for row in table(["name", "n"], [["a", 5], ["long name", None]])]
    assert found == ["name          n", "a             5", "long name  null"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (0.0005, "500 us"),
        (0.25, "250 ms"),
        (0.0025, "2.5 ms"),
        (2.5, "2.5 s"),
        (59, "59 s"),
        (61, "1m01s"),
        (3700, "1h01m"),
        (200_000, "2d07h"),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert amounts.duration(seconds) == text


def test_sizes_numbers_and_bars() -> None:
    assert [amounts.size(one) for one in (None, 5, 2048, 3 << 30)] == ["?", "5 B", "2.0 KiB", "3.0 GiB"]
    assert [amounts.number(one) for one in (None, 3, 3.0, 0.123456, 12345.67)] == ["?", "3", "3", "0.1235", "12,345.7"]
    assert amounts.sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█" and amounts.sparkline([2, 2]) == "▁▁"
    assert amounts.epoch("2023-11-14T22:13:20.000Z") == 1_700_000_000 and amounts.epoch("soon") is None


def test_both_languages_have_the_same_places() -> None:
    formatter = string.Formatter()
    for key, texts in TABLE.items():
        assert len(texts) == len(LANGUAGES) and all(texts), key
        english, chinese = ({name for _, name, _, _ in formatter.parse(text) if name} for text in texts)
        assert english == chinese, key
    with pytest.raises(KeyError):
        EN("there is no such text")


# The tree


def test_stopped_and_system_nodes_are_hidden_failures_not() -> None:
    topology = tree()
    assert shown(topology) == ["root", "host", "proc", "a", "failed"]
    topology.set_shown(stopped=True)
    assert shown(topology) == ["root", "host", "proc", "a", "b", "failed", "gone"]
    topology.set_shown(stopped=False, system=True)
    assert shown(topology) == ["root", "host", "proc", "a", "runtime", "failed"]


def test_hidden_failures_are_named_until_loaded() -> None:
    topology = tree()
    topology.drop("failed")
    topology.put("proc", node("proc", "Proc", ["x", "y"], "host", failed_actor_count=1, stopped_children=["x", "y"]), 1)
    assert topology.hidden_failures() == ["x", "y"] and shown(topology) == ["root", "host", "proc"]
    topology.put("y", node("y", "Actor", [], "proc", actor_status="Failed"), 1)
    assert topology.hidden_failures() == ["x"] and shown(topology) == ["root", "host", "proc", "y"]


def test_collapsing_hides_and_dropping_forgets() -> None:
    topology = tree()
    topology.expand("host", False)
    assert shown(topology) == ["root", "host"] and topology.place("proc") is None
    topology.expand("host")
    topology.drop("proc")
    assert shown(topology) == ["root", "host"]
    topology.put_root(node("root", "Root", []), 1)
    assert shown(topology) == ["root"] and topology.node("host") is None


@pytest.mark.parametrize(
    ("reason", "failed"),
    [("stopped", False), ("stopped: by its owner", False), ("returned", False), ("unknown: overwritten", False), ("stopped_by_oom", True)],
)
def test_proc_with_orderly_end_is_not_failed(reason: str, failed: bool) -> None:
    topology = tree()
    topology.put("gone", node("gone", "Proc", [], "host", proc_name="w[1]", exit_reason=reason), 1)
    found = topology.node("gone")
    assert found is not None and is_failed(found) is failed


def test_circle_of_nodes_ends() -> None:
    topology = Topology()
    topology.put_root(node("root", "Root", ["a"]), 0)
    topology.put("a", node("a", "Host", ["root", "a"]), 0)
    topology.expand("a")
    assert shown(topology) == ["root", "a"]


def test_labels_state_in_words() -> None:
    topology = tree()
    topology.names["1"] = "trainer[0]"
    topology.fail("host", "no answer within 5 s", 1)
    topology.put("gone", node("gone", "Proc", [], "host", proc_name="w[1]", exit_reason="signal: killed"), 1)
    labels = [plain(row_label(topology, row, EN)) for row in topology.rows]
    assert labels == [
        "- job  1 host",
        "  - host0  ready, 1 proc  ? old",
        "    - ! w[0]  1 failed, 2 actors",
        "        trainer[0]  Idle",
        "        ! trainer[0]  Failed",
        "      ! w[1]  ended: signal: killed",
    ]


def test_node_without_answer_is_shown() -> None:
    topology = Topology()
    topology.put_root(node("root", "Root", ["x", "y"]), 0)
    topology.fail("x", "no answer \x1b[2J", 1)
    assert [plain(row_label(topology, row, EN)) for row in topology.rows][1:] == ["    ? no answer \\x1b[2J", "    …"]


# Details


def test_details_of_a_failed_actor() -> None:
    payload = node(
        "x",
        "Actor",
        actor_status="Failed",
        actor_type="Trainer",
        instance_id="7",
        messages_processed=4,
        total_processing_time_us=8000,
        queue_depth=2,
        last_message_handler="step",
        failure_info={"error_message": "ValueError: [b]\nbad", "root_cause_name": "w[3]", "occurred_at": "", "is_propagated": True},
        execution={"active_count": 1, "active_handlers": [{"name": "step", "active_count": 1, "oldest_since": ""}], "truncated": False},
        flight_recorder=json.dumps([{"timestamp_us": END, "kind": "status", "name": "Failed", "detail": "\x07"}]),
    )
    found = [plain(one) for one in details(Node(payload, 0, "late"), {"7": "trainer[3]"}, EN, NOW)]
    text = "\n".join(found)
    assert found[0] == "Actor  trainer[3]"
    for part in ("No answer         late", "Status            Failed", "8.0 ms (2.0 ms each)", "1 x step", "First cause       w[3]"):
        assert part in text
    assert "Message           ValueError: [b]\n                  bad" in text
    assert found[-1].endswith("status   Failed \\x07")


def test_recorder_that_is_no_json_is_shown() -> None:
    payload = node("x", "Actor", actor_status="Idle", flight_recorder="{broken")
    assert plain(details(Node(payload, 0), {}, EN, NOW)[-1]) == "{broken"


def test_details_of_an_unknown_state() -> None:
    payload = node("x", "Error", code="gateway_timeout", message="host1 is silent")
    text = "\n".join(plain(one) for one in details(Node(payload, 0), {}, Texts("zh"), NOW))
    assert "gateway_timeout" in text and "host1 is silent" in text and "未知" in text


# Pages


def test_stacks_and_why_there_are_none() -> None:
    frame = {"name": "step", "filename": "/a/train.py", "short_filename": "train.py", "line": 10, "locals": [{"name": "x", "repr": "1"}]}
    thread = {"thread_id": 5, "thread_name": "main", "active": True, "owns_gil": True, "frames": [frame]}
    found = pyspy_lines({"Ok": {"pid": 7, "binary": "py-spy", "warnings": ["late"], "stack_traces": [thread]}}, EN)
    assert [plain(one) for one in found if one] == [
        "pid 7, py-spy",
        "late",
        "main  running, holds the GIL",
        "  step  train.py:10",
        "      x = 1",
    ]
    assert [plain(one) for one in pyspy_lines({"BinaryNotFound": {"searched": ["/bin"]}}, EN)] == [
        "py-spy was not found; searched:",
        "  /bin",
    ]
    failed = pyspy_lines({"Failed": {"pid": 1, "binary": "py-spy", "exit_code": 1, "stderr": "Permission\ndenied"}}, EN)
    assert [plain(one) for one in failed] == ["py-spy failed: py-spy 1", "Permission", "denied"]


def test_changed_settings_come_first() -> None:
    entries = [
        {"name": "a", "value": 1, "default_value": 1, "source": "default", "changed_from_default": False},
        {"name": "b", "value": "x", "source": "environment", "changed_from_default": True, "env_var": "B"},
    ]
    assert [plain(one).split() for one in config_lines(entries, EN)[1:]] == [
        ["*", "b", "x", "environment", "B"],
        ["a", "1", "1", "default"],
    ]


def lines_of(*times: int, more: bool = False) -> Answer:
    rows = [{"timestamp_us": at, "seq": at, "host": "h", "pid": 1, "line": f"line {at}"} for at in sorted(times, reverse=True)]
    return Answer(rows, Coverage(1, 1, (), False, 0), more)


def test_lines_of_logs_come_once_and_in_order() -> None:
    kept = Kept()
    assert kept.since_us is None
    assert kept.add(lines_of(1, 3)) == 2 and kept.add(lines_of(2, 3, 4)) == 2
    assert [row["timestamp_us"] for row in kept.rows] == [1, 2, 3, 4] and not kept.gaps
    kept.add(lines_of(8, 9, more=True))
    assert kept.gaps == {(8, 8, "h", 1)}


def test_log_line_has_place_and_level() -> None:
    row = {"timestamp_us": END, "mesh_name": "trainer", "rank": 3, "level": "WARNING", "stream": "logging", "line": "a\x1bb"}
    assert plain(log_line(row)).endswith(" trainer[3] WARNING a\\x1bb")


def test_growth_of_sums() -> None:
    assert metrics.growth({1: {"top": 5}, 2: {"top": 9}, 3: {"top": 2}}, False) == [4, 0]
    assert metrics.growth({1: {"total": 5}, 2: {"total": 9}}, True) == [5, 9]


# The URL of the job


@pytest.mark.parametrize(
    ("where", "url"),
    [
        (Where(), None),
        (Where(port=5), "http://127.0.0.1:5"),
        (Where("head"), "http://head:1729"),
        (Where("head:5"), "http://head:5"),
        (Where("head", 5), "http://head:5"),
        (Where("::1", 5), "http://[::1]:5"),
        (Where("head", tls_ca="ca.pem"), "https://head:1729"),
        (Where("https://head", 5), "https://head:5"),
        (Where("https://head"), "https://head"),
        (Where("head", plaintext=True), "http://head:1729"),
    ],
)
def test_addresses_become_urls(where: Where, url: str | None) -> None:
    assert address(where) == url


@pytest.mark.parametrize(
    ("where", "culprit"),
    [
        (Where("head:5", 6), "--admin-port is 6"),
        (Where("https://head", plaintext=True), "--plaintext"),
        (Where("head", plaintext=True, tls_ca="x"), "--plaintext"),
        (Where("head:port"), "head:port"),
    ],
)
def test_options_that_contradict_are_refused(where: Where, culprit: str) -> None:
    with pytest.raises(ValueError, match=culprit):
        address(where)


def test_tls_files_that_are_none_are_named(tmp_path: Any) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(TelemetryError, match=r"--tls-ca: .*ca\.pem is no file"):
        connect(Where("head", tls_ca=missing))
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(TelemetryError, match="cannot be used"):
        connect(Where("head", tls_ca=missing))
    with pytest.raises(TelemetryError, match="has no TLS"):
        connect(Where("http://head", tls_ca=missing))


class Homeless(AsgiClient):
    """A server that is too busy to find the node above an actor, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def get(self, path: str, seconds: float) -> bytes:
        found = json.loads(super().get(path, seconds))
        if "Actor" in found["properties"] and self._times:
            self._times -= 1
            found["parent"] = None
        return json.dumps(found).encode()


def test_path_to_an_actor_begins_at_the_job() -> None:
    number = str(TRAINER[3])
    path = Api(Homeless(2)).path_to("actor", number)
    assert [next(iter(one["properties"])) for one in path] == ["Root", "Host", "Proc", "Actor"]
    with pytest.raises(TelemetryError, match="was not found in time"):
        Api(Homeless(3)).path_to("actor", number)


# The diagnosis


def test_checks_of_a_job_are_ok() -> None:
    found = report("u", checks(Api(AsgiClient()), clock=lambda: 0.0))
    assert found["ok"] and found["counts"] == {"ok": 14, "warn": 0, "fail": 0}
    names = [(check["group"], check["name"].rsplit(" ", 1)[0]) for check in found["checks"]]
    assert ("admin", "GET") in names and ("mesh", "host0/workers[0]/Trainer") in names
    assert all(check["ms"] == 0 and check["role"] and check["detail"] for check in found["checks"])


def test_slow_refused_and_missing_are_not_ok() -> None:
    ticks = iter(range(1000))
    slow = report("u", checks(Api(AsgiClient(metrics=None)), clock=lambda: 2.0 * next(ticks)))
    assert slow["ok"] and slow["counts"]["ok"] == 0 and "offer metrics" in str(slow["checks"])
    refused = report("u", checks(Api(AsgiClient(token="none-of-this-server-0000"))))
    assert not refused["ok"] and [check["status"] for check in refused["checks"]][:2] == ["ok", "fail"]

    def gone(path: str) -> None:
        raise TelemetryError("cannot be reached")

    lost = report("u", checks(Api(AsgiClient(before=gone))))
    assert not lost["ok"] and [check["detail"] for check in lost["checks"]] == ["cannot be reached"]


class OtherServer:
    """Answers every request with the same JSON."""

    url = "http://other"

    def __init__(self, answer: Any) -> None:
        self._answer = json.dumps(answer).encode()

    def get(self, path: str, seconds: float) -> bytes:
        return self._answer

    def post(self, path: str, body: dict[str, Any], seconds: float) -> bytes:
        return self._answer


@pytest.mark.parametrize("answer", [[], {}, None, {"status": "ok"}, {"identity": 1}, {"rows": 5}])
def test_other_servers_are_named(answer: Any) -> None:
    api = Api(OtherServer(answer))
    assert not report("u", checks(api))["ok"]
    for ask in (api.root, lambda: api.query("SELECT 1"), lambda: api.config("x"), api.logs):
        with pytest.raises(TelemetryError, match="another server"):
            ask()
