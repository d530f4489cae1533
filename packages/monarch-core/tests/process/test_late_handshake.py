"""A handshake that reaches an agent long after its dialler has given it up and uses another connection."""

from __future__ import annotations

import contextlib
import json
import subprocess

from connection_proxy import ConnectionProxy
from eventually import eventually
from fresh_script import Script
from worker_processes import Workers

SCRIPT = """
import json, os, sys
from monarch.actor import Actor, attach_to_workers, endpoint

class Counter(Actor):
    def __init__(self):
        self.n = 0
    @endpoint
    def add(self, data):
        self.n += 1
        return self.n

def say(word):
    print(word, flush=True)

workers, trust = json.loads(os.environ["TEST_HOSTS"])
hosts = attach_to_workers(workers=workers, **trust)
hosts.initialized.get()
counter = hosts.spawn_procs().spawn("counter", Counter)
assert counter.add.call_one(b"").get() == 1
say("ready")
sys.stdin.readline()
# Over the connections that replace those that were reset. More than is kept until it is acknowledged.
for n in range(2, 702):
    assert counter.add.call_one(bytes(4096)).get() == n
say("moved")
sys.stdin.readline()
for n in range(702, 752):
    assert counter.add.call_one(b"").get() == n
hosts.shutdown().get()
say("done")
"""


def test_late_handshake_harms_no_job(monkeypatch):
    monkeypatch.setenv("MONARCH_HOST_LOSS_TIMEOUT", "30s")
    with Workers(1, "insecure") as workers, ConnectionProxy(workers.addresses[0]) as proxy:
        monkeypatch.setenv("TEST_HOSTS", json.dumps([[proxy.address], workers.trust()]))
        with contextlib.closing(Script(SCRIPT, prelude="", warnings=("-W", "ignore"), stdin=subprocess.PIPE)) as script:
            script.until("ready")
            proxy.hold_new()
            proxy.reset()
            eventually("two connections are held", proxy.held, lambda held: held >= 2)
            proxy.hold_new(False)
            proxy.abandon()
            assert script.ask("go") == "moved"
            assert proxy.held() >= 2
            proxy.release()
            eventually("no connection is held", proxy.held, lambda held: held == 0)
            assert script.ask("go") == "done"
            assert script.end().code == 0
