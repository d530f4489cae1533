"""A handle pickled outside a message works in another client process of the same user on the same host."""

from __future__ import annotations

import multiprocessing
import os
import pickle

import pytest

import monarch.actor
from monarch.actor import Channel, Port, SupervisionError, this_host
from tools.external_process import Adder, outcome


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


def test_pickled_by_an_actor() -> None:
    procs = this_host().spawn_procs()
    adder = procs.spawn("adder", Adder)
    data = adder.pickled.call_one(adder).get()
    assert outcome("say(values(given.add.call(5)))", data) == ["[5]"]
    procs.stop().get()


def test_proc_killed_by_an_external_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    procs = this_host().spawn_procs()
    adder = procs.spawn("adder", Adder)
    pid = adder.pid.call_one().get()
    code = """
os.kill(given.pid.call_one().get(timeout=20), signal.SIGKILL)
try:
    given.add.call_one(1).get(timeout=20)
except SupervisionError as e:
    say(e.failure.reason.signal)
"""
    assert outcome(code, adder) == ["9"]
    with pytest.raises(SupervisionError, match=f"pid {pid}"):
        adder.add.call_one(1).get(timeout=20)


def test_handle_of_an_ended_client_fails() -> None:
    (data,) = outcome("say(pickle.dumps(this_host().spawn_procs().spawn('adder', Adder)).hex())", None)
    handle = pickle.loads(bytes.fromhex(data))
    with pytest.raises(SupervisionError, match="client of its job lost: no client of this user answers for it on this machine") as lost:
        handle.add.call_one(1).get(timeout=20)
    # A handle from another machine gets the same text: the hint names where a handle works, and what does elsewhere.
    assert "hint: a handle works outside its job while the client of the job runs" in str(lost.value)
    assert "from another machine, call an actor of the job through a program on the client's machine" in str(lost.value)
