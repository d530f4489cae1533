"""Metrics of controllers and workers, as events of their processes."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(180)

PROGRAM = """
import json
import torch
from monarch.actor import this_host
from monarch.extension import events
from monarch.tensor import inspect, remote

@remote
def measured():
    from monarch.extension import events
    return of_meter(events)

def of_meter(events):
    found = []
    for recording in events.recordings():
        for event in recording.reader().read():
            if event.name == "metric.update" and event.fields["meter"] == "monarch.tensor":
                found.append({**event.fields, "attributes": json.loads(event.fields["attributes"] or "{}")})
    return found

procs = this_host().spawn_procs({"gpus": 2})
with procs.activate() as mesh:
    t = torch.ones(3)
    for _ in range(200):
        t = t + 1
    assert inspect(t.reduce("gpus")).tolist() == [402.0] * 3
    found = of_meter(events)
    sent = [e["amount"] for e in found if e["name"] == "commands"]
    assert sum(sent) == 202 and sent == [e["amount"] for e in found if e["name"] == "batch_commands"], sent
    assert max(sent) <= 256, sent
    (fetch,) = [e for e in found if e["name"] == "fetch"]
    assert fetch["kind"] == "histogram ms" and fetch["amount"] > 0
    collective, *_ = [e for e in measured.call().get().values()[1] if e["name"] == "collective"]
    assert collective["attributes"] == {"dims": "gpus", "reduction": "sum"} and collective["amount"] > 0
print("all measured")
"""


def test_commands_batches_fetches_and_collectives_are_measured():
    recorder = {"MONARCH_FLIGHT_RECORDER": "1", "MONARCH_FLIGHT_RECORDER_EVENTS": "4096"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **recorder}, capture_output=True, text=True, check=False)
    # Gloo of older torch prints lines of its own.
    assert (done.returncode, done.stdout.strip().splitlines()[-1:]) == (0, ["all measured"]), done.stderr
