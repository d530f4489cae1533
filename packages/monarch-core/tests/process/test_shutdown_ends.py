"""`shutdown` raises for hosts that may still run, and only for these."""

from __future__ import annotations

import os

import pytest
from eventually import eventually
from worker_processes import Workers

import monarch.actor
from monarch.actor import Actor, AttachError, SupervisionError, attach_to_workers, endpoint
from monarch.config import configured
from monarch.extension.mesh import lost_hosts
from tools.frozen import freeze


class Here(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def test_shutdown_names_a_silent_host():
    with Workers(2) as workers, configured(host_loss_timeout="1s"):
        mesh = workers.attach()
        mesh.initialized.get()
        freeze(workers.processes[1].pid)
        with pytest.raises(SupervisionError, match="shutdown: 1 of 2 hosts may still run: ") as raised:
            mesh.shutdown().get()
        assert raised.value.code == "not_shut_down"
        assert f"{workers.addresses[1]}: silent for " in str(raised.value)
        assert workers.addresses[0] not in str(raised.value)
        assert workers.processes[0].wait() == 0
        with pytest.raises(RuntimeError, match="already been shut down"):
            mesh.shutdown()


@pytest.mark.parametrize("is_joining", [True, False], ids=["joining", "not joined"])
def test_shutdown_names_a_host_never_reached(is_joining: bool):
    with Workers(0) as workers, configured(mesh_attach_config_timeout="500ms"):
        address = f"ipc://{workers.folder}/absent"
        mesh = attach_to_workers(workers=[address])
        if not is_joining:
            # No caller has received the error.
            eventually("the join fails", lambda: lost_hosts(mesh) != {})
        with pytest.raises(SupervisionError, match=f"{address}: it did not join: "):
            mesh.shutdown().get()


def test_reported_join_failure_is_raised_once():
    with Workers(1) as workers, configured(mesh_attach_config_timeout="500ms"):
        mesh = attach_to_workers(workers=[*workers.addresses, f"ipc://{workers.folder}/absent"])
        with pytest.raises(AttachError):
            mesh.initialized.get()
        mesh.shutdown().get()
        assert workers.processes[0].wait() == 0


@pytest.mark.parametrize("shown", ["info", "warn"])
def test_reported_loss_is_logged_by_the_shutdown(shown: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    def ignore(failure: monarch.actor.MeshFailure) -> None: ...

    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", ignore)
    with Workers(1) as workers, configured(host_loss_timeout="1s", log_filter=shown):
        mesh = workers.attach()
        here = mesh.spawn_procs().spawn("here", Here)
        here.pid.call_one().get()
        freeze(workers.processes[0].pid)
        with pytest.raises(SupervisionError, match="silent for "):
            here.pid.call_one().get()
        mesh.shutdown().get()
        line = f"{workers.addresses[0]} was lost before it was shut down, and may still run: silent for "
        # By default, a program that has handled the loss ends in silence.
        assert (line in capfd.readouterr().err) is (shown == "info")


@pytest.mark.parametrize("kind", ["unix", "tls"])
def test_killed_host_has_ended(kind: str, capfd: pytest.CaptureFixture[str]):
    with Workers(1, kind) as workers:
        mesh = workers.attach()
        mesh.initialized.get()
        workers.processes[0].kill()
        workers.processes[0].wait()
        mesh.shutdown().get()
        assert "may still run" not in capfd.readouterr().err


def test_second_shutdown_of_a_host_returns():
    with Workers(1) as workers, configured(host_loss_timeout="1s"):
        mesh, again = workers.attach(), workers.attach()
        mesh.initialized.get()
        freeze(workers.processes[0].pid)
        with pytest.raises(SupervisionError, match="may still run"):
            mesh.shutdown().get()
        again.shutdown().get()
