"""Meshes on the hosts of a job, in processes that are no part of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import Actor, HostMesh, endpoint
from monarch.job import LocalJob, ProcessJob

USE = """
import os, pickle, sys
from test_jobs_in_other_clients import Adder
hosts, adder = pickle.load(open("handles", "rb"))
print(sum(adder.add.call(1).get(timeout=25).values()), end=" ")
procs = hosts.spawn_procs(per_host={"gpus": 2})
print(sum(procs.spawn("own", Adder).add.call(1).get(timeout=25).values()), end=" ")
if len(sys.argv) > 1:
    from monarch.job import exec_command
    print(exec_command(hosts, ["sh", "-c", "exit 3"]).get(timeout=25), end=" ")
"""

# Rank 0 has the hosts; rank 1 gets handles by a file and has no hosts.
RANK = """
import os, pathlib, pickle, sys, time
from monarch.job.spmd import StoreJob
from test_jobs_in_other_clients import Adder, USE

class Store:
    def set(self, key, value):
        name = key.replace("/", ".")
        pathlib.Path("draft." + name + os.environ["RANK"]).write_text(value)
        os.rename("draft." + name + os.environ["RANK"], name)
    def get(self, key):
        while not os.path.exists(key.replace("/", ".")):  # polls: as a store waits
            time.sleep(0.01)  # sleeps: between two looks
        return pathlib.Path(key.replace("/", ".")).read_bytes()
    def delete_key(self, key):
        os.unlink(key.replace("/", "."))

job = StoreJob.from_store(Store(), transport=sys.argv.pop())
if job is not None:
    hosts = job.state(cached_path=None).monarch_worker
    adder = hosts.spawn_procs().spawn("adder", Adder)
    with open("handles.draft", "wb") as f:
        pickle.dump((hosts, adder), f)
    os.rename("handles.draft", "handles")
    sys.stdin.read()
    print(sum(adder.add.call(0).get().values()))
    job.kill()
else:
    Store().get("handles")
    exec(USE)
    sys.stdout.flush()
    sys.stdin.read()
"""


class Adder(Actor):
    def __init__(self) -> None:
        self.total = 0

    @endpoint
    def add(self, n: int) -> int:
        self.total += n
        return self.total


@pytest.fixture(params=["local", "process"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    job = LocalJob(["h"]) if request.param == "local" else ProcessJob({"h": 2})
    yield job.state(cached_path=None).h
    job.kill()


def start(code: str, *args: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    env = {**os.environ, **variables, "PYTHONPATH": path}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code, *args], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, cwd=folder)


def test_meshes_of_a_job_work_in_other_clients(hosts: HostMesh, tmp_path: Path) -> None:
    adder = hosts.spawn_procs().spawn("adder", Adder)
    (tmp_path / "handles").write_bytes(pickle.dumps((hosts, adder)))
    count = len(hosts)
    for number in (1, 2):
        other = start(USE, "exec", folder=tmp_path)
        out, err = other.communicate(timeout=29)
        assert (other.returncode, out.split(), err) == (0, [str(number * count), str(2 * count), "3"], ""), (out, err)
    assert sum(adder.add.call(0).get().values()) == 2 * count


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_ranks_without_hosts_use_those_of_rank_zero(tmp_path: Path, transport: str) -> None:
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(3):
            places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
            ranks.append(start(RANK, transport, folder=tmp_path, **places))
        found: list[list[int]] = []
        for rank in ranks[:0:-1]:
            assert rank.stdout is not None and rank.stdin is not None
            out, err = rank.communicate("", timeout=29)
            assert (rank.returncode, err) == (0, ""), err
            found.append([int(word) for word in out.split()])
        assert sorted(found) == [[1, 2], [2, 2]]
        assert ranks[0].communicate("", timeout=29) == ("2\n", "")
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
