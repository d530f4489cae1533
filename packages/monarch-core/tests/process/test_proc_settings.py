"""Settings and log level of another process, and the meshes that a process owns, by the public names of the extension interface."""

from __future__ import annotations

import json
import logging
import os

import pytest
from fresh import run

from monarch import extension
from monarch.actor import Actor, SupervisionError, endpoint, this_host, this_proc
from monarch.config import configured
from monarch.extension.inspection import SettingState, proc_settings, proc_state, set_log_level
from monarch.extension.mesh import owned_meshes, stop_mesh


class Owner(Actor):
    """Spawns a mesh of its own."""

    @endpoint
    def proc(self) -> int:
        return int(extension.member().proc)

    @endpoint
    def level(self) -> int:
        return logging.getLogger().level

    @endpoint
    def spawn(self) -> list[tuple[str, bool]]:
        self.child = this_proc().spawn("child", Owner)
        self.child.proc.call_one().get()
        return [(one.name, one.is_actors) for one in owned_meshes()]

    @endpoint
    def refused(self, mesh: int) -> str:
        try:
            stop_mesh(mesh)
        except LookupError as e:
            return str(e)
        return ""


def of(states: list[SettingState], name: str) -> SettingState:
    return next(state for state in states if state.name == name)


def test_settings_of_a_proc_have_their_sources():
    with configured(stop_grace_period="7s"), this_host().spawn_procs(name="settings") as procs:
        owner = procs.spawn("owner", Owner)
        proc = extension.ProcId(owner.proc.call_one().get())
        theirs = proc_settings(proc)
        assert [state.name for state in theirs] == sorted(state.name for state in theirs)
        sent = of(theirs, "stop_grace_period")
        assert (sent.value, sent.source, sent.variable) == ("7s", "client", "MONARCH_STOP_GRACE_PERIOD")
        assert sent.default != sent.value
        default = of(theirs, "log_dir")
        assert (default.value, default.source) == (default.default, "default")
        mine = proc_settings(extension.member().proc)
        assert of(mine, "stop_grace_period").source == "configure"
    with pytest.raises(extension.RequestError):
        proc_settings(proc)


def test_state_of_a_proc_is_of_its_process():
    with this_host().spawn_procs(name="dumped") as procs:
        owner = procs.spawn("owner", Owner)
        proc = owner.proc.call_one().get()
        theirs = json.loads(proc_state(proc))
        assert theirs["process"]["uid"] == f"{proc:016x}" and theirs["pid"] != os.getpid()
        mine = json.loads(proc_state(extension.member().proc))
        assert mine["pid"] == os.getpid() and len(mine["host"]["procs"]) >= 2
    with pytest.raises(extension.RequestError):
        proc_state(proc)


def test_setting_of_the_environment_names_its_variable():
    text = """
from monarch import extension
from monarch.extension.inspection import proc_settings
[state] = [one for one in proc_settings(extension.member().proc) if one.name == "stop_grace_period"]
print(state.value, state.source, state.variable)
"""
    assert run(text, env={"MONARCH_STOP_GRACE_PERIOD": "9s"}).stdout == "9s environment MONARCH_STOP_GRACE_PERIOD\n"


def test_log_level_of_one_proc_is_set():
    with this_host().spawn_procs({"gpus": 2}, name="levels") as procs:
        owner = procs.spawn("owner", Owner)
        first, _ = owner.proc.call().get().values()
        before = owner.slice(gpus=1).level.call_one().get()
        set_log_level(first, 35).get()
        assert [value for _, value in owner.level.call().get().items()] == [35, before]
        with pytest.raises(ValueError, match="0 to 255"):
            set_log_level(first, 256)
    with pytest.raises(extension.RequestError, match="has ended|stopped"):
        set_log_level(first, 10).get()
    with pytest.raises(extension.RequestError) as unknown:
        set_log_level(12345, 10).get()
    assert unknown.value.code == "proc_unknown"


def test_owned_mesh_is_stopped_by_its_number():
    with this_host().spawn_procs(name="owners") as procs:
        owner = procs.spawn("owned", Owner)
        owner.proc.call_one().get()
        mine = {one.name: one for one in owned_meshes() if not one.is_stopping}
        assert (mine["owners"].is_actors, mine["owned"].is_actors) == (False, True)
        assert "does not own" in owner.refused.call_one(mine["owned"].mesh).get()
        # The actor owns its own spawns.
        assert ("child", True) in owner.spawn.call_one().get()
        assert "child" not in {one.name for one in owned_meshes()}
        stop_mesh(mine["owned"].mesh, "asked from outside").get()
        with pytest.raises(SupervisionError, match="asked from outside"):
            owner.proc.call_one().get()
        assert mine["owned"].mesh not in {one.mesh for one in owned_meshes()}
        with pytest.raises(LookupError):
            stop_mesh(mine["owned"].mesh)
