"""`monarch doctor --crash`: the last events of killed processes, or the reason why there are none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from eventually import eventually
from fresh import HERE, lines, run

RECORDER = {"MONARCH_FLIGHT_RECORDER": "1", "MONARCH_FLIGHT_RECORDER_EVENTS": "256"}

ACTORS = """
import os, signal, subprocess, sys
from monarch.actor import Actor, endpoint, this_host
from monarch import actor as monarch_actor
from monarch.extension import events

class Worker(Actor):
    @endpoint
    def die(self):
        events.emit("about to die", why="a test")
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def pid(self):
        return os.getpid()

def crash(*arguments):
    command = [sys.executable, "-c", "from monarch._core.cli import main; main()", "doctor", "--crash", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)

monarch_actor.unhandled_fault_hook = lambda failure: None
"""


def test_last_events_of_a_killed_proc_are_printed():
    done = run(
        ACTORS
        + """
doomed = this_host().spawn_procs(name="doomed").spawn("worker", Worker)
stopped = this_host().spawn_procs(name="stopped")
stopped.spawn("worker", Worker).pid.call_one().get()
stopped.stop().get()
pid = doomed.pid.call_one().get()
try:
    doomed.die.call_one().get()
except Exception:
    pass
done = crash(os.getpid())
assert (done.returncode, done.stderr) == (0, ""), done
job, killed, *last = done.stdout.splitlines()
assert job.startswith(f"job {os.getpid()} on "), job
assert f"doomed> (pid {pid}) was killed by signal 9 (SIGKILL); its last " in killed, killed
# The stopped one is not among them.
assert "stopped" not in killed and not any("(pid" in line for line in last)
when, _, thread, name, *fields = last[-1].split()
assert name == "user.event" and " ".join(fields) == 'name=about to die fields={"why": "a test"}', last[-1]
assert thread == str(pid) or int(thread) > 0
import datetime
assert datetime.datetime.fromisoformat(when).tzinfo is not None
import json
(row,) = json.loads(crash("--json", os.getpid()).stdout)
assert (row["pid"], row["agent_pid"], row["events"][-1]["fields"]["name"]) == (pid, os.getpid(), "about to die")
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_report_of_a_job_without_crashes_states_it():
    script = (
        ACTORS
        + """
worker = this_host().spawn_procs(name="worker").spawn("worker", Worker)
worker.pid.call_one().get()
done = crash(os.getpid())
print(done.returncode, done.stdout.splitlines()[1])
"""
    )
    assert lines(run(script).stdout) == [
        "1   its processes record nothing: set `flight_recorder` (MONARCH_FLIGHT_RECORDER=1) before it starts"
    ]
    assert lines(run(script, env=RECORDER).stdout) == [
        "1   no process that recorded has failed: 2 run, 0 of those that were stopped are kept (16 at most)"
    ]


def test_report_names_lost_recorders_of_a_killed_agent():
    done = run(
        ACTORS
        + """
from eventually import eventually
from worker_processes import Workers
with Workers(1) as workers:
    with workers.attach() as hosts:
        worker = hosts.spawn_procs(name="remote").spawn("worker", Worker)
        worker.pid.call_one().get()
        (agent,) = [process.pid for process in workers.processes]
        workers.processes[0].kill()
        workers.processes[0].wait()
        try:
            worker.pid.call_one().get()
        except Exception:
            pass
        found = eventually("the loss is reported", lambda: crash(os.getpid()), lambda done: "is lost" in done.stdout)
        print(found.stdout.splitlines()[-1].partition(" is lost, ")[2].partition(":")[0])
        print(crash(agent).stdout.strip().replace(str(agent), "AGENT"))
        sys.stdout.flush()
        os._exit(0)
""",
        env=RECORDER,
    )
    assert lines(done.stdout) == [
        "and the recorders of its processes with it",
        "process AGENT has ended, and the recorders that it kept with it: those of its job's processes on this machine, and its own",
    ]


def test_killed_client_leaves_no_recorders(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        ACTORS
        + """
worker = this_host().spawn_procs().spawn("worker", Worker)
print(worker.pid.call_one().get(), flush=True)
signal.pause()
"""
    )
    env = {**os.environ, **RECORDER, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", "from monarch._core.cli import main; main()", "doctor", "--crash"]
    with subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        proc = int(client.stdout.readline())
        client.send_signal(signal.SIGKILL)
        client.wait()
    eventually("its proc has ended", lambda: not os.path.exists(f"/proc/{proc}"))
    done = subprocess.run([*command, str(client.pid)], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == (
        f"process {client.pid} has ended, and the recorders that it kept with it: "
        "those of its job's processes on this machine, and its own\n"
    )
    done = subprocess.run([*command, "--json", "1"], check=False, capture_output=True, text=True)
    assert (done.returncode, json.loads(done.stdout)) == (1, [])


def test_pid_without_crash_is_refused():
    command = [sys.executable, "-c", "from monarch._core.cli import main; main()", "doctor", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2 and "PID names a job, which --crash takes" in done.stderr
