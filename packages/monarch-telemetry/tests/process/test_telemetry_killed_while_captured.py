"""Processes of a job that are killed or stopped while `monarch capture` runs: the file is whole or absent, and names who is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import telemetry_program

from monarch.telemetry._export.whole_tables import LARGE

# On a busy machine: 80 s at ten processes for a processor.
_MOST_S = 300
# Seconds of a question to a stopped collector, of which hosts have four fifths; the limit of capture is 30.
_QUESTION_S = 8.0
pytestmark = pytest.mark.timeout(_MOST_S + 10)
PROGRAM = """
import json, os, signal, subprocess, sys
from pathlib import Path

os.environ["MONARCH_HOME"] = str(Path.cwd() / "home")
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob
from monarch.telemetry._export.capture import read
from observed_job import stop

monarch.actor.unhandled_fault_hook = lambda failure: None
ROWS, PARTS = 35_000, 14
VERB = '''
import sys
from monarch.telemetry import _cli_capture as verbs
from monarch.telemetry._export import whole_tables
whole_tables.LARGE = whole_tables.LARGE._replace(seconds=SECONDS)
sys.exit(verbs.capture.main(sys.argv[1:], standalone_mode=False))
'''

class Marker(Actor):
    @endpoint
    def mark(self, count: int) -> None:
        for n in range(count):
            telemetry.record("mark", n=n)

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def writes(capture):
    # Whether it has the file open that will have the name.
    try:
        return any(os.path.realpath(entry).startswith(str(Path.cwd().resolve() / "#")) or entry.readlink().name.startswith(".job.capture")
                   for entry in Path(f"/proc/{capture.pid}/fd").iterdir())
    except FileNotFoundError:
        return False

job = ProcessJob({"hosts": 3})
hosts = job.state(None).hosts
running = telemetry.start(hosts=hosts, serve=True, admin_addr="127.0.0.1:0", budget_bytes=256 << 20)
marker = hosts.spawn_procs(name="there").spawn("marker", Marker)
MARKS = "SELECT count(*) AS n FROM events WHERE name = 'mark'"
for n in range(1, PARTS + 1):
    marker.mark.call(ROWS // PARTS).get()
    # A ring has room for one part. Events of more parts that the collector has not read would be overwritten.
    while running.engine.query(MARKS).column("n").to_pylist() != [3 * ROWS // PARTS * n]:  # polls: rows come with a look
        continue
collector = next(host.pid for host in running.asking.hosts if host.name == "hosts[1]")
command = [sys.executable, "-W", "error", "-c", VERB, "-o", "job.capture", "-a", running.url]
capture = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
while capture.poll() is None and not writes(capture):  # polls: another process opens it
    continue
DO
said = capture.communicate()[1]
found = {"code": capture.returncode, "said": said, "files": sorted(path.name for path in Path.cwd().glob("*job.capture*"))}
if Path("job.capture").exists():
    tables = read("job.capture")
    found["tables"] = len(tables)
    found["missing"] = sorted({one.host for entry in tables.manifest.tables.values() for one in entry.coverage.missing})
    events = [row for batch in tables["events"] for row in batch.select(["name", "fields_json"]).to_pylist()]
    found["marks"] = sum(row["name"] == "mark" for row in events) / ROWS
    found["ended"] = [json.loads(row["fields_json"])["host"] for row in events if row["name"] == "telemetry.collector_ended"]
print("=", json.dumps(found))
UNDO
running.stop().get()
job.kill()
"""


def captured(do: str, undo: str = "", seconds: float = LARGE.seconds) -> dict[str, Any]:
    program = PROGRAM.replace("UNDO", undo).replace("DO", do).replace("SECONDS", str(seconds))
    (line,) = telemetry_program.shown(program, within=_MOST_S)
    return json.loads(line)


def test_killed_collector_is_asked_again() -> None:
    found = captured("os.kill(collector, signal.SIGKILL)")
    assert (found["code"], found["files"], found["tables"]) == (0, ["job.capture"], 46), found
    # The events that are still in its rings are read again; the loss of the rest is a row, unless the table was captured before.
    assert found["missing"] == [] and 2 <= found["marks"] <= 3, found
    assert found["marks"] == 3 or found["ended"] == ["hosts[1]"], found


def test_killed_host_is_named() -> None:
    found = captured("os.kill(parent(parent(collector)), signal.SIGKILL)")
    assert (found["code"], found["files"], found["tables"]) == (0, ["job.capture"], 46), found
    assert found["missing"] == ["hosts[1]"] and "host hosts[1] is missing from" in found["said"], found
    assert found["marks"] in (2, 3), found


def test_stopped_collector_costs_one_timeout_only() -> None:
    found = captured("stop(collector)", "os.kill(collector, signal.SIGCONT)", _QUESTION_S)
    assert (found["code"], found["files"], found["tables"]) == (0, ["job.capture"], 46), found
    assert found["missing"] == ["hosts[1]"] and "host hosts[1] is missing from" in found["said"], found
    assert found["marks"] in (2, 3), found


def test_killed_capture_leaves_no_file() -> None:
    found = captured("capture.kill()")
    assert (found["code"], found["said"], found["files"]) == (-9, "", []), found
