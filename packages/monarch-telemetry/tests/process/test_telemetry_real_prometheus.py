"""Debian's Prometheus with the files of examples/observability: it scrapes a real job, receives by remote write, and runs every query."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from eventually import eventually
from prometheus_client.parser import text_string_to_metric_families
from support import observability
from support.observability import CONFIGS, DASHBOARDS
from support.prometheus_server import Prometheus, needs_prometheus, running

# Collectors count calls in windows of ten seconds, and a window is closed some seconds later.
pytestmark = [needs_prometheus, pytest.mark.timeout(120)]
PROGRAM = """
import json, sys
import monarch.telemetry as telemetry
from monarch.actor import Actor, ActorError, current_rank, endpoint, get_meter, this_host

class Worker(Actor):
    @endpoint
    def step(self, n: int) -> int:
        meter = get_meter("loader")
        meter.create_counter("rows").add(3)
        meter.create_histogram("batch.seconds").record(0.5 * n)
        meter.create_gauge("depth").set(current_rank().rank)
        return n

    @endpoint
    def fail(self) -> None:
        raise ValueError("no such row")

running = telemetry.start(serve=True, admin_addr="127.0.0.1:0")
workers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("worker", Worker)
for n in range(20):
    workers.step.call(n).get()
try:
    workers.slice(gpus=0).fail.call_one().get()
except ActorError:
    pass
print(json.dumps(running.url), flush=True)
for sql in sys.stdin:
    print(json.dumps(telemetry.query(sql).to_pylist()), flush=True)
"""
# The counts of the program, by the query that must return them in the end.
COUNTED = {
    'sum(py_messages_handled_total{mesh="worker",endpoint="step"})': 40,
    'sum(endpoint_call_throughput_total{endpoint="step"})': 20,
    'sum(endpoint_call_latency_us_histogram_count{endpoint="step"})': 20,
    'sum(endpoint_call_latency_us_histogram_bucket{endpoint="step",le="+Inf"})': 20,
    'sum(actor_message_receive_errors_total{endpoint="fail"})': 1,
    'sum(rows_total{monarch_mesh="workers",monarch_rank="1",otel_scope_name="loader"})': 60,
    'sum(batch_seconds_sum{monarch_rank="0"})': 95,
    'depth{monarch_rank="1"}': 1,
    "sum(proc_mesh_active_procs)": 3,
    "count(process_memory_rss_bytes > 1e6)": 3,
}
# Samples that change without a call.
CHANGING = ("monarch_telemetry_", "mailbox_", "scrape_", "up", "channel_")


class Job(NamedTuple):
    """The program, which serves. `ask` is its own answer to a statement, `page` the samples of /metrics."""

    url: str
    token: Path
    ask: Callable[[str], list[dict[str, Any]]]
    page: Callable[[], dict[frozenset[tuple[str, str]], float]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def job(folder: Path) -> Iterator[Job]:
    program, home = folder / "program.py", folder / "home"
    program.write_text(PROGRAM)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")} | {"MONARCH_HOME": str(home)}
    argv = [sys.executable, "-W", "error", str(program)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (folder / "stderr").open("w") as err, subprocess.Popen(argv, **pipes, stderr=err, env=environment, cwd=folder) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        first = stdout.readline()
        assert first, (folder / "stderr").read_text()
        url = json.loads(first)
        read = json.loads((home / "jobs" / f"client-{process.pid}" / "telemetry.json").read_text())["read"]
        token = folder / "monarch-token"
        token.write_text(f"{read}\n")
        token.chmod(0o600)

        def ask(sql: str) -> list[dict[str, Any]]:
            stdin.write(f"{sql}\n")
            stdin.flush()
            found: list[dict[str, Any]] = json.loads(stdout.readline())
            return found

        def page() -> dict[frozenset[tuple[str, str]], float]:
            request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {read}"})
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
                families = text_string_to_metric_families(answer.read().decode())
            return {frozenset({"__name__": s.name, **s.labels}.items()): s.value for family in families for s in family.samples}

        yield Job(url, token, ask, page)
        stdin.close()
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def server(folder: Path, job: Job) -> Iterator[Prometheus]:
    """Scrapes the job with its token, and once more with a wrong one; has the alerts."""
    shutil.copy(CONFIGS / "rules.yaml", folder / "rules.yaml")
    (folder / "wrong-token").write_text("x" * 43)
    address = job.url.removeprefix("http://")
    scrapes = "".join(
        f"  - job_name: {name}\n    authorization:\n      credentials_file: {folder / token}\n"
        f'    static_configs:\n      - targets: ["{address}"]\n'
        for name, token in (("monarch", "monarch-token"), ("wrong", "wrong-token"))
    )
    config = f"global:\n  scrape_interval: 500ms\n  evaluation_interval: 500ms\nrule_files:\n  - {folder / 'rules.yaml'}\nscrape_configs:\n"
    with running(folder / "server", config + scrapes, "--web.enable-remote-write-receiver") as found:
        yield found


@pytest.fixture(scope="module")
def counted(server: Prometheus, job: Job) -> dict[str, float]:
    """What Prometheus gives for the queries of `COUNTED`, once that is right."""

    def value(text: str) -> float:
        return next(iter(server.query(text).values()), 0)

    return {text: eventually(text, partial(value, text), partial(eq, wanted), seconds=90) for text, wanted in COUNTED.items()}


def compared(samples: dict[frozenset[tuple[str, str]], float], kinds: tuple[str, ...]) -> dict[frozenset[tuple[str, str]], float]:
    """Samples of counters and histograms that do not change by themselves, without what Prometheus adds."""
    found: dict[frozenset[tuple[str, str]], float] = {}
    for labels, value in samples.items():
        plain = {name: text for name, text in labels if name not in ("job", "instance")}
        name = plain["__name__"]
        if name.endswith(kinds) and not name.startswith(CHANGING):
            found[frozenset(plain.items())] = value
    return found


KINDS = ("_total", "_sum", "_count", "_bucket")


def test_series_have_the_values_of_the_job(server: Prometheus, job: Job, counted: dict[str, float]) -> None:
    assert counted == COUNTED
    stats = "sum(count) AS n, sum(latency_sum_us) AS us FROM endpoint_stats WHERE endpoint = 'step'"
    (row,) = job.ask(f"SELECT {stats} AND side = 'client'")
    assert {*server.query('endpoint_call_latency_us_histogram_sum{endpoint="step"}').values()} == {row["us"]} and row["n"] == 20
    (row,) = job.ask(f"SELECT {stats} AND side = 'server'")
    assert {*server.query('actor_message_handler_duration_ns_sum{endpoint="step"}').values()} == {1000 * row["us"]}
    (row,) = job.ask("SELECT count(*) AS n FROM procs WHERE ended_us IS NULL")
    assert {*server.query("proc_mesh_active_procs").values()} == {row["n"]}

    def both() -> list[dict[frozenset[tuple[str, str]], float]]:
        return [compared(job.page(), KINDS), compared(server.query('{job="monarch"}'), KINDS)]

    page, scraped = eventually("the same samples on both sides", both, lambda found: found[0] == found[1])
    assert page == scraped and len(page) > 60


def test_types_and_texts_of_metrics_are_known(server: Prometheus, counted: dict[str, float]) -> None:
    found = {name: (one[0]["type"], one[0]["help"], one[0]["unit"]) for name, one in server.get("metadata").items()}
    # OpenMetrics, which Prometheus accepts first, has counters without `_total`, and units.
    assert found["py_messages_handled"] == ("counter", "Messages that endpoints have handled", "")
    assert found["endpoint_call_latency_us_histogram"][0] == "histogram"
    assert found["batch_seconds"] == ("histogram", "batch.seconds, measured by loader", "")
    assert found["process_memory_rss_bytes"] == ("gauge", "Memory of a process in use", "bytes")
    assert found["depth"][0] == "gauge" and found["rows"][0] == "counter"


def test_wrong_token_gets_no_metrics(server: Prometheus, counted: dict[str, float]) -> None:
    targets = eventually("both targets were scraped", server.targets, lambda found: "unknown" not in str(found))
    assert targets["monarch"] == ("up", "")
    assert targets["wrong"][0] == "down" and "401" in targets["wrong"][1]
    assert {dict(labels)["job"] for labels in server.query('{__name__=~"py_.+|process_.+"}')} == {"monarch"}


def test_prometheus_beside_the_job_forwards_all_series(folder: Path, server: Prometheus, job: Job, counted: dict[str, float]) -> None:
    # The configuration of the example, with the addresses of this test.
    config = (CONFIGS / "scrape.yaml").read_text()
    changes = {
        "scrape_interval: 15s": "scrape_interval: 500ms",
        "127.0.0.1:1729": job.url.removeprefix("http://"),
        "http://prometheus.observability:9090": server.url,
        "job_name: monarch": "job_name: sent",
    }
    for old, new in changes.items():
        assert config.count(old) == 1
        config = config.replace(old, new)
    beside = folder / "beside"
    beside.mkdir()
    shutil.copy(job.token, beside / "monarch-token")

    def both() -> list[dict[frozenset[tuple[str, str]], float]]:
        return [compared(job.page(), KINDS), compared(server.query('{job="sent"}'), KINDS)]

    with running(beside, config, agent=True) as agent:
        page, received = eventually("what was sent", both, lambda found: found[0] == found[1])
        assert page == received and len(page) > 60
        assert agent.targets() == {"sent": ("up", "")}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_runs(path: Path, server: Prometheus, counted: dict[str, float]) -> None:
    # For a job with calls, without GPUs, RDMA and mounts: a query gives series if Monarch has some.
    answers = {query: server.query(query) for query in observability.queries(path)}
    wanted = {"overview": 10, "endpoints": 9, "failures": 4, "resources": 10, "rdma-fs": 2}
    assert sum(map(bool, answers.values())) >= wanted[path.stem], {query: len(found) for query, found in answers.items()}


def test_alerts_are_evaluated_without_errors(server: Prometheus, counted: dict[str, float]) -> None:
    def rules() -> list[Any]:
        return [rule for group in server.get("rules")["groups"] for rule in group["rules"]]

    found = eventually("all rules were evaluated", rules, lambda rules: all(rule["health"] != "unknown" for rule in rules))
    assert [(rule["name"], rule["health"], rule.get("lastError", "")) for rule in found] == [
        (rule["alert"], "ok", "") for rule in observability.rules()
    ]


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_configurations_and_alerts(tmp_path: Path) -> None:
    shutil.copytree(CONFIGS, tmp_path / "config")
    (tmp_path / "config" / "monarch-token").write_text("x")
    promtool("check", "config", str(tmp_path / "config" / "prometheus.yaml"))
    promtool("check", "config", "--agent", str(tmp_path / "config" / "scrape.yaml"))
    assert f"{len(observability.rules())} rules found" in promtool("check", "rules", str(CONFIGS / "rules.yaml"))


def test_promtool_parses_every_query(tmp_path: Path) -> None:
    queries = [query for path in DASHBOARDS for query in observability.queries(path)]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.json").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(tmp_path / "queries.json"))
    (tmp_path / "queries.json").write_text(
        json.dumps({"groups": [{"name": "wrong", "rules": [{"record": "a", "expr": "sum by (a b) (c)"}]}]})
    )
    with pytest.raises(AssertionError, match="parse error"):
        promtool("check", "rules", str(tmp_path / "queries.json"))


SERIES = {
    "MonarchNotScraped": ({'up{job="monarch", instance="a"}': "0x10"}, {"instance": "a"}),
    "MonarchHostsMissing": (
        {'monarch_job_hosts{job="j", host_name="a"}': "1x10", 'monarch_job_hosts{job="j", host_name="b"}': "1x3 stale"},
        {},
    ),
    "MonarchFailures": ({'monarch_job_failures_total{job="j", kind="user"}': "1 1 3x8"}, {"kind": "user"}),
    "MonarchEndpointErrors": (
        {
            'actor_message_receive_errors_total{job="j", mesh="m", endpoint="e"}': "0+6x10",
            'actor_messages_received_total{job="j", mesh="m", endpoint="e"}': "0+100x10",
        },
        {"mesh": "m", "endpoint": "e"},
    ),
    "MonarchQueuesGrow": ({'actor_message_queue_size{job="j", host_name="a"}': "1001x10"}, {"host_name": "a"}),
    "MonarchEventsLost": ({'monarch_telemetry_dropped_total{job="j", host="a", table="(rings)"}': "0 0 7x8"}, {"host": "a"}),
}


def test_every_alert_fires_and_none_without_a_reason(tmp_path: Path) -> None:
    assert [*SERIES] == [rule["alert"] for rule in observability.rules()]
    levels = {rule["alert"]: rule["labels"] for rule in observability.rules()}
    tests: list[dict[str, Any]] = []
    for alert, (series, labels) in SERIES.items():
        calm = {name: "0x10" if "total" in name or "queue" in name else "1x10" for name in series}
        where = {"job": "monarch" if alert == "MonarchNotScraped" else "j", **labels, **levels[alert]}
        for given, fires in ((series, [{"exp_labels": where}]), (calm, [])):
            inputs = [{"series": name, "values": values} for name, values in given.items()]
            wanted = {"eval_time": "10m", "alertname": alert, "exp_alerts": fires}
            tests.append({"interval": "1m", "input_series": inputs, "alert_rule_test": [wanted]})
    # The texts are not compared, only created.
    rules = "\n".join(
        line for line in (CONFIGS / "rules.yaml").read_text().splitlines() if "annotations:" not in line and "summary:" not in line
    )
    (tmp_path / "rules.yaml").write_text(rules)
    (tmp_path / "tests.json").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.json"))
