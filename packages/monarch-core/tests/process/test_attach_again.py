"""A host that has ended the job of a living client: the client attaches the host anew, from the same process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from fresh_script import Script
from worker_processes import Workers

from tools.frozen import freeze

HERE = str(Path(__file__).parent)

CODE = """
from contextlib import suppress
import monarch.actor
from monarch.actor import SupervisionError, attach_to_workers
from monarch.config import configure
from monarch.extension import service
from service_actors import Asker, declare

monarch.actor.unhandled_fault_hook = lambda failure: None
configure(mesh_orphan_timeout="2s")

def attach():
    return attach_to_workers(workers=os.environ["TEST_HOSTS"].split(), secret=os.environ["TEST_SECRET"])

near = this_host().spawn_procs().spawn("near", Asker)

def use(hosts):
    procs = hosts.spawn_procs()
    far = procs.spawn("far", Asker)
    assert list(far.double.call(1).get().values()) == [2] * 2
    shared = service(hosts, declare("shared", Asker, shared=True))
    every = [near, *(mesh.slice(hosts=host) for mesh in (far, shared) for host in (0, 1))]
    places = [one.places.call_one().get() for one in every]
    # Each process asks each other one.
    for one in every:
        for proc, there in places:
            assert one.ask.call_one(proc, there).get(timeout=20) == b"cba"
    # Casts and large messages.
    assert [len(x) for x in far.double.call(bytes(1 << 20)).get().values()] == [2 << 20] * 2
    assert far.slice(hosts=0).forward.call_one(far.slice(hosts=1), "tit").get()[-1] == "tit"
    return procs, far, list(shared.pid.call().get().values())

_, far, shared = use(attach())
say("up")
lost = list(map(int, sys.stdin.readline().split()))
for host in lost:
    # Calls go on until the client knows of the loss.
    with suppress(SupervisionError):
        while True:
            far.slice(hosts=host).double.call(1).get()
say("lost")
sys.stdin.readline()
hosts = attach()
procs, _, again = use(hosts)
assert again == shared
procs.stop().get()
hosts.stop().get()
say("stopped")
"""


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(2, "tls", env={**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}) as found:
        yield found


@pytest.fixture
def script(workers: Workers) -> Iterator[Script]:
    paths = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    env = {"TEST_HOSTS": " ".join(workers.addresses), "TEST_SECRET": str(workers.secret), "PYTHONPATH": paths}
    made = Script(CODE, env=env, stdin=subprocess.PIPE)
    yield made
    made.close()


def test_silent_client_attaches_its_hosts_again(workers: Workers, script: Script) -> None:
    script.until("up")
    script.send(signal.SIGSTOP)
    # The shared service stays.
    eventually("both hosts end the job", lambda: [len(workers.procs_of(n)) for n in (0, 1)], lambda found: found == [1, 1])
    script.send(signal.SIGCONT)
    assert script.ask(0, 1) == "lost"
    assert script.ask() == "stopped"
    script.end().assert_clean()


def test_host_that_was_lost_is_attached_again(workers: Workers, script: Script) -> None:
    script.until("up")
    freeze(workers.processes[1].pid)
    assert script.ask(1) == "lost"
    # The host may learn of its loss after the request to join.
    workers.processes[1].send_signal(signal.SIGCONT)
    assert script.ask() == "stopped"
    script.end().assert_clean()
