"""A real job that serves its telemetry: its profile has every call of a block, and its capture what the job did."""

from __future__ import annotations

from pathlib import Path

import pytest
import telemetry_program

pytest.importorskip("perfetto")

PROGRAM = """
import os, sys, tempfile
from pathlib import Path

os.environ["MONARCH_HOME"] = os.path.join(tempfile.mkdtemp(dir="."), "home")
sys.path.append(TESTS)
import monarch.actor
import monarch.telemetry as telemetry
from click.testing import CliRunner
from monarch.actor import Actor, endpoint, span, this_host
from monarch.distributed_telemetry.profiler import profile
from monarch.telemetry import _cli_capture
from support.perfetto_reader import Trace

class Worker(Actor):
    @endpoint
    def step(self, n: int) -> int:
        with span("work", n=n):
            return n

worker = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("worker", Worker)
running = telemetry.start(serve=True, admin_addr="127.0.0.1:0")
worker.step.call(0).get()

with profile(running.url) as window:
    for n in range(20):
        worker.step.call(n).get()
worker.step.call(20).get()
trace = Trace(window.export_perfetto_trace("job.pftrace").read_bytes())
print("= notes", window.notes)
named = [(event.kind, event.name) for event in trace.events]
print("= work", named.count(("begin", "work")), named.count(("instant", "send step")))
print("= step", named.count(("begin", "step")), len(trace.arrows()))

done = CliRunner().invoke(_cli_capture.capture, ["-o", "job.capture"], standalone_mode=False)
print("= capture", done.return_value, done.stderr)
done = CliRunner().invoke(_cli_capture.profile, ["--from", "job.capture", "-o", "all.pftrace"], standalone_mode=False)
trace = Trace(Path("all.pftrace").read_bytes())
print("= all", done.return_value, sum((event.kind, event.name) == ("begin", "work") for event in trace.events))
"""


def test_profile_has_every_call_of_its_block() -> None:
    tests = str(Path(__file__).parents[1])
    found = telemetry_program.shown(PROGRAM.replace("TESTS", repr(tests)))
    step, arrows = map(int, found.pop(2).split()[1:])
    # A message ends after its answer is sent: that of the previous call may end in the window.
    assert 40 <= step <= 42
    # A message may arrive before the row of its call is written, and then belongs to the previous call: that of the first is outside.
    assert 38 <= arrows <= step
    assert found == ["notes ()", "work 40 20", "capture 0 ", "all 0 44"]
