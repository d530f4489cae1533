"""Several starts of telemetry in one process: what they share, what each ends, and which of them the functions of the module ask."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import asyncio, gc, logging, os, sys, threading, urllib.request, warnings
from pathlib import Path
os.environ["MONARCH_HOME"] = str(Path("home").absolute())
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host
from monarch.actor.testing import local_hosts
from monarch.telemetry._http.auth import FILE, read_access

class Worker(Actor):
    @endpoint
    def step(self) -> int:
        return 1

ANY = "127.0.0.1:0"

def hosts():
    try:
        return len(telemetry.query("SELECT host_id FROM hosts"))
    except telemetry.TelemetryError as error:
        return str(error).partition(chr(10))[0]

def answers(url, token=None):
    # A handle that serves no more gives no token.
    try:
        return telemetry.QueryEngineClient(url, token=token).query("SELECT 1 AS x")["rows"]
    except telemetry.TelemetryError as error:
        return "none"

def servers():
    return sum(one.name == "monarch telemetry http" for one in threading.enumerate())

def published():
    return [read_access(one / FILE).urls for one in Path("home", "jobs").iterdir()]

def refused(error, **wrong):
    try:
        telemetry.start(**wrong)
    except error as found:
        print("=", type(found).__name__, str(found).partition(chr(10))[0])
    else:
        print("= accepted", wrong)
"""


def shown(text: str) -> list[str]:
    return telemetry_program.shown(PROGRAM + text)


def test_start_without_a_thread_names_the_limit() -> None:
    assert shown("""
class Interrupted:
    # As OpenBLAS does it.
    def find_spec(self, name, *more):
        if name == "monarch.telemetry._engine.engine":
            raise KeyboardInterrupt

def no_thread(thread):
    raise RuntimeError("can't start new thread")

this_host()
sys.meta_path.insert(0, Interrupted())
start, threading.Thread.start = threading.Thread.start, no_thread
refused(telemetry.TelemetryError)
threading.Thread.start = start
refused(KeyboardInterrupt)
sys.meta_path.pop(0)
# A collector is started without a thread of its own.
threading.Thread.start = lambda thread: (start if thread.name == "monarch-query-worker" else no_thread)(thread)
running = telemetry.start()
threading.Thread.start = start
print("=", hosts())
running.stop().get()
""") == [
        "TelemetryError telemetry cannot start: no thread can be started for a library that it loads",
        "KeyboardInterrupt ",
        "1",
    ]


def test_newest_running_start_is_asked() -> None:
    assert shown("""
worker = this_host().spawn_procs(name="workers").spawn("worker", Worker)
first = telemetry.start()
second = telemetry.start()
print("=", second.asking is first.asking, hosts())
second.stop().get()
# The collector goes on too.
worker.step.call_one().get()
count = "SELECT count(*) AS n FROM messages WHERE endpoint = 'step'"
while telemetry.query(count).to_pylist() != [{"n": 1}]:  # polls: rows come with a look
    continue
print("=", hosts())
second.stop().get()
print("=", hosts())
first.stop().get()
print("=", hosts())
""") == ["True 1", "1", "1", "telemetry is not enabled in this process"]


def test_second_start_never_narrows_the_first() -> None:
    assert shown("""
async def main():
    async with local_hosts(2) as there:
        here = telemetry.start()
        wide = telemetry.start(hosts=there)
        print("=", hosts(), wide.asking is here.asking)
        for again in (telemetry.start(), telemetry.start(hosts=there.slice(hosts=1)), telemetry.start(hosts={"a": there})):
            print("=", hosts(), again.asking is wide.asking)
            await again.stop()
        print("=", hosts())
        await wide.stop()
        # Of its hosts, this one is still asked by the first.
        worker = this_host().spawn_procs(name="workers").spawn("worker", Worker)
        away = there.spawn_procs(name="away").spawn("distant", Worker)
        await worker.step.call_one()
        await away.step.call()
        count = "SELECT count(*) AS n FROM messages WHERE endpoint = 'step'"
        while telemetry.query(count).to_pylist() != [{"n": 1}]:  # polls: rows come with a look
            continue
        print("=", hosts(), wide.engine.query(count).to_pylist())
        await here.stop()
        print("=", hosts(), flush=True)
        os._exit(0)
asyncio.run(main())
""") == [
        "3 False",
        *["3 True"] * 3,
        "3",
        "1 [{'n': 1}]",
        "telemetry is not enabled in this process",
    ]


def test_start_beside_a_job_asks_the_jobs_hosts() -> None:
    assert shown("""
from monarch.job import ProcessJob
from monarch.telemetry.running import all_uses
job = ProcessJob({"trainers": 2}).enable_telemetry(mesh_admin_config=type("Config", (), {"admin_addr": ANY})())
state = job.state(None)
print("=", hosts())
beside = telemetry.start(serve=True)
print("=", hosts(), beside.url == state.telemetry_url)
beside.stop().get()
print("=", hosts(), answers(state.telemetry_url))
# Another `state()` is the same telemetry, not one more.
again = job.state(None)
print("=", hosts(), len(all_uses()._uses), servers())
job.kill()
print("=", hosts(), servers())
""") == ["3", "3 True", "3 [{'x': 1}]", "3 1 1", "telemetry is not enabled in this process 0"]


def test_repeated_starts_share_one_server() -> None:
    assert shown("""
handles = [telemetry.start(serve=True, admin_addr=ANY) for _ in range(3)]
handles.append(telemetry.start(serve=True))
handles.append(telemetry.start(serve=True, admin_addr=handles[0].url.rpartition("/")[2]))
url, token = handles[0].url, handles[0].token
print("=", {one.url for one in handles} == {url}, servers(), published() == [(url,)])
print("=", {one.dashboard_url for one in handles})
with_dashboard = [telemetry.start(include_dashboard=True, dashboard_port=0) for _ in range(2)]
pages = with_dashboard[0].dashboard_url.partition("/#")[0]
print("=", {one.url for one in with_dashboard} == {url}, pages != url, with_dashboard[1].dashboard_url.startswith(pages), servers())
print("=", answers(pages), published() == [(url, pages)])
for one in (*handles, with_dashboard[0]):
    one.stop_serving()
    print("=", one.url, one.dashboard_url, repr(one.token), answers(url, token))
print("=", hosts())
with_dashboard[1].stop().get()
print("=", answers(url, token), servers(), os.listdir("home/jobs"))
for one in (*handles, with_dashboard[0]):
    one.stop().get()
print("=", hosts())
""") == [
        "True 1 True",
        "{None}",
        "True True True 2",
        "[{'x': 1}] True",
        *["None None '' [{'x': 1}]"] * 6,
        "1",
        "none 0 []",
        "telemetry is not enabled in this process",
    ]


def test_another_port_is_another_server() -> None:
    assert shown("""
import socket
with socket.create_server(("127.0.0.1", 0)) as free:
    other = f"127.0.0.1:{free.getsockname()[1]}"
first = telemetry.start(serve=True, admin_addr=ANY)
second = telemetry.start(serve=True, admin_addr=other)
urls = first.url, second.url
print("=", second.url == f"http://{other}", servers(), published() == [urls[::-1]])
first.stop_serving()
print("=", answers(second.url), published() == [(second.url,)])
third = telemetry.start(serve=True)
print("=", third.url == second.url, servers())
second.stop_serving()
third.stop().get()
print("=", servers(), os.listdir("home/jobs"))
""") == ["True 2 True", "[{'x': 1}] True", "True 1", "0 []"]


def test_repeated_notebook_cell_leaves_no_running_telemetry() -> None:
    assert shown("""
def cell():
    global running
    running = telemetry.start(serve=True, admin_addr=ANY)

for _ in range(3):
    cell()
url, token = running.url, running.token
running = telemetry.start()
print("=", running.url, answers(url, token))
running.stop().get()
print("=", hosts(), answers(url, token), servers())
# A start without a handle is meant to run on.
telemetry.start()
for _ in range(2):
    running = telemetry.start()
running.stop().get()
print("=", hosts())
""") == ["None [{'x': 1}]", "telemetry is not enabled in this process none 0", "1"]


def test_fork_keeps_the_credentials_of_its_parent() -> None:
    assert shown("""
running = telemetry.start(serve=True, admin_addr=ANY)

def forked(work):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        work()
        os._exit(1)
    print("=", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), published() == [(running.url,)], answers(running.url))

def stopped():
    running.stop_serving()
    os._exit(running.url is not None)

forked(sys.exit)
forked(stopped)
running.stop().get()
print("=", os.listdir("home/jobs"))
""") == ["0 True [{'x': 1}]", "0 True [{'x': 1}]", "[]"]


def test_end_of_a_program_withdraws_its_urls() -> None:
    assert shown("""
import atexit
from monarch.job import ProcessJob
job = ProcessJob({"trainers": 1}).enable_telemetry(mesh_admin_config=type("Config", (), {"admin_addr": ANY})())
# Registered first, so called last.
atexit.register(lambda: (print("=", published(), flush=True), job.kill(), os._exit(0)))
state = job.state(None)
print("=", published() == [(state.telemetry_url,)])
sys.exit()
""") == ["True", "[()]"]


def test_wider_options_win_and_refused_ones_are_named() -> None:
    assert shown("""
first = telemetry.start(retention_secs=120, level="normal")
refused(UserWarning, retention_secs=60, level="off", dashboard_port=9)
refused(UserWarning, config=type("Config", (), {"retention_secs": 30})())
print("=", hosts(), first.asking.options.retention_secs)
# What was not asked for is not named, and what is more is taken.
telemetry.start()
second = telemetry.start(level="messages", snapshot_interval_secs=5)
found = first.asking.hosts[0].start().configure.call_one(tuple(first.asking.options), [], 0.0).get()
print("=", type(first.asking.options)(*found)._replace(otel=()) == first.asking.options._replace(otel=()))
print("=", first.asking.options.level, first.asking.options.snapshot_interval_secs, first.asking.options.retention_secs)
""") == [
        "UserWarning telemetry that runs already goes on with retention_secs=120, not 60; level='normal', not 'off'",
        "UserWarning telemetry that runs already goes on with retention_secs=120, not 30",
        "1 120",
        "True",
        "messages 5 3600.0",
    ]


def test_wrong_arguments_are_named_with_what_is_allowed() -> None:
    assert shown("""
for wrong in (
    {"config": 5}, {"hosts": 5}, {"hosts": {1: this_host()}}, {"admin_addr": 5, "serve": True}, {"admin_addr": 5},
    {"job": 5}, {"control": 5}, {"serve": "yes"}, {"serve": 1},
):
    refused(TypeError, **wrong)
for wrong in (
    {"hosts": {}}, {"level": None}, {"retention_secs": None}, {"include_dashboard": 5}, {"include_dashboard": None},
    {"dashboard_port": None},
    {"job": "../other"}, {"job": ""}, {"colour": None}, {"admin_addr": "", "serve": True}, {"admin_addr": "here", "serve": True},
):
    refused(telemetry.TelemetryError, **wrong)
print("=", hosts())
from monarch.job import ProcessJob
try:
    ProcessJob({"trainers": 1}).enable_telemetry(include_dashboard="yes")
except telemetry.TelemetryError as error:
    print("=", error)
""") == [
        "TypeError start(config=5): expected a TelemetryConfig, not int",
        "TypeError start(hosts=5): expected a mesh of hosts, or such meshes by name, not int",
        "TypeError start(hosts={1: <HostMesh {}>}): expected a mesh of hosts, or such meshes by name, not dict",
        *["TypeError start(admin_addr=5): expected an address such as '127.0.0.1:1729', not int"] * 2,
        "TypeError start(job=5): expected the apply_id of a job, a str, not int",
        "TypeError start(control=5): expected a monarch.job.JobControl, not int",
        "TypeError start(serve='yes'): expected True or False, not str",
        "TypeError start(serve=1): expected True or False, not int",
        "TelemetryError hosts={}: expected at least one mesh of hosts; left out, it is the host of this process",
        "TelemetryError level=None: expected off, normal, messages",
        "TelemetryError retention_secs=None: expected a number greater than 0, or 0 for no bound of time",
        "TelemetryError include_dashboard=5: expected True or False",
        "TelemetryError include_dashboard=None: expected True or False",
        "TelemetryError dashboard_port=None: expected a port, 0 to 65535",
        "TelemetryError job='../other': expected the apply_id of a job",
        "TelemetryError job='': expected the apply_id of a job",
        "TelemetryError telemetry has no option 'colour'; there are retention_secs, include_dashboard, dashboard_port,"
        " snapshot_interval_secs, level, budget_bytes, otel, metric_interval_secs, memory_interval_secs, job",
        "TelemetryError admin_addr: '' is no address; one is 127.0.0.1:1729",
        "TelemetryError admin_addr: 'here' is no address; one is 127.0.0.1:1729",
        "telemetry is not enabled in this process",
        "include_dashboard='yes': expected True or False",
    ]


def test_missing_dashboard_build_is_stated() -> None:
    assert shown("""
from monarch.telemetry._dashboard.files import Files
from monarch.telemetry._serving import serving
built = Path("built")
built.mkdir()
(built / "index.html").write_text("<!doctype html>")

class Printed(logging.Handler):
    def emit(self, record):
        print("=", record.levelname, record.getMessage())

logging.getLogger("monarch.telemetry").addHandler(Printed())
for folder in (Path("missing"), built):
    serving.files = lambda: Files(folder)
    running = telemetry.start(include_dashboard=True, dashboard_port=0, admin_addr=ANY)
    running.stop().get()
""") == [
        "WARNING the dashboard is not built; run in the checkout, then restart this program: "
        "tools/hatch run python -m tools.build_dashboard && pip install ./packages/monarch-telemetry"
    ]
