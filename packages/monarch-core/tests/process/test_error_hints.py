"""Error texts with the right spelling, or with the missing wheel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import cloudpickle
import pytest
from mesh_actors import Probe

import monarch.actor
from monarch.actor import Actor, ActorError, SupervisionError, as_endpoint, endpoint, this_host


class Sync(Actor):
    @endpoint
    def crash(self, number: int) -> None:
        os.kill(os.getpid(), number)
        # Another thread may take the signal.
        threading.Event().wait()

    async def plain(self) -> None:
        pass


class Owner(Actor):
    """Its hook does not handle the failure."""

    @endpoint
    async def own(self) -> None:
        self.inner = this_host().spawn_procs().spawn("inner", Raiser)
        with contextlib.suppress(SupervisionError):
            await self.inner.raises.call_one()
        # This waits until the hook has answered, and the owner has failed.
        await asyncio.Event().wait()

    async def __supervise__(self, failure: Any) -> bool:
        return False


class Raiser(Actor):
    @endpoint
    async def raises(self) -> None:
        raise SystemExit(3)


@pytest.fixture
def probe():
    with this_host().spawn_procs({"gpus": 2}) as procs:
        yield procs.spawn("probe", Probe)


@pytest.mark.parametrize("per_host", [4, 2.0, "gpus"])
def test_spawn_procs_wants_a_dict(per_host: Any) -> None:
    with pytest.raises(TypeError, match=rf"spawn_procs\({per_host!r}\): per_host is a dict of label to size(.|\n)*hint: spawn_procs\(\{{"):
        this_host().spawn_procs(per_host)


@pytest.mark.parametrize("place", ["x", 1.5, None, [0]])
def test_slice_names_the_dimension(place: Any, probe: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"slice(gpus={place!r}): expected an int or a slice, not {type(place).__name__}")):
        probe.slice(gpus=place)


def test_endpoint_that_is_called_directly(probe: Any) -> None:
    with pytest.raises(TypeError, match=r"probe\.evaluate\(\) is an endpoint and runs in its actors: use \.call\(\)"):
        probe.evaluate(2)


def test_async_method_on_a_sync_actor() -> None:
    with this_host().spawn_procs() as procs:
        actor: Any = procs.spawn("sync", Sync)
        with pytest.raises(ActorError, match=r"Sync\.plain is an async def method, but the actor has sync endpoints"):
            as_endpoint(actor.plain).call_one().get()


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (signal.SIGSEGV, "SIGSEGV comes from native code .*faulthandler"),
        (signal.SIGKILL, "SIGKILL comes from a person, a scheduler or the kernel"),
        (signal.SIGTERM, None),
    ],
)
def test_hint_of_a_signal(number: int, hint: str | None, fresh: None) -> None:
    actor = this_host().spawn_procs().spawn("sync", Sync)
    with pytest.raises(SupervisionError) as caught:
        actor.crash.call_one(int(number)).get()
    (found,) = re.findall("hint: (.*)", str(caught.value)) or [None]
    assert found is None if hint is None else re.match(hint, found or ""), str(caught.value)


def test_hint_of_supervise_is_for_owners(fresh: None) -> None:
    owner = this_host().spawn_procs().spawn("owner", Owner)
    with pytest.raises(SupervisionError, match=r"hint: return True in `__supervise__` of the owner"):
        owner.own.call_one().get()
    mine = this_host().spawn_procs().spawn("mine", Raiser)
    with pytest.raises(SupervisionError, match=r"hint: catch `SupervisionError`") as caught:
        mine.raises.call_one().get()
    assert "__supervise__" not in str(caught.value)


@pytest.fixture
def core_alone(tmp_path: Path) -> dict[str, str]:
    """The environment of an interpreter that has no wheel of Monarch but core."""
    for package in (click, cloudpickle):
        assert package.__file__ is not None
        os.symlink(os.path.dirname(package.__file__), tmp_path / package.__name__)
    core = Path(monarch.actor.__file__ or "").parents[2]
    return {**os.environ, "PYTHONPATH": f"{core}{os.pathsep}{tmp_path}"}


def without_site(code: str, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-c", code, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=25)


@pytest.mark.parametrize("verb", ["status", "exec"])
def test_verb_of_a_missing_wheel_names_it(verb: str, core_alone: dict[str, str]) -> None:
    done = without_site("from monarch._core.cli import main; main()", core_alone, verb, "--all", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the verb '{verb}' needs the wheel monarch-jobs, which is not installed\nhint: " in done.stderr
    done = without_site("from monarch._core.cli import main; main()", core_alone, "--help")
    assert done.returncode == 0 and "status" not in done.stdout
    done = without_site("from monarch._core.cli import main; main()", core_alone, "nonsense")
    assert done.returncode == 2 and "No such command 'nonsense'" in done.stderr


def test_hosts_of_the_configuration_need_a_wheel(core_alone: dict[str, str]) -> None:
    done = without_site("from monarch.actor import hosts_from_config\nhosts_from_config('hosts')", core_alone)
    assert "NotImplementedError: hosts_from_config needs the wheel monarch-jobs, which is not installed\nhint: " in done.stderr


@pytest.mark.parametrize(
    ("module", "wheel"),
    [
        ("job", "jobs"),
        ("spmd", "spmd"),
        ("rdma", "rdma"),
        ("remotemount", "fs"),
        ("tensor", "tensor"),
        ("distributed_telemetry", "telemetry"),
    ],
)
def test_module_of_a_missing_wheel_names_it(module: str, wheel: str, core_alone: dict[str, str]) -> None:
    done = without_site(f"import monarch.actor, monarch.{module}", core_alone)
    assert f"ModuleNotFoundError: monarch.{module} needs the wheel monarch-{wheel}, which is not installed\nhint: " in done.stderr
    done = without_site("import monarch.actor, monarch.nonsense", core_alone)
    assert "No module named 'monarch.nonsense'" in done.stderr
