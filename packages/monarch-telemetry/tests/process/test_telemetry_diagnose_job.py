"""The diagnosis of a job by its own process and by the tool of agents, with telemetry that runs.

Each job is a program of its own: other tests of this process leave failures, lost hosts and stopped workers.
"""

from __future__ import annotations

import telemetry_program
from eventually import SOURCE

PROGRAM = f"""
import os, signal, sys
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.telemetry._agents.tools import Tools
from monarch.telemetry._diagnose.collect import of_engine
from monarch.telemetry._diagnose.diagnosis import diagnosed
{SOURCE}

class Doomed(Actor):
    @endpoint
    def die(self):
        print("out of luck", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def live(self):
        return 1

def fail(name):
    procs = this_host().spawn_procs({{"gpus": 2}}, name=name)
    doomed = procs.spawn("doomed", Doomed)
    doomed.live.call().get()
    try:
        doomed.slice(gpus=1).die.call_one().get()
        raise AssertionError("the proc lives")
    except SupervisionError:
        return procs

monarch.actor.unhandled_fault_hook = lambda failure: None
running = telemetry.start()
"""


def test_failure_is_a_cause_until_it_is_handled() -> None:
    assert telemetry_program.shown(
        PROGRAM
        + """
procs = fail("first")
found = eventually("the failure has its last output", telemetry.diagnose, lambda found: "out of luck" in str(found))
[cause] = found.causes
print("=", "doomed rank 1 of 2" in cause.sentence and "was killed by signal 9 (SIGKILL)" in cause.sentence)
text = Tools(lambda: running.asking).call("diagnose", {})
print("=", text.startswith("1  doomed rank 1 of 2") and "\\ncanned diagnoses, by name:\\n" in text)
procs.stop().get()
print("=", telemetry.diagnose().causes)
"""
    ) == ["True", "True", "()"]


def test_engine_of_the_job_finds_its_processes() -> None:
    assert telemetry_program.shown(
        PROGRAM
        + """
with this_host().spawn_procs({"gpus": 2}, name="seen") as procs:
    procs.initialized.get()
    snapshot = of_engine(running.asking)
    print("=", {(proc.mesh, proc.rank) for proc in snapshot.procs} >= {("seen", 0), ("seen", 1), (None, None)})
    print("=", diagnosed(snapshot).causes)
"""
    ) == ["True", "()"]


def test_replaced_meshes_that_fail_are_a_loop() -> None:
    assert telemetry_program.shown(
        PROGRAM
        + """
for _ in range(3):
    fail("again").stop().get()
found = eventually("three failures have rows", telemetry.diagnose, lambda found: bool(found.causes))
print("=", found.causes[0].detector, "again fails again and again" in found.causes[0].sentence)
"""
    ) == ["crash_loop True"]


def test_http_endpoint_finds_the_cause() -> None:
    assert telemetry_program.shown(
        """
import json, os, signal, sys, urllib.request
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host

class Trainer(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

running = telemetry.start(serve=True, admin_addr="127.0.0.1:0", include_dashboard=False)
trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
pid = trainers.slice(gpus=1).pid.call_one().get()
os.kill(pid, signal.SIGSTOP)
pending = trainers.pid.call()
request = urllib.request.Request(f"{running.url}/v1/diagnose", headers={"Authorization": f"Bearer {running.token}"})
with urllib.request.urlopen(request, timeout=60) as answer:
    found = json.load(answer)
print("=", len(found["causes"]), f"(pid {pid}) is stopped by a signal" in found["causes"][0]["sentence"])
print("=", found["text"].startswith(f"1  {found['causes'][0]['sentence']}"), found["omitted"]["causes"])
os.kill(pid, signal.SIGKILL)
"""
    ) == ["1 True", "True 0"]
