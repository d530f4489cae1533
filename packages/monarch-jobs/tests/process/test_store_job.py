"""`StoreJob.from_store`: ranks of a torchrun world as hosts, by a store that is a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from eventually import eventually

from monarch.job import JobError, SubmitError, job_loads
from monarch.job.spmd import StoreJob
from tools.bare_interpreter import run_bare

# A store of files, and a program of torchrun that uses it; rank 0 calls an actor on each host.
PROGRAM = """
import os, sys, time
from pathlib import Path
from monarch.actor import Actor, endpoint
from monarch.job.spmd import StoreJob

class Store:
    def set(self, key, value):
        name = key.replace("/", ".")
        Path("store", "draft." + name + os.environ["RANK"]).write_text(value)
        os.rename(Path("store", "draft." + name + os.environ["RANK"]), Path("store", name))
    def get(self, key):
        while not Path("store", key.replace("/", ".")).exists():  # polls: as a store waits
            time.sleep(0.01)  # sleeps: between two looks
        return Path("store", key.replace("/", ".")).read_bytes()
    def delete_key(self, key):
        Path("store", key.replace("/", ".")).unlink()

class Host(Actor):
    @endpoint
    def parent(self):
        return os.getpid()

job = StoreJob.from_store(Store(), transport=sys.argv[1])
if job is None:
    sys.stdin.read()
else:
    assert os.environ["RANK"] == "0"
    mesh = job.state(cached_path=None).monarch_worker
    print(len(set(mesh.spawn_procs().spawn("host", Host).parent.call().get(20).values())), len(mesh), flush=True)
    job.kill()
    print(sorted(os.listdir("store")), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_ranks_of_a_world_are_hosts(folder: Path, transport: str) -> None:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "store").mkdir()
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(4):
            places = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
            argv = [sys.executable, "program.py", transport]
            pipe = subprocess.PIPE
            ranks.append(subprocess.Popen(argv, env={**os.environ, **places}, stdin=pipe, stdout=pipe, text=True))
        assert ranks[0].stdout is not None
        assert ranks[0].stdout.readline() == "2 2\n"
        # The secret is gone. The agents run as long as the ranks that have started them.
        assert ranks[0].stdout.readline() == "['monarch.monarch_worker.agent.0', 'monarch.monarch_worker.agent.1']\n"
        agents = _agents(ranks)
        assert len(agents) == 2
    finally:
        for rank in ranks:
            rank.communicate("", timeout=10)
    eventually("the end of the agents", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in agents))


def _agents(ranks: list[subprocess.Popen[str]]) -> list[str]:
    found: list[str] = []
    for rank in ranks:
        for task in os.listdir(f"/proc/{rank.pid}/task"):
            for child in Path(f"/proc/{rank.pid}/task/{task}/children").read_text().split():
                if b"--publish" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
    return found


class Memory:
    """A store in this process."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.found[key] = value

    def get(self, key: str) -> bytes:
        return self.found[key].encode()


ALONE = {"rank": 0, "local_rank": 0, "world_size": 1, "local_world_size": 1}


def test_packages_found_by_sys_path_suffice() -> None:
    code = f"""
from test_store_job import Memory
from monarch.job.spmd import StoreJob
print(StoreJob.from_store(Memory(), **{ALONE}).state(cached_path=None).monarch_worker.initialized.get(20))
"""
    assert run_bare(code) == "True\n"


def test_agent_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    store = Memory()
    with pytest.raises(SubmitError, match="the agent ended with exit code 1"):
        StoreJob.from_store(store, **ALONE)
    # Rank 0 of another host gets this value.
    published = json.loads(store.found["monarch/monarch_worker/agent/0"])
    assert published["address"] is None and "the agent ended with exit code 1" in published["error"]


def test_saved_job_has_no_secret() -> None:
    job = StoreJob.from_store(Memory(), **ALONE)
    assert job is not None
    saved = job.dumps()
    assert job.secret_ is not None and job.secret_.hex().encode() not in saved
    with pytest.raises(JobError, match="call from_store again"):
        job_loads(saved).state(cached_path=None)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"transport": "udp"}, "transport='udp': expected ipc or tcp"),
        ({"rank": 4}, "rank 4 of 1"),
        ({"local_world_size": 0}, "local rank 0 of 0"),
        ({"monarch_port": 70000}, "monarch_port=70000"),
        ({"world_size": 3, "local_world_size": 2}, "world_size 3 is not divisible by local_world_size 2"),
    ],
)
def test_bad_arguments(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object], text: str) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=text):
        StoreJob.from_store(Memory(), **{**ALONE, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_program_outside_of_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv(variable)
    with pytest.raises(RuntimeError, match=f"{variable} is not set, and {variable.lower()} is not given"):
        StoreJob.from_store(Memory())
    monkeypatch.setenv(variable, "one")
    with pytest.raises(ValueError, match=f"{variable}='one' is no number"):
        StoreJob.from_store(Memory())
