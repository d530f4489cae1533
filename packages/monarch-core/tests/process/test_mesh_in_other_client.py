"""A handle pickled outside a message works in another client process of the same user on the same host."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys

import pytest

import monarch.actor
from monarch.actor import Actor, Channel, Port, SupervisionError, endpoint, this_host


class Adder(Actor):
    def __init__(self) -> None:
        self.total = 0

    @endpoint
    def add(self, n: int) -> int:
        self.total += n
        return self.total

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def pickled(self, other: object) -> bytes:
        return pickle.dumps(other)


def call(handle: Adder, n: int, results: multiprocessing.Queue[object]) -> None:
    results.put((os.getpid(), [v for _, v in handle.add.call(n).get(timeout=20).items()]))


def say(port: Port[str]) -> None:
    port.send(f"hello from {os.getpid()}")


def test_multiprocessing_spawn() -> None:
    procs = this_host().spawn_procs(per_host={"procs": 2})
    adder = procs.spawn("adder", Adder)
    assert [v for _, v in adder.add.call(1).get().items()] == [1, 1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=call, args=(adder, 10, results))
    other.start()
    pid, values = results.get(timeout=25)
    other.join()
    assert (pid, other.exitcode) == (other.pid, 0)
    assert values == [11, 11]
    # The end of the external process ends nothing here.
    assert [v for _, v in adder.add.call(1).get().items()] == [12, 12]
    procs.stop().get()


def test_port_in_another_client() -> None:
    port, receiver = Channel[str].open()
    other = multiprocessing.get_context("spawn").Process(target=say, args=(port,))
    other.start()
    assert receiver.recv().get(timeout=25) == f"hello from {other.pid}"
    other.join()
    assert other.exitcode == 0


_CALL = "import sys, pickle; handle = pickle.loads(sys.stdin.buffer.read()); print(handle.add.call_one(5).get(timeout=20))"


def run(code: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    return subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=25, env=env, check=False)


def test_pickled_by_an_actor() -> None:
    procs = this_host().spawn_procs()
    adder = procs.spawn("adder", Adder)
    data = adder.pickled.call_one(adder).get()
    found = run(_CALL, data)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"5\n", b"")
    procs.stop().get()


def test_proc_killed_under_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    procs = this_host().spawn_procs()
    adder = procs.spawn("adder", Adder)
    pid = adder.pid.call_one().get()
    code = (
        "import os, sys, pickle, signal\n"
        "from monarch.actor import SupervisionError\n"
        "handle = pickle.loads(sys.stdin.buffer.read())\n"
        "os.kill(handle.pid.call_one().get(timeout=20), signal.SIGKILL)\n"
        "try:\n"
        "    handle.add.call_one(1).get(timeout=20)\n"
        "except SupervisionError as e:\n"
        "    print(e.failure.reason.signal)\n"
    )
    found = run(code, pickle.dumps(adder))
    assert (found.returncode, found.stdout, found.stderr) == (0, b"9\n", b"")
    with pytest.raises(SupervisionError, match=f"pid {pid}"):
        adder.add.call_one(1).get(timeout=20)


_SERVE = """
import pickle, sys
from monarch.actor import Actor, endpoint, this_host
from test_mesh_in_other_client import Adder
handle = this_host().spawn_procs().spawn("adder", Adder)
handle.add.call_one(1).get()
sys.stdout.buffer.write(pickle.dumps(handle))
"""


def test_client_that_is_gone() -> None:
    data = run(_SERVE, b"").stdout
    handle = pickle.loads(data)
    with pytest.raises(SupervisionError, match="client of its job lost: no client of this user answers for it on this machine"):
        handle.add.call_one(1).get(timeout=20)
