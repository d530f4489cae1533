"""Actors of a job, and the programs that external processes run with handles of them, for tests."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from typing import Any

from monarch.actor import Actor, HostMesh, Port, endpoint, this_host


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

    @endpoint
    def echo(self, data: bytes) -> bytes:
        return data

    @endpoint
    def send(self, port: Port[int], n: int) -> None:
        port.send(n)

    @endpoint
    def forward(self, other: Adder, port: Port[int], n: int) -> None:
        other.send.call_one(port, n).get(timeout=20)

    @endpoint
    def add_to(self, other: Any, n: int) -> int:
        return other.add.call_one(n).get(timeout=20)

    @endpoint
    def spawn_here(self) -> list[int]:
        return list(this_host().spawn_procs().spawn("inner", Adder).pid.call().get(timeout=20).values())

    @endpoint
    def wait(self) -> None:
        import signal

        signal.pause()


PRELUDE = """
import os, pickle, signal, sys
from tools.external_process import Adder
from monarch.actor import Channel, SpawnError, SupervisionError, this_host

def values(future):
    return [value for _, value in future.get(timeout=25).items()]

def say(*words):
    print(*words, flush=True)

def failure(call):
    try:
        return call()
    except Exception as e:
        return f"{type(e).__name__}: {e}".splitlines()[0]

given = pickle.load(open(sys.argv[1], "rb"))
"""


class External:
    """A process of no job that runs `code` with the unpickled `given`; ended when the block is left."""

    def __init__(self, code: str, given: object, variables: dict[str, str] | None = None) -> None:
        # The pickle is loaded as late as possible, so that a handle may be used after its client has gone.
        with tempfile.NamedTemporaryFile(delete=False) as f:
            f.write(given if isinstance(given, bytes) else pickle.dumps(given))
        self.file = f.name
        env = {**os.environ, **(variables or {}), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PRELUDE + code, self.file]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        """Answers the `input()` of the process."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, list[str], str]:
        out, err = self.process.communicate(timeout=28)
        return self.process.returncode, out.splitlines(), err

    def __enter__(self) -> External:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.unlink(self.file)


def outcome(code: str, given: object) -> list[str]:
    """The output lines of a program that ends without an error."""
    with External(code, given) as process:
        found, out, err = process.end()
    assert (found, err) == (0, ""), (found, out, err)
    return out


def call_elsewhere(handle: object) -> list[str]:
    """The command, for another machine with this checkout, that prints why a call of the handle fails there."""
    code = f"""
import pickle, sys
sys.path[:] = {sys.path!r}
from monarch.actor import SupervisionError
try:
    pickle.loads(bytes.fromhex({pickle.dumps(handle).hex()!r})).add.call_one(1).get(timeout=25)
except SupervisionError as e:
    print(e)
"""
    return [sys.executable, "-c", code]


USE = """
hosts, adder = given
own = hosts.spawn_procs(per_host={"gpus": 2}).spawn("own", Adder)
say(sum(values(adder.add.call(1))), sum(values(own.add.call(1))))
"""


def use_hosts(hosts: HostMesh) -> None:
    """Two external processes, one after another, call an actor on each host and spawn procs there."""
    procs = hosts.spawn_procs()
    adder = procs.spawn("adder", Adder)
    count = len(hosts)
    for number in (1, 2):
        assert outcome(USE, (hosts, adder)) == [f"{number * count} {2 * count}"]
    assert sum(adder.add.call(0).get().values()) == 2 * count
    procs.stop().get()
