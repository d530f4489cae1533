"""`shutdown().get(timeout)` returns at its time, even if a host does not answer."""

from __future__ import annotations

import os
import signal

import pytest
from worker_processes import Workers

import monarch.actor
from monarch.actor import Actor, endpoint
from monarch.extension.mesh import lost_hosts
from tools.frozen import freeze


class Here(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def test_silent_host_does_not_prolong_a_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    with Workers(1) as workers:
        mesh = workers.attach()
        pid = mesh.spawn_procs().spawn("here", Here).pid.call_one().get()
        for stopped in (workers.processes[0].pid, pid):
            freeze(stopped)
        with pytest.raises(TimeoutError):
            mesh.shutdown().get(0.1)
        # The loss takes seconds to be noticed: nothing has waited for that.
        assert lost_hosts(mesh) == {}
        os.kill(pid, signal.SIGKILL)
