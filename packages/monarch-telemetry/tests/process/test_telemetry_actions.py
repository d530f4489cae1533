"""Actions on a real job over its API: each is done, or refused with what can do it, and has a row of the audit."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import logging, os, signal, sys, threading, warnings
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host, this_proc
from monarch.job import ProcessJob
from monarch.telemetry._http.http_client import HttpClient
from monarch.telemetry._http.references import Reference
from monarch.telemetry.errors import TelemetryError
import json

monarch.actor.unhandled_fault_hook = lambda failure: None

class Worker(Actor):
    @endpoint
    def step(self, n: int) -> int:
        return n

    @endpoint
    def level(self) -> int:
        return logging.getLogger().level

    @endpoint
    def spawn(self) -> None:
        self.child = this_proc().spawn("child", Worker)
        self.child.step.call_one(1).get()

def post(client, action, target, **more):
    try:
        answer = json.loads(client.post(f"/v1/actions/{action}", {"target": target, **more}, 100.0))
    except TelemetryError as error:
        return str(error).splitlines()[0].rpartition(" answers ")[2]
    return answer["done"], answer["detail"]

def reference(proc):
    return str(Reference("proc", proc))

def rows(engine, sql):
    return [tuple(row.values()) for row in engine.query(sql).to_pylist()]

def until(engine, sql):
    while not (found := rows(engine, sql)):  # polls: rows come with a look
        continue
    return found

def procs_of(engine, mesh):
    return [proc for proc, in rows(engine, "SELECT p.proc_id FROM procs p JOIN meshes m ON m.id = p.mesh_id"
            f" WHERE m.given_name = '{mesh}' AND p.ended_us IS NULL ORDER BY p.rank")]
"""
SERVED = """
running = telemetry.start(serve=True, admin_addr="127.0.0.1:0")
engine, client = running.engine, HttpClient(running.url, token=running.token)
"""
JOB = """
job = ProcessJob({"trainers": 2}).enable_telemetry().enable_admin(admin_addr="127.0.0.1:0")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the port may be taken by another job of this machine
    state = job.state(None)
engine = state.query_engine
client = HttpClient(state.telemetry_url, token=telemetry.running.current().token)
"""


def shown(start: str, text: str) -> list[str]:
    return telemetry_program.shown(PROGRAM + start + text)


def test_settings_of_procs_have_sources_without_secrets():
    assert shown(
        JOB,
        """
from monarch.config import configured
with configured(stop_grace_period="7s"):
    procs = state.trainers.spawn_procs(name="procs")
    procs.spawn("worker", Worker).step.call(1).get()
until(engine, "SELECT 1 FROM procs p JOIN meshes m ON m.id = p.mesh_id WHERE m.given_name = 'procs' AND p.rank = 0")
def config(proc):
    entries = json.loads(client.get(f"/v1/config/{reference(proc)}", 20.0))["entries"]
    return {one["name"]: one for one in entries}
# Of a proc on another host of the job, and of the script.
for proc in (procs_of(engine, "procs")[0], *procs_of(engine, "client")):
    entries = config(proc)
    print("=", *(entries["stop_grace_period"][name] for name in ("value", "source", "changed_from_default", "env_var")))
    print("=", entries["log_dir"]["value"] == entries["log_dir"]["default_value"], entries["log_dir"]["source"])
try:
    config(12345)
except TelemetryError as error:
    print("=", str(error).splitlines()[0].rpartition(" answers ")[2])
job.kill()
""",
    ) == [
        "7s client True MONARCH_STOP_GRACE_PERIOD",
        "True default",
        "1s default False MONARCH_STOP_GRACE_PERIOD",
        "True default",
        "404: there is no proc 12345",
    ]


def test_state_of_the_named_proc_is_written_masked():
    assert shown(
        """
import os, tempfile
os.environ["MONARCH_HOME"] = home = tempfile.mkdtemp()
os.environ["MONARCH_HUB_TOKEN"] = "never-shown"
"""
        + JOB,
        """
import pathlib
procs = state.trainers.spawn_procs(name="procs")
procs.spawn("worker", Worker).step.call(1).get()
until(engine, "SELECT 1 FROM procs p JOIN meshes m ON m.id = p.mesh_id WHERE m.given_name = 'procs' AND p.rank = 1")
proc = procs_of(engine, "procs")[1]
for target, pid in ((reference(proc), rows(engine, f"SELECT pid FROM procs WHERE proc_id = {proc}")[0][0]), ("*", os.getpid())):
    done, detail = post(client, "dump_state", target)
    path = pathlib.Path(detail.split(" is in ")[1].rpartition(" on ")[0])
    text = path.read_text()
    print("=", done, json.loads(text)["pid"] == pid, str(path).startswith(home), oct(path.stat().st_mode & 0o777), "never-shown" in text)
for _ in range(40):
    post(client, "dump_state", "*")
print("=", len(list(path.parent.iterdir())))
print("=", post(client, "dump_state", "trainers"))
os.kill(rows(engine, f"SELECT pid FROM procs WHERE proc_id = {proc}")[0][0], signal.SIGSTOP)
done, detail = post(client, "dump_state", reference(proc))
print("=", done, detail.startswith(f"proc {proc} does not give its state"))
os.kill(rows(engine, f"SELECT pid FROM procs WHERE proc_id = {proc}")[0][0], signal.SIGCONT)
job.kill()
""",
    ) == [
        "True True True 0o600 False",
        "True True True 0o600 False",
        "32",
        "404: 'trainers' is no reference of a proc",
        "False True",
    ]


def test_log_level_is_set_per_proc_or_everywhere():
    assert shown(
        JOB,
        """
procs = state.trainers.spawn_procs(name="procs")
worker = procs.spawn("worker", Worker)
def levels():
    return [level for _, level in worker.level.call().get().items()], logging.getLogger().level
worker.step.call(1).get()
until(engine, "SELECT count(*) FROM procs p JOIN meshes m ON m.id = p.mesh_id WHERE m.given_name = 'procs' HAVING count(*) = 2")
first, _ = procs_of(engine, "procs")
before = levels()
done = post(client, "set_log_level", reference(first), level="error")
print("=", done[0], levels() == ([40, before[0][1]], before[1]))
done = post(client, "set_log_level", "*", level="WARNING")
print("=", done[0], levels(), done[1].endswith("procs is warn"))
print("=", post(client, "set_log_level", "*", level="loud"))
os.kill(rows(engine, f"SELECT pid FROM procs WHERE proc_id = {first}")[0][0], signal.SIGSTOP)
print("=", post(client, "set_log_level", reference(first), level="debug")[0])
os.kill(rows(engine, f"SELECT pid FROM procs WHERE proc_id = {first}")[0][0], signal.SIGCONT)
job.kill()
""",
    ) == [
        "True True",
        "True ([30, 30], 30) True",
        "400: level is one of trace, debug, info, warn, error, off",
        "False",
    ]


def test_meshes_are_stopped_by_name_and_number():
    assert shown(
        SERVED,
        """
procs = this_host().spawn_procs(name="procs")
worker = procs.spawn("worker", Worker)
twins = [procs.spawn("twin", Worker) for _ in range(2)]
for one in (worker, *twins):
    one.step.call_one(1).get()
worker.spawn.call_one().get()
until(engine, "SELECT 1 FROM meshes WHERE given_name = 'child'")
print("=", post(client, "stop_mesh", "child"))
print("=", post(client, "stop_mesh", "nothing"))
print("=", "several meshes" in post(client, "stop_mesh", "twin"))
twin = rows(engine, "SELECT id FROM meshes WHERE given_name = 'twin' ORDER BY timestamp_us")[0][0]
print("=", post(client, "stop_mesh", str(twin), reason="one is enough"))
try:
    twins[0].step.call_one(1).get()
except monarch.actor.SupervisionError as error:
    print("=", "one is enough" in str(error))
print("=", twins[1].step.call_one(2).get(), post(client, "stop_mesh", "<root>.<procs>"))
try:
    worker.step.call_one(1).get()
except monarch.actor.SupervisionError as error:
    print("=", "stopped by an action" in str(error))
print("=", post(client, "stop_mesh", "hosts").partition(" which")[0])
audit = "SELECT action, target, outcome FROM audit WHERE action LIKE '%actions%' ORDER BY timestamp_us"
while len(found := rows(engine, audit)) < 6:  # polls: rows are written after the answer
    continue
print("=", found[0][1:], found[3], found[4][1:], {one[0] for one in found})
""".replace("found[3]", "(found[3][0], found[3][2])"),
    ) == [
        "503: <root>.<__main__.Worker worker>.<__main__.Worker child> is not a mesh of the process that serves: only the owner of a mesh"
        " stops it, by `stop()` of its handle",
        "404: there is no mesh 'nothing'",
        "True",
        "(True, '<root>.<__main__.Worker twin> is stopped')",
        "True",
        "2 (True, '<root>.<procs> is stopped')",
        "True",
        "503: hosts is a mesh of hosts,",
        "('child', 'failed') ('POST /v1/actions/stop_mesh', 'done') ('<root>.<procs>', 'done') {'POST /v1/actions/stop_mesh'}",
    ]


def test_job_that_serves_is_healed_and_killed():
    assert shown(
        JOB,
        """
print("=", post(client, "heal_job", "another").rpartition(" ")[0])
print("=", post(client, "heal_job", job.apply_id))
class Host(Actor):
    @endpoint
    def agent(self) -> int:
        return os.getsid(0)  # the worker leads the session of its procs
victim = state.trainers.slice(hosts=1)
worker = victim.spawn_procs(name="look").spawn("host", Host).agent.call_one().get()
from monarch.extension import HostEnd, listen
lost = threading.Event()
listening = listen(lambda event: lost.set() if isinstance(event, HostEnd) else None)
os.kill(worker, signal.SIGKILL)
lost.wait()
listening.stop()
print("=", post(client, "heal_job", str(Reference("root", 0))))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    again = job.state(None)
client = HttpClient(again.telemetry_url, token=telemetry.running.current().token)
print("=", [n for _, n in again.trainers.spawn_procs(name="after").spawn("worker", Worker).step.call(3).get().items()])
name, apply_id = job._title, job.apply_id
own = telemetry.running.current().asking.own
print("=", post(client, "kill_job", apply_id[:8], reason="enough") == (True, f"{name} is being killed: enough"))
while job.active:  # polls: another thread kills it
    continue
print("=", job.apply_id)
[(_, batches)] = own.tables(["audit"]).values()
found = [row for batch in batches for row in batch.to_pylist() if "kill_job" in row["action"]]
print("=", [(row["scope"], row["outcome"]) for row in found])
""",
    ) == [
        "404: there is no job 'another': this process serves process job",
        "(True, 'hosts restarted: 0, replaced: 0, missing: 0')",
        "(True, 'hosts restarted: 0, replaced: 1, missing: 0; the next state() of the program has them')",
        "[3, 3]",
        "True",
        "None",
        "[('admin', 'done')]",
    ]


def test_query_in_progress_is_listed_and_cancelled():
    assert shown(
        SERVED,
        """
[host] = running.asking.hosts
def ask(how):
    def work():
        try:
            answers.append(how())
        except TelemetryError as error:
            answers.append(str(error))
    answers = []
    asking = threading.Thread(target=work)
    asking.start()
    return asking, answers
def queries():
    return json.loads(client.get("/v1/queries", 20.0))["queries"]
SQL = "SELECT count(*) FROM hosts WHERE name <> 'password=hunter2hunter2'"
for how in (lambda: client.post("/v1/query", {"sql": SQL}, 20.0), lambda: engine.query(SQL)):
    os.kill(host.pid, signal.SIGSTOP)
    asking, answers = ask(how)
    while not (found := queries()):  # polls: another thread asks
        continue
    print("=", found[0]["sql"].endswith("password=***'"), post(client, "cancel_query", found[0]["query"])[0])
    asking.join()
    print("=", answers[0].replace(f"query {found[0]['query']} ", "query N "))
    os.kill(host.pid, signal.SIGCONT)
    print("=", queries(), post(client, "cancel_query", found[0]["query"]).replace(f"'{found[0]['query']}'", "'N'"))
print("=", rows(engine, "SELECT count(*) FROM hosts"))
# The host ends its part too, whichever comes first.
from monarch.telemetry._collector.keeping import schemas
from monarch.telemetry._sql import plan as planning
from monarch.telemetry._sql.limits import DEFAULT
collector, plan = host.start(), planning.make(SQL, schemas()).to_json()
print("=", collector.part.call_one(plan, tuple(DEFAULT), 9.0, 5).get()[1])
collector.cancel.call_one(5).get()
print("=", collector.part.call_one(plan, tuple(DEFAULT), 9.0, 5).get())
print("=", collector.part.call_one(plan, tuple(DEFAULT), 0.0, 6).get(), collector.gather.call_one(plan, tuple(DEFAULT), 0.0, [], 7).get())
""",
    ) == [
        "True True",
        "query N was cancelled",
        "[] 404: there is no query 'N' in progress",
        "True True",
        "query N was cancelled",
        "[] 404: there is no query 'N' in progress",
        "[(1,)]",
        "1",
        "None",
        "None None",
    ]


def test_query_of_a_client_that_leaves_is_cancelled():
    assert shown(
        SERVED,
        """
import socket
from urllib.parse import urlsplit
[host] = running.asking.hosts
def queries():
    return json.loads(client.get("/v1/queries", 20.0))["queries"]
os.kill(host.pid, signal.SIGSTOP)
body = json.dumps({"sql": "SELECT count(*) FROM hosts WHERE name <> 'left'", "timeout_s": 10.0}).encode()
url = urlsplit(running.url)
leaving = socket.create_connection((url.hostname, url.port))
lines = ["POST /v1/query HTTP/1.1", f"Host: {url.netloc}", f"Authorization: Bearer {running.token}", f"Content-Length: {len(body)}"]
head = "\\r\\n".join([*lines, "", ""])
leaving.sendall(head.encode() + body)
while not queries():  # polls: the server reads
    continue
leaving.close()
while queries():  # polls: the server learns of it
    continue
os.kill(host.pid, signal.SIGCONT)
print("=", until(engine, "SELECT detail FROM audit WHERE action = 'POST /v1/query' AND target LIKE '%left%'"))
""",
    ) == ["[('the client has gone',)]"]


def test_terminal_ui_and_agents_act_on_a_job():
    assert shown(
        JOB,
        """
from monarch.telemetry._agents.remote_actions import RemoteActions
from monarch.telemetry._tui.api import Api
api, agents = Api(client), RemoteActions(client)
procs = state.trainers.spawn_procs(name="procs")
worker = procs.spawn("worker", Worker)
worker.step.call(1).get()
sql = "SELECT a.id, p.proc_id FROM actors a JOIN meshes m ON m.id = a.mesh_id JOIN procs p ON p.mesh_id = m.parent_mesh_id"
actor, proc = until(engine, sql + " WHERE m.given_name = 'worker' AND a.rank = 0 AND p.rank = 0")[0]
entries = {one["name"]: one for one in api.config(reference(proc))}
print("=", entries["stop_grace_period"]["source"])
print("=", agents.act("set_log_level", str(proc), {"level": "ERROR"}).done, agents.act("set_log_level", "*", {"level": "INFO"}).done)
print("=", api.act("heal_job", api.root()["identity"], {}))
mesh = api.mesh_of(str(actor))
print("=", mesh, api.act("stop_mesh", mesh, {}).done)
print("=", agents.act("kill_proc", str(proc), {}).done)
done = api.act("kill_job", api.root()["identity"], {})
while job.active:  # polls: another thread kills it
    continue
print("=", done.done)
""",
    ) == [
        "default",
        "True True",
        "Done(done=True, detail='hosts restarted: 0, replaced: 0, missing: 0')",
        "<root>.<__main__.Worker worker> True",
        "True",
        "True",
    ]


def test_without_a_job_the_command_is_named():
    assert shown(
        SERVED,
        """
for action in ("heal_job", "kill_job"):
    print("=", post(client, action, "any"))
print("=", post(HttpClient(running.url, token=json.loads(open(next(iter(__import__("glob").glob(os.path.join(
    os.path.expanduser(os.environ.get("MONARCH_HOME") or "~/.monarch"), "jobs", f"client-{os.getpid()}", "*.json"))))).read())["read"]),
    "cancel_query", "1"))
""",
    ) == [
        "503: jobs are healed by their program or by `monarch heal`",
        "503: jobs are ended by their program or by `monarch kill`",
        "403: this needs a token of the scope admin",
    ]
