"""Secrets planted in a real job, in its environment, settings, lines, errors and URLs: no route, capture, tool or dump shows one."""

from __future__ import annotations

import pytest
import telemetry_program

# Each of many questions starts an engine, which is slow on a busy machine. The limit of the program is the first one: it shows its
# progress.
pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import json, logging, os, re, sys
from pathlib import Path

# Put together here, so that no scanner of repositories finds a secret.
PLANTED = {name: f"planted-{name}-" + "xYz7" * 4 for name in ("variable", "url", "error", "setting", "header", "receiver")}
os.environ["API_TOKEN"] = PLANTED["variable"]
os.environ["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer {PLANTED['header']}"
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://me:{PLANTED['receiver']}@127.0.0.1:9/"
os.environ["MONARCH_HOME"] = str(Path.cwd() / "home")
log = Path("client.log")
logging.basicConfig(filename=log, level=logging.DEBUG)

import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, ActorError, endpoint, this_host
from monarch.config import configure
from monarch.telemetry._agents.tools import Tools
from monarch.telemetry._export.capture import read
from monarch.telemetry._http.http_client import HttpClient
from monarch.telemetry._http.openapi import stored
from monarch.telemetry._http.references import Reference
from monarch.telemetry._http.remote_engine import find_engine
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry.errors import TelemetryError

monarch.actor.unhandled_fault_hook = lambda failure: None
configure(log_dir=f"https://me:{PLANTED['setting']}@example.com/")

class Worker(Actor):
    @endpoint
    def show(self, url: str, dashboard: str) -> None:
        print("the variable is", os.environ["API_TOKEN"])
        print(f"loads https://me:{url}@example.com/data, dashboard at {dashboard}")
        logging.getLogger("worker").warning("password=%s", url)
        print("shown", flush=True)

    @endpoint
    def fail(self, secret: str) -> None:
        raise ValueError(f"login(user='me', password='{secret}')")

    @endpoint
    def die(self, secret: str) -> None:
        print(f"loads https://me:{secret}@example.com/last", flush=True)
        raise SystemExit(f"--api-key {secret}")

running = telemetry.start(serve=True, admin_addr="127.0.0.1:0", include_dashboard=True, dashboard_port=0, snapshot_interval_secs=0.3)
tokens = json.loads(next(Path("home/jobs").glob("*/telemetry.json")).read_text())
TOKENS = {name: tokens[name] for name in ("read", "admin")}
workers = this_host().spawn_procs({"gpus": 2}, name="workers")
worker = workers.spawn("worker", Worker)
worker.show.call(PLANTED["url"], running.dashboard_url).get()
for call in (worker.fail, worker.slice(gpus=1).die):
    try:
        call.call(PLANTED["error"]).get()
    except Exception:
        pass

def until(sql):
    while not (found := running.engine.query(sql).to_pylist()):  # polls: rows come with a look
        continue
    return found

until("SELECT 1 FROM logs WHERE line = 'shown' HAVING count(*) = 2")
until("SELECT 1 FROM failures")
until("SELECT 1 FROM actor_nodes WHERE actor_type LIKE '%Worker%'")
until("SELECT 1 FROM events WHERE name = 'telemetry.export'")

def shown_by(name, text):
    text = text if isinstance(text, str) else text.decode(errors="replace")
    for secret, value in {**PLANTED, **TOKENS}.items():
        if value in text:
            at = text.index(value)
            print("=", name, "shows", secret, repr(text[max(0, at - 60) : at + 20]))
"""


def shown(text: str) -> list[str]:
    return telemetry_program.shown(PROGRAM + text)


def test_no_route_and_no_table_shows_a_secret():
    assert shown("""
client = HttpClient(running.url, token=running.token)
proc = str(Reference("proc", until("SELECT proc_id FROM live_procs('workers')")[0]["proc_id"]))
actor = until("SELECT id, mesh_id FROM actors WHERE display_name LIKE 'worker%'")[0]
asked = 0
for path, methods in json.loads(stored())["paths"].items():
    if "get" not in methods or path == "/v1/events":
        continue
    number = actor["mesh_id"] if "meshes" in path else actor["id"]
    url = path.replace("{proc}", proc).replace("{reference}", proc).replace("{id}", str(number))
    try:
        answer = client.get(url, 20.0)
    except TelemetryError as error:
        answer = str(error)
    asked += 1
    shown_by(path, answer)
print("=", asked > 30)
rows = 0
for table in TABLES.values():
    found = running.engine.query(f"SELECT * FROM {table.name}{'()' if table.function else ''}")
    rows += found.num_rows
    shown_by(table.name, json.dumps(found.to_pylist(), default=str))
    data = client.post("/v1/query", {"sql": f"SELECT * FROM {table.name}{'()' if table.function else ''} LIMIT 1000"}, 20.0)
    shown_by(table.name, data)
print("=", rows > 100)
# A statement that is wrong, or has a secret itself, is shown in no error, list or audit.
for sql in (f"SELECT '{running.token}' FROM nothing", f"SELECT password FROM logs WHERE line = 'password={PLANTED['error']}'"):
    try:
        client.post("/v1/query", {"sql": sql}, 20.0)
    except TelemetryError as error:
        shown_by("error", str(error))
until("SELECT 1 FROM audit WHERE target LIKE '%FROM nothing%'")
shown_by("audit", json.dumps(running.engine.query("SELECT * FROM audit").to_pylist(), default=str))
dump = json.loads(client.post("/v1/actions/dump_state", {"target": "*"}, 20.0))
state = open(dump["detail"].split(" is in ")[1].rpartition(" on ")[0]).read()
shown_by("dump", state)
print("=", dump["done"], json.loads(state)["settings"]["log_dir"])
# What is masked is there.
lines = running.engine.query("SELECT DISTINCT line FROM logs WHERE line LIKE 'the variable%' OR line LIKE 'loads%/data%' ORDER BY line")
print("=", [re.sub(":[0-9]+/", ":PORT/", line) for line in lines.column(0).to_pylist()])
""") == [
        "True",
        "True",
        "True https://me:***@example.com/",
        str(["loads https://me:***@example.com/data, dashboard at http://127.0.0.1:PORT/#***", "the variable is ***"]),
    ]


def test_captures_and_agent_tools_show_no_secret():
    assert shown("""
import subprocess
command = [sys.executable, "-c", "from monarch._core.cli import main; main()", "capture", "-o", "saved.capture"]
done = subprocess.run(command, capture_output=True, text=True)
shown_by("capture verb", done.stdout + done.stderr)
print("=", done.returncode)
for name, batches in read("saved.capture").items():
    for batch in batches:
        shown_by(f"capture {name}", json.dumps(batch.to_pylist(), default=str))
tools = Tools(lambda: find_engine(None, None))
calls = [("status", {}), ("logs", {}), ("stacks", {}), ("list_tables", {}), ("diagnose", {})]
calls += [("run_query", {"sql": "SELECT * FROM failures"}), ("run_query", {"sql": "SELECT * FROM logs"})]
calls += [("diagnose", {"name": line.split()[0]}) for line in tools.call("diagnose", {}).partition("by name:\\n")[2].splitlines()]
for name, arguments in calls:
    shown_by(f"tool {name}", tools.call(name, arguments))
print("=", "shown" in tools.call("logs", {}))
""") == ["0", "True"]


def test_token_is_only_in_its_file():
    assert shown("""
client = HttpClient(running.url, token=running.token)
# Those that have 10 s to answer: a busy machine may not look at a node within its second.
client.get("/v1/tree", 20.0)
client.get("/api/logs", 20.0)
seen = 0
for process in Path("/proc").iterdir():
    if process.name.isdigit():
        for name in ("cmdline", "environ"):
            try:
                data = (process / name).read_bytes()
            except OSError:
                continue
            seen += 1
            if any(token.encode() in data for token in TOKENS.values()):
                print("=", name, "of", process.name)
print("=", seen > 4)
for path in Path.cwd().rglob("*"):
    if path.is_file() and any(token.encode() in path.read_bytes() for token in TOKENS.values()):
        print("=", path.name, oct(path.stat().st_mode & 0o777), oct(path.parent.stat().st_mode & 0o777))
print("=", log.stat().st_size > 0)
shown_by("repr", repr(running) + repr(vars(running.asking)))
# The library that plans logs hundreds of steps a query, and this program logs at the level DEBUG. Its lines are rows once the collector
# has found it, which a start does not wait for on a busy machine.
while not running.engine.query("SELECT 1 FROM logs WHERE logger = 'program'").to_pylist():  # polls: rows come with a look
    logging.getLogger("program").debug("a line of this level")
print("=", running.engine.query("SELECT count(*) AS n FROM logs WHERE logger LIKE 'datafusion%' OR logger LIKE 'sqlparser%'").to_pylist())
""") == ["True", "telemetry.json 0o600 0o700", "True", "[{'n': 0}]"]
