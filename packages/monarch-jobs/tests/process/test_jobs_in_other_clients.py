"""Meshes on the hosts of a job, in processes that are no part of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from monarch.actor import HostMesh
from monarch.job import LocalJob, ProcessJob
from tools.external_process import External, outcome, use_hosts

# Rank 0 has the hosts; rank 1 gets handles by a file and has no hosts.
RANK = """
import pathlib, time
from monarch.job.spmd import StoreJob
from tools.external_process import USE

folder, transport = given
os.chdir(folder)

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

job = StoreJob.from_store(Store(), transport=transport)
if job is not None:
    hosts = job.state(cached_path=None).monarch_worker
    adder = hosts.spawn_procs().spawn("adder", Adder)
    with open("handles.draft", "wb") as f:
        pickle.dump((hosts, adder), f)
    os.rename("handles.draft", "handles")
    input()
    say(sum(values(adder.add.call(0))))
    job.kill()
else:
    given = pickle.loads(Store().get("handles"))
    exec(USE)
"""


@pytest.fixture(params=["local", "process"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    job = LocalJob(["h"]) if request.param == "local" else ProcessJob({"h": 2})
    yield job.state(cached_path=None).h
    job.kill()


def test_meshes_of_a_job_work_in_other_clients(hosts: HostMesh) -> None:
    use_hosts(hosts)
    code = "from monarch.job import exec_command\nsay(exec_command(given, ['sh', '-c', 'exit 3']).get(timeout=25))"
    assert outcome(code, hosts) == ["3"]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_ranks_without_hosts_use_those_of_rank_zero(tmp_path: Path, transport: str) -> None:
    with ExitStack() as ranks:

        def start(rank: int) -> External:
            places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
            return ranks.enter_context(External(RANK, (str(tmp_path), transport), places))

        first, *others = [start(rank) for rank in range(3)]
        found = [other.end() for other in others]
        assert sorted(lines for _, lines, _ in found) == [["1 2"], ["2 2"]], found
        first.go_on()
        assert first.end() == (0, ["2"], "")
