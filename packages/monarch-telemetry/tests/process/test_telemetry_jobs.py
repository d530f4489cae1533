"""Telemetry as a feature of a job: on its hosts, in its state, over its API, and gone with it."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import os, sys, warnings
import monarch.actor
from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob, TelemetryConfig

class Worker(Actor):
    @endpoint
    def step(self, n: int) -> int:
        return n

def rows(state, sql):
    return [tuple(row.values()) for row in state.query_engine.query(sql).to_pylist()]
"""


def shown(text: str) -> list[str]:
    return telemetry_program.shown(PROGRAM + text)


def test_job_has_engine_client_and_url_until_killed():
    assert shown("""
job = ProcessJob({"trainers": 2}).enable_telemetry(TelemetryConfig(retention_secs=60), level="messages")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the port may be taken by another job of this machine
    state = job.state(None)
procs = state.trainers.spawn_procs(name="procs")
worker = procs.spawn("worker", Worker)
worker.step.call(1).get()
while rows(state, "SELECT count(*) FROM messages WHERE endpoint = 'step'") != [(2,)]:  # polls: rows come with a look
    continue
print("=", rows(state, "SELECT count(*) FROM hosts"), rows(state, "SELECT count(DISTINCT host_id) FROM procs p JOIN meshes m"
      " ON m.id = p.mesh_id WHERE m.given_name = 'procs'"))
answer = state.query_engine_client.query("SELECT count(*) AS n FROM messages WHERE endpoint = 'step'")
print("=", answer["rows"], answer["coverage"]["hosts_answered"], state.telemetry_url == state.admin_url)
print("=", job.telemetry_query_client().query("SELECT 1 AS one")["rows"])
# Another `state()` of the same job goes on with the same collectors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    again = job.state(None)
print("=", rows(again, "SELECT count(*) FROM messages WHERE endpoint = 'step'"), again.telemetry_url == state.telemetry_url)
url = again.telemetry_url
job.kill()
import urllib.request
try:
    urllib.request.urlopen(url, timeout=5)
except OSError as error:
    print("=", type(error).__name__)
""") == [
        "[(3,)] [(2,)]",
        "[{'n': 2}] 3 True",
        "[{'one': 1}]",
        "[(2,)] True",
        "URLError",
    ]


def test_enable_admin_serves_and_both_together_serve_once():
    assert shown("""
import urllib.request
for both in (False, True):
    job = ProcessJob({"trainers": 1}).enable_admin(admin_addr="127.0.0.1:0")
    if both:
        job = job.enable_telemetry()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = job.state(None)
    with urllib.request.urlopen(state.admin_url + "/healthz", timeout=10) as answer:
        print("=", answer.status, state.telemetry_url in (None, state.admin_url))
    job.kill()
""") == ["200 True", "200 True"]


def test_invalid_options_are_named_at_configuration():
    assert shown("""
for wrong in ({"level": "loud"}, {"retention_secs": -1}, {"dashboard_port": 70000}, {"colour": "red"}):
    try:
        ProcessJob({"trainers": 1}).enable_telemetry(**wrong)
    except Exception as error:
        print("=", str(error).partition(chr(10))[0].partition(", snapshot")[0])
""") == [
        "level='loud': expected off, normal, messages",
        "retention_secs=-1: expected a number greater than 0, or 0 for no bound of time",
        "dashboard_port=70000: expected a port, 0 to 65535",
        "telemetry has no option 'colour'; there are retention_secs, include_dashboard, dashboard_port",
    ]
