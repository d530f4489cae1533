"""A `bootstrap` that fails: no actor runs in its proc, and spawns and calls there get its error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from fresh import lines, run

from monarch.actor import Actor, ActorError, BootstrapCommand, SpawnError, SupervisionError, endpoint, this_host

pytestmark = pytest.mark.usefixtures("fresh")

CAUSE = "bootstrap failed: RuntimeError: no GPU here"


class Leaves(Actor):
    """Leaves a file in the process in which it is made."""

    def __init__(self, folder: str) -> None:
        (Path(folder) / str(os.getpid())).touch()

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Owner(Actor):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    async def spawn_there(self, folder: str) -> str:
        self.mesh = this_host().spawn_procs({"gpus": 2}, bootstrap=fail).spawn("leaves", Leaves, folder)
        try:
            await self.mesh.pid.call()
        except SupervisionError as e:
            return str(e)
        return "no error"

    @endpoint
    async def failures(self) -> list[Any]:
        return self.seen

    async def __supervise__(self, failure: Any) -> bool:
        self.seen.append((failure.crashed_ranks, failure.reason.detail))
        return True


def fail() -> None:
    raise RuntimeError("no GPU here")


async def fail_later() -> None:
    import asyncio

    await asyncio.sleep(0)
    fail()


@pytest.mark.parametrize("setup", [fail, fail_later])
def test_no_actor_runs_where_bootstrap_failed(setup: Any, faults: Any, tmp_path: Path):
    mesh = this_host().spawn_procs({"gpus": 2}, bootstrap=setup)
    first = mesh.spawn("first", Leaves, str(tmp_path))
    with pytest.raises(SupervisionError, match=CAUSE) as caught:
        first.pid.call().get()
    assert caught.value.failure is not None and caught.value.failure.reason.kind == "raised"
    assert "in fail" in str(caught.value)
    assert sorted(faults.get().crashed_ranks[0] for _ in range(2)) == [0, 1]
    # The spawn comes after the error of the mesh itself, too.
    with pytest.raises(ActorError, match="no GPU here"):
        mesh.initialized.get()
    second = mesh.spawn("second", Leaves, str(tmp_path))
    with pytest.raises(SpawnError, match=f"^error spawning actor mesh second: {CAUSE}"):
        second.initialized.get()
    for call in (second.pid.call(), second.slice(gpus=1).pid.call_one(), *second.pid.stream(), second.pid.choose()):
        with pytest.raises(SupervisionError, match=CAUSE):
            call.get()
    with pytest.raises(SupervisionError, match=CAUSE):
        second.pid.broadcast()
    assert os.listdir(tmp_path) == []
    mesh.stop().get()


def test_failed_bootstrap_of_one_rank_spares_the_others(faults: Any, tmp_path: Path):
    def fail_on_one() -> None:
        if os.environ["RANK"] == "1":
            raise RuntimeError("no GPU here")

    commands = lambda point: BootstrapCommand(sys.executable, env={"RANK": str(point.rank)})  # noqa: E731
    mesh = this_host().spawn_procs({"gpus": 3}, bootstrap=fail_on_one, bootstrap_command=commands)
    actors = mesh.spawn("leaves", Leaves, str(tmp_path))
    with pytest.raises(SupervisionError, match=CAUSE):
        actors.pid.call().get()
    assert faults.get().crashed_ranks == [1]
    pids = [actors.slice(gpus=rank).pid.call_one().get() for rank in (0, 2)]
    assert list(actors.slice(gpus=slice(0, 3, 2)).pid.call().get().values()) == pids
    for part in (actors.slice(gpus=1), actors.slice(gpus=slice(1, 3))):
        with pytest.raises(SupervisionError, match=CAUSE):
            part.pid.call().get()
    assert sorted(os.listdir(tmp_path)) == sorted(map(str, pids))
    # A spawn on the other procs works as usual.
    assert mesh.slice(gpus=2).spawn("alone", Leaves, str(tmp_path)).pid.call_one().get() == pids[1]
    with pytest.raises(SpawnError, match=CAUSE):
        mesh.slice(gpus=slice(1, 3)).spawn("some", Leaves, str(tmp_path)).initialized.get()
    mesh.stop().get()


@pytest.mark.parametrize(("how", "cause"), [("sys.exit(3)", "non-zero code 3"), ("os._exit(0)", "exited with code 0")])
def test_bootstrap_that_exits_fails_every_spawn(how: str, cause: str, faults: Any, tmp_path: Path):
    def leave() -> None:
        exec(f"import os, sys; {how}")

    mesh = this_host().spawn_procs(bootstrap=leave)
    actors = mesh.spawn("leaves", Leaves, str(tmp_path))
    with pytest.raises(SupervisionError, match=cause):
        actors.pid.call_one().get()
    with pytest.raises(SpawnError, match=cause):
        mesh.initialized.get()
    with pytest.raises(SpawnError, match=cause):
        mesh.spawn("more", Leaves, str(tmp_path)).initialized.get()
    assert os.listdir(tmp_path) == []
    mesh.stop().get()


def test_owner_of_the_spawn_gets_each_failure(tmp_path: Path):
    with this_host().spawn_procs() as mesh:
        owner = mesh.spawn("owner", Owner)
        assert CAUSE in owner.spawn_there.call_one(str(tmp_path)).get()
        seen = eventually("two failures", lambda: owner.failures.call_one().get(), lambda seen: len(seen) >= 2)
        assert sorted(seen) == [([0], CAUSE), ([1], CAUSE)]
    assert os.listdir(tmp_path) == []


SCRIPT = """
from monarch.actor import Actor, SpawnError, endpoint, this_host
class Worker(Actor):
    @endpoint
    def step(self):
        print("runs")
def fail():
    raise RuntimeError("no GPU here")
worker = this_host().spawn_procs({"gpus": 2}, bootstrap=fail).spawn("worker", Worker)
"""


def test_script_that_sees_the_error_goes_on():
    done = run(SCRIPT + "try: worker.initialized.get()\nexcept SpawnError as e: print('no GPU here' in str(e))")
    assert lines(done.stdout) == ["True"] and done.stderr == ""


def test_script_that_does_not_look_ends_with_1():
    # The script must not wait in an import: the interpreter drops an interrupt that arrives in a callback of its import system.
    done = run("import threading\n" + SCRIPT + "threading.Event().wait()", check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert "Unhandled monarch error on the root actor" in done.stderr and CAUSE in done.stderr
