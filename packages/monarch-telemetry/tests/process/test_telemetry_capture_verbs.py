"""The verbs `capture`, `profile` and `dashboard` and the command `monarch-dashboard`, over real servers on loopback with made-up rows."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from support import made_up_faults as faults
from support import made_up_job as job
from support.engine import Engine
from support.http_parts import TOKENS, MadeUpStacks, RecordedActions
from support.http_server import make, place, served
from support.perfetto_reader import Trace

from monarch.distributed_telemetry.profiler import profile
from monarch.telemetry import TelemetryError, _cli_capture
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._export.capture import read
from monarch.telemetry._export.manifest import Meta
from monarch.telemetry._http.references import Reference
from monarch.telemetry._queries.catalog import load
from monarch.telemetry._sql.coverage import Missing
from tools.thread_signals import signal_beside_main_thread

pytest.importorskip("perfetto")
TOKEN = "MONARCH_TELEMETRY_TOKEN"
PROGRAM = "import sys\nfrom monarch.telemetry import _cli_capture as verbs\n"
VERB = PROGRAM + "sys.exit(getattr(verbs, sys.argv[1]).main(sys.argv[2:], standalone_mode=False))"
DASHBOARD = PROGRAM + "verbs.dashboard_main()"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No job of this machine is found, and files without a name land in the folder of the test."""
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("MONARCH_ADMIN_URL", raising=False)
    monkeypatch.setenv(TOKEN, TOKENS.admin)
    monkeypatch.chdir(tmp_path)


def run(verb: click.Command, *arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(verb, arguments, standalone_mode=False)
    if isinstance(done.exception, click.ClickException):
        return done.exception.exit_code, done.stdout, done.exception.format_message()
    if done.exception is not None:
        raise done.exception
    return int(done.return_value), done.stdout, done.stderr


def faulty() -> dict[str, list[Any]]:
    """The rows of a job with all faults whose rows are stored."""
    rows = faults.healthy()
    for fault in faults.FAULTS.values():
        fault(rows)
    return faults.batches({name: found for name, found in rows.items() if not name.endswith("()")})


def recent() -> dict[str, list[Any]]:
    """The rows of the made-up job, which began six seconds ago and has a message each second."""
    shift = time.time_ns() // 1000 - job.START - 6 * job.SECOND
    found: dict[str, list[Any]] = {}
    for name, batches in job.rows().items():
        (batch,) = batches
        for column in ("timestamp_us", "joined_us", "started_us"):
            if column in batch.schema.names and batch.num_rows:
                at = batch.schema.get_field_index(column)
                batch = batch.set_column(at, batch.schema.field(at), pa.array([us + shift for us in batch.column(column).to_pylist()]))
        found[name] = [batch]
    return found


def test_canned_queries_answer_the_same_over_a_capture(tmp_path: Path) -> None:
    original = OneHost(faulty())
    path = tmp_path / "job.capture"
    with served(make(engine=original)) as url:
        code, out, err = run(_cli_capture.capture, "-o", str(path), "-a", url)
    assert (code, err) == (0, "") and out.startswith(f"{path}: ") and "tables" in out
    copy = OneHost(read(path))
    found = 0
    for name, canned in load().queries.items():
        wanted = original.ask(canned.sql).table.to_pylist()
        assert copy.ask(canned.sql).table.to_pylist() == wanted, name
        found += bool(wanted)
    assert found >= 8


def test_capture_masks_secrets_and_the_jobs_tokens(tmp_path: Path) -> None:
    rows = job.rows()
    (logs,) = rows["logs"]
    lines = [f"open http://127.0.0.1:1/#{TOKENS.admin}", "password=hunter2hunter2", *["fine"] * (logs.num_rows - 2)]
    at = logs.schema.get_field_index("line")
    rows["logs"] = [logs.set_column(at, logs.schema.field(at), pa.array(lines))]
    token = tmp_path / "token"
    token.write_text(TOKENS.admin)
    path = tmp_path / "job.capture"
    with served(make(engine=OneHost(rows))) as url:
        assert run(_cli_capture.capture, "-o", str(path), "-a", url, "--token-file", str(token))[0] == 0
    data = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    found = OneHost(read(path)).ask("SELECT line FROM logs ORDER BY seq LIMIT 3").table.column(0).to_pylist()
    assert found == ["open http://127.0.0.1:1/#***", "password=***", "fine"] and TOKENS.admin.encode() not in data


def test_capture_needs_a_token_of_scope_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, TOKENS.read)
    with served() as url:
        assert run(_cli_capture.capture, "-o", "job.capture", "-a", url)[::2] == (0, "")
    assert sum(len(batches) for batches in read("job.capture").values()) > 20
    monkeypatch.setenv(TOKEN, "wrong-token-of-no-server")
    with served() as url:
        code, out, err = run(_cli_capture.capture, "-o", "other.capture", "-a", url)
    assert (code, out) == (1, "") and "401" in err and not (tmp_path / "other.capture").exists()


def test_capture_names_missing_hosts_and_keeps_existing_files() -> None:
    engine = Engine(job.rows(), missing=(Missing("host9", "no answer in time"),))
    with served(make(engine=engine)) as url:
        code, _, err = run(_cli_capture.capture, "-o", "job.capture", "-a", url)
        assert code == 0 and "monarch: host host9 is missing from 46 tables: no answer in time\n" in err
        code, out, err = run(_cli_capture.capture, "-o", "job.capture", "-a", url)
        assert (code, out) == (1, "") and "job.capture exists" in err
        assert run(_cli_capture.capture, "-o", "job.capture", "-a", url, "--force")[0] == 0
    entry = read("job.capture").manifest.tables["logs"]
    assert (entry.coverage.hosts_asked, entry.coverage.missing) == (2, (Missing("host9", "no answer in time"),))


def test_capture_of_the_last_minutes(tmp_path: Path) -> None:
    before = time.time_ns() // 1000
    with served(make(engine=OneHost(recent()))) as url:
        assert run(_cli_capture.capture, "-o", "job.capture", "-a", url, "--since", "2s")[0] == 0
    capture = read("job.capture")
    assert capture.manifest.meta == Meta(since_us=capture.manifest.meta.since_us)
    since = capture.manifest.meta.since_us
    assert since is not None and since >= before - 2_000_000
    times = [us for batch in capture["logs"] for us in batch.column("timestamp_us").to_pylist()]
    assert times and min(times) >= since and len(times) < 40 and sum(batch.num_rows for batch in capture["actors"]) == len(job.ACTORS)


def test_no_job_is_stated(tmp_path: Path) -> None:
    code, out, err = run(_cli_capture.capture, "-o", "job.capture")
    assert (code, out) == (3, "") and "no job of this user serves telemetry" in err
    code, out, err = run(_cli_capture.dashboard, "-a", "http://127.0.0.1:1")
    assert (code, out) == (1, "") and "cannot be reached" in err
    assert run(_cli_capture.profile, "http://user@host")[0] == 2
    assert run(_cli_capture.profile, "--from", "c", "--time", "1s")[0] == 2
    assert run(_cli_capture.capture, "-o", "job.capture", "--since", "soon")[0] == 2
    assert "nowhere is no directory" in run(_cli_capture.profile, "-o", "nowhere/job.pftrace")[2]
    assert run(_cli_capture.profile, "--from", "missing.capture")[0] == 1 and not list(tmp_path.glob("*.pftrace"))


def test_profile_is_a_window_of_the_job() -> None:
    rows = recent()
    # A call that started half an hour ago and is in progress, and one that started at the same time and has ended.
    began = time.time_ns() // 1000 - 1800 * job.SECOND
    schema = rows["messages"][0].schema
    early = [
        {"id": number, "timestamp_us": began, "from_actor_id": job.LOADER[0], "to_actor_id": actor, "endpoint": name}
        for number, actor, name in ((5, job.TRAINER[3], "train"), (6, job.LOADER[1], "warm_up"))
    ]
    rows["messages"].append(pa.RecordBatch.from_pylist(early, schema=schema))
    changes = [(5, "queued"), (5, "active"), (6, "active"), (6, "complete")]
    rows["message_status_events"].append(
        pa.RecordBatch.from_pylist(
            [{"id": at, "timestamp_us": began + at, "message_id": number, "status": status} for at, (number, status) in enumerate(changes)],
            schema=rows["message_status_events"][0].schema,
        )
    )
    engine = OneHost(rows)
    with served(make(engine=engine)) as url:
        before = time.time_ns() // 1000
        code, out, err = run(_cli_capture.profile, url, "--time", "1200ms", "-o", "job.pftrace")
        after = time.time_ns() // 1000
        assert (code, out, err) == (0, "job.pftrace\n", f"monarch: recording {url} for 1.2 s\n")
        code, out, _ = run(_cli_capture.profile, url, "--time", "1ms")
        assert code == 0 and out.startswith("monarch-2") and out.endswith(".pftrace\n") and Path(out.strip()).stat().st_size > 100
    trace = Trace(Path("job.pftrace").read_bytes())
    named = [event.name for event in trace.events if event.kind == "begin"]
    assert named.count("train") == 1 and "warm_up" not in named
    # A message each second: of twelve, a window contains as many as fit into its length.
    assert 1 <= sum(name in ("load", "step") for name in named) <= (after - before) // job.SECOND + 2
    assert all(before <= event.us <= after for event in trace.events)


def test_profile_of_a_capture() -> None:
    with served() as url:
        assert run(_cli_capture.capture, "-o", "job.capture", "-a", url)[0] == 0
    assert run(_cli_capture.profile, "--from", "job.capture") == (0, "job.pftrace\n", "")
    assert run(_cli_capture.profile, "--from", "job.capture", "-o", "other.pftrace")[0] == 0
    trace = Trace(Path("job.pftrace").read_bytes())
    assert {"load", "step"} <= {event.name for event in trace.events}
    assert Path("other.pftrace").read_bytes() == Path("job.pftrace").read_bytes()


def test_profile_of_a_block() -> None:
    seen: list[Path] = []

    def ready(window: profile) -> None:
        seen.append(window.export_perfetto_trace())

    engine = Engine(recent(), missing=(Missing("host9", "no answer"),))
    with served(make(engine=engine)) as url:
        with profile(url, on_trace_ready=ready) as window:
            assert seen == []
        assert Trace(seen[0].read_bytes()).events is not None and window.notes == ("host9 is missing from the trace: no answer",)
        with pytest.raises(ValueError, match="of the block"), profile(url) as window:
            raise ValueError("of the block")
        assert window.export_perfetto_trace("own.pftrace") == Path("own.pftrace")
        with pytest.raises(TelemetryError, match="has not begun"):
            profile(url).export_perfetto_trace()
        with pytest.raises(TelemetryError, match="directory"):
            window.export_perfetto_trace(".")
        with pytest.raises(TelemetryError, match="nowhere is no directory"):
            window.export_perfetto_trace("nowhere/own.pftrace")
        with contextlib.ExitStack() as stopped:
            other = stopped.enter_context(served())
            window = profile(other).__enter__()
    # The job has ended in the block: its error is not replaced by that of its profile.
    window.__exit__(None, None, None)
    with pytest.raises(TelemetryError, match="cannot be reached"):
        window.export_perfetto_trace()
    with pytest.raises(TelemetryError, match="cannot be reached"), profile(url):
        raise AssertionError("the block of a job that is gone has run")
    assert profile.__module__ == "monarch.distributed_telemetry.profiler"


@contextlib.contextmanager
def started(program: str, *arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A process that serves, and the URL that it prints."""
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def ask(url: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the JSON of an answer, with the token of a dashboard's URL."""
    base, _, token = url.partition("/#")
    connection = http.client.HTTPConnection(*place(base), timeout=30)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_dashboard_of_a_capture(tmp_path: Path) -> None:
    with served() as url:
        assert run(_cli_capture.capture, "-o", "job.capture", "-a", url)[0] == 0
        wanted = ask(f"{url}/#{TOKENS.admin}", "/api/summary")[1]
    with started(DASHBOARD, "--db", "job.capture", "--port", "0") as (process, url):
        assert ask(url, "/api/summary") == (200, wanted) and wanted["errors"]["failed_actors"]
        assert ask(url.partition("/#")[0], "/api/summary")[0] == 401
        status, root = ask(url, "/v1/root")
        assert status == 200 and root["as_of"].startswith("2023-11-14")
        assert ask(url, "/v1/actions/kill_proc", {"target": str(Reference("proc", job.PROCS[0]))})[0] == 503
        folders = list(tmp_path.glob("monarch-dashboard-*"))
        assert len(folders) == 1 and folders[0].stat().st_mode & 0o777 == 0o700
        signal_beside_main_thread(process.pid, signal.SIGINT)
        assert process.wait(30) == 130 and process.stderr is not None and process.stderr.read() == ""
    assert not folders[0].exists()


def test_dashboard_of_a_job_forwards_actions(tmp_path: Path) -> None:
    actions, stacks = RecordedActions(), MadeUpStacks()
    proc = str(Reference("proc", job.PROCS[0]))
    with served(make(actions=actions, stacks=stacks)) as job_url:
        with started(VERB, "dashboard", "--port", "0", "-a", job_url) as (process, url):
            assert url.startswith("http://127.0.0.1:") and TOKENS.admin not in url
            assert ask(url, "/api/summary") == ask(f"{job_url}/#{TOKENS.admin}", "/api/summary")
            assert ask(url, "/v1/stacks?mesh=workers&native=true")[1]["mesh"] == "workers"
            assert ask(url, f"/v1/pyspy/{proc}")[1]["Ok"]["pid"] == job.PROCS[0]
            assert ask(url, f"/v1/pyspy_dump/{proc}", {})[1] == {"dump_id": f"dump-{job.PROCS[0]}"}
            assert ask(url, "/v1/actions/signal_proc", {"target": proc, "signal": "TERM"})[1]["done"] is True
            assert ask(url, "/v1/actions/kill_job", {"target": "j", "reason": "over"})[1]["done"] is True
            assert ask(url, "/api/query", {"sql": "SELECT nothing FROM actors"})[0] == 400
            assert {"name": "hub_token", "value": "***"}.items() <= ask(url, f"/v1/config/{proc}")[1]["entries"][1].items()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 143
        assert [(name, arguments) for name, arguments, _ in actions.calls] == [("signal_proc", (job.PROCS[0], 15)), ("kill_job", ("j",))]
    assert not list(tmp_path.glob("monarch-dashboard-*")) and not (tmp_path / "home").exists()


def test_dashboard_refuses_what_it_cannot_serve() -> None:
    with served() as url:
        assert run(_cli_capture.capture, "-o", "job.capture", "-a", url)[0] == 0
    for arguments, code, text in (
        (["job.capture", "--host", "0.0.0.0"], 1, "there is no certificate"),
        (["missing.capture"], 1, "missing.capture"),
        (["job.capture", "--tls-cert", "a.pem"], 2, "--tls-key"),
    ):
        found, out, err = run(_cli_capture.capture_dashboard, "--db", *arguments)
        assert (found, out) == (code, "") and text in err
    done = subprocess.run([sys.executable, "-c", DASHBOARD], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "") and "--db" in done.stderr
