"""Processes that belong to no job, and use meshes of a job whose hosts are other agents than its client."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from eventually import eventually
from worker_processes import Workers

from monarch.actor import HostMesh, ProcMesh, SupervisionError, this_host
from tools.external_process import Adder, External, outcome


@pytest.fixture(params=["unix", "tls"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with Workers(2, request.param) as workers:
        yield workers


@pytest.fixture
def hosts(workers: Workers) -> Iterator[HostMesh]:
    mesh = workers.attach()
    yield mesh
    mesh.stop().get()


@pytest.fixture
def procs(hosts: HostMesh) -> ProcMesh:
    return hosts.spawn_procs(per_host={"gpus": 2})


def gone(pids: list[int]) -> None:
    eventually("the processes have ended", lambda: not any(map(running, pids)))


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_external_process_calls_actors_on_hosts(procs: ProcMesh) -> None:
    adder = procs.spawn("adder", Adder)
    assert sum(adder.add.call(1).get().values()) == 4
    code = """
say(values(given.add.call(1)), values(given.slice(hosts=1).add.call(1)), given.slice(hosts=0, gpus=1).add.call_one(1).get(timeout=25))
for size in (1 << 16, 1 << 24):
    say([value == bytes(size) for value in values(given.echo.call(bytes(size)))])
"""
    assert outcome(code, adder) == ["[2, 2, 2, 2] [3, 3] 3", "[True, True, True, True]", "[True, True, True, True]"]
    # Its end ends nothing here.
    assert list(adder.add.call(0).get().values()) == [2, 3, 3, 3]


def test_external_processes_call_at_once(procs: ProcMesh) -> None:
    adder = procs.spawn("adder", Adder)
    code = "input()\nfor _ in range(100): values(given.add.call(1))\nsay('done')\n"
    with External(code, adder) as one, External(code, adder) as other:
        one.go_on()
        other.go_on()
        for _ in range(100):
            adder.add.call(1).get()
        for process in (one, other):
            assert process.end() == (0, ["done"], "")
    assert list(adder.add.call(0).get().values()) == [300] * 4


def test_third_client_gets_the_handle(procs: ProcMesh) -> None:
    adder = procs.spawn("adder", Adder)
    code = "from tools.external_process import outcome\nsay(*outcome('say(values(given.add.call(1)))', given))\n"
    assert outcome(code, adder) == ["[1, 1, 1, 1]"]


def test_external_process_receives_by_its_ports(procs: ProcMesh) -> None:
    code = """
port, receiver = Channel.open()
values(given.send.call(port, 1))
say([receiver.recv().get(timeout=25) for _ in range(4)])
given.slice(hosts=0, gpus=0).forward.call_one(given.slice(hosts=1, gpus=1), port, 2).get(timeout=25)
say(receiver.recv().get(timeout=25))
"""
    assert outcome(code, procs.spawn("adder", Adder)) == ["[1, 1, 1, 1]", "2"]


SPAWN = """
hosts, adder, *more = given
procs = hosts.spawn_procs(per_host={"gpus": 2})
own = procs.spawn("own", Adder)
say(values(own.pid.call()))
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_meshes_of_an_external_process_end_with_it(hosts: HostMesh, procs: ProcMesh, end: str) -> None:
    adder = procs.spawn("adder", Adder)
    code = SPAWN + "say(values(own.spawn_here.call()))\ninput()\n" + end
    with External(code, (hosts, adder)) as process:
        pids = eval(process.line()) + [pid for pids in eval(process.line()) for pid in pids]
        assert len(set(pids)) == 8 and all(map(running, pids))
        process.go_on()
        assert process.end() == (-signal.SIGKILL if end else 0, [], "")
    gone(pids)
    assert sum(adder.add.call(1).get().values()) == 4


def test_spawned_procs_take_part_in_the_job(hosts: HostMesh, procs: ProcMesh) -> None:
    code = (
        SPAWN
        + """
say(values(own.add_to.call(adder.slice(hosts=1, gpus=1), 1)))
say(values(adder.add_to.call(own.slice(hosts=0, gpus=0), 1)))
say(values(adder.add_to.call(procs.host_mesh.slice(hosts=1).spawn_procs().spawn("third", Adder), 1)))
say(values(hosts.slice(hosts=0).spawn_procs().spawn("fourth", Adder).add.call(1)))
own.stop().get(timeout=25)
procs.stop().get(timeout=25)
say(failure(lambda: own.add.call(1).get(timeout=25)).partition(": ")[0])
"""
    )
    lines = outcome(code, (hosts, procs.spawn("adder", Adder)))[1:]
    assert [sorted(eval(line)) for line in lines[:3]] == [[1, 2, 3, 4]] * 3
    assert lines[3:] == ["[1]", "SupervisionError"]


def test_own_host_of_an_external_process(hosts: HostMesh, procs: ProcMesh) -> None:
    code = (
        SPAWN
        + """
mine = this_host().spawn_procs(per_host={"gpus": 2}).spawn("mine", Adder)
say(values(mine.add.call(1)), values(own.add.call(1)), sorted(values(mine.add_to.call(adder.slice(hosts=0, gpus=0), 1))))
say(this_host() == hosts, this_host() == more[0])
"""
    )
    assert outcome(code, (hosts, procs.spawn("adder", Adder), this_host()))[1:] == ["[1, 1] [1, 1, 1, 1] [1, 2]", "False False"]


def test_unsupported_calls_of_references_are_refused(hosts: HostMesh, procs: ProcMesh) -> None:
    code = """
hosts, procs, adder = given
for call in (hosts.stop, hosts.shutdown, procs.stop, adder.stop, lambda: hosts.sync_workspace(None).send(None)):
    say(failure(call))
"""
    assert outcome(code, (hosts, procs, procs.spawn("adder", Adder))) == [
        "RuntimeError: cannot shut down `HostMesh` that is a reference instead of owned",
        "RuntimeError: cannot shut down `HostMesh` that is a reference instead of owned",
        "ValueError: ProcMesh is not owned; must be stopped by an owner",
        "NotImplementedError: Cannot call stop on an ActorMeshRef, requires an owned ActorMesh",
        "RuntimeError: sync_workspace needs an owned HostMesh, not a slice or an unpickled one",
    ]


def test_procs_of_an_external_process_stay_its_own(procs: ProcMesh) -> None:
    # Between hosts, the job's client forwards frames for the external process, but not for the procs of the external process.
    code = """
mine = this_host().spawn_procs().spawn("mine", Adder)
values(given.add.call(1))
say(failure(lambda: values(given.add_to.call(mine, 1))))
"""
    (line,) = outcome(code, procs.spawn("adder", Adder))
    assert "client of its job lost" in line or line == "[1, 2, 3, 4]", line


def test_host_lost_under_an_external_process(workers: Workers, hosts: HostMesh) -> None:
    procs = hosts.spawn_procs()
    adder = procs.spawn("adder", Adder)
    code = """
waiting = given.slice(hosts=1).wait.call_one()
given.slice(hosts=0).add.call_one(1).get(timeout=25)
say("waiting")
for future in (waiting, given.slice(hosts=1).add.call_one(1)):
    try:
        future.get(timeout=25)
    except SupervisionError as e:
        say(e.failure.reason.kind)
say(given.slice(hosts=0).add.call_one(1).get(timeout=25))
"""
    with External(code, adder) as process:
        assert process.line() == "waiting"
        workers.processes[1].kill()
        assert process.end() == (0, ["host_lost", "host_lost", "2"], "")
    with pytest.raises(SupervisionError):
        adder.slice(hosts=1).add.call_one(1).get()


CLIENT = """
import pickle, sys
from tools.external_process import Adder
from monarch.actor import attach_to_workers, this_host
hosts = attach_to_workers(workers=sys.argv[2:])
adder = hosts.spawn_procs().spawn("adder", Adder)
local = this_host().spawn_procs().spawn("local", Adder)
assert sum(adder.add.call(1).get().values()) == 2
with open(sys.argv[1], "wb") as f:
    pickle.dump((hosts, adder, this_host(), local), f)
print("pickled", flush=True)
input()
"""

USE = """
hosts, adder, host, local = given
def spawned(hosts):
    mesh = hosts.spawn_procs().spawn("own", Adder)
    return mesh, values(mesh.pid.call())
meshes = [spawned(hosts), spawned(host)]
waiting = [mesh.slice(**({"hosts": 1} if mesh is adder else {})).wait.call_one() for mesh in (adder, local)]
waiting += [mesh.wait.call() for mesh, _ in meshes]
say([pid for _, pids in meshes for pid in pids])
for future in waiting:
    try:
        future.get(timeout=25)
    except SupervisionError as e:
        say(e.failure.reason.kind)
hosts, adder, host, local = pickle.load(open(sys.argv[1], "rb"))
say(failure(lambda: adder.add.call(1).get(timeout=25)).partition(": ")[0])
say(failure(lambda: hosts.spawn_procs().initialized.get(timeout=25)).partition(": ")[0])
say(failure(lambda: host.spawn_procs().initialized.get(timeout=25)).partition(": ")[0])
"""


class Client:
    """A client of two workers in a process of its own, and its pickled handles."""

    def __init__(self, workers: Workers, file: str) -> None:
        path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
        # Hosts keep its work for the lease after it was killed.
        env = {**os.environ, "PYTHONPATH": path, "MONARCH_MESH_ORPHAN_TIMEOUT": "3s"}
        command = [sys.executable, "-W", "ignore", "-c", CLIENT, file, *workers.addresses]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "pickled\n", self.process.communicate()
        with open(file, "rb") as f:
            self.pickled = f.read()


def test_client_leaves_under_an_external_process(tmp_path: Any) -> None:
    for leaves in (True, False):
        with Workers(2) as workers:
            client = Client(workers, str(tmp_path / "handles"))
            with External(USE, client.pickled) as process:
                pids = eval(process.line())
                assert len(pids) == 3 and all(map(running, pids))
                if leaves:
                    assert client.process.communicate("\n")[1] == ""
                else:
                    client.process.kill()
                    client.process.communicate()
                code, lines, err = process.end()
            assert (code, err) == (0, ""), err
            # A client that exits stops its job.
            assert set(lines[:4]) <= {"client_lost", "stopped"} if leaves else lines[:4] == ["client_lost"] * 4, lines
            assert lines[4:] == ["SupervisionError", "SpawnError", "SpawnError"]
            gone(pids)


def test_handles_of_a_client_that_came_after(tmp_path: Any) -> None:
    with Workers(2) as workers:
        for _ in range(2):
            client = Client(workers, str(tmp_path / "handles"))
            assert outcome("say(values(given[1].add.call(1)))", client.pickled) == ["[2, 2]"]
            assert client.process.communicate("\n")[1] == ""
            (line,) = outcome("say(failure(lambda: given[1].add.call(1).get(timeout=25)))", client.pickled)
            assert line.startswith("SupervisionError"), line


def test_external_process_spawns_on_the_clients_host() -> None:
    code = """
own = given.spawn_procs(per_host={"gpus": 2}).spawn("own", Adder)
say(values(own.add.call(1)), values(own.spawn_here.call()) != [])
say(values(own.pid.call()))
"""
    lines = outcome(code, this_host())
    assert lines[0] == "[1, 1] True"
    gone(eval(lines[1]))


def test_handles_in_an_environment_variable(procs: ProcMesh) -> None:
    code = "given = pickle.loads(bytes.fromhex(os.environ['HANDLE']))\nsay(values(given.spawn('own', Adder).add.call(1)))\n"
    with External(code, None, {"HANDLE": pickle.dumps(procs).hex()}) as process:
        assert process.end() == (0, ["[1, 1, 1, 1]"], "")
