"""A reference to a mesh whose owner was on another host: each process with the reference is notified of the owner's end."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from worker_processes import Workers

from monarch.actor import Actor, SupervisionError, attach_to_workers, endpoint, this_host
from tools.frozen import freeze


class Owner(Actor):
    @endpoint
    def spawn(self, procs: Any) -> Any:
        return procs.spawn("owned", Owned)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Owned(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Holder(Actor):
    @endpoint
    def call(self, mesh: Any) -> str:
        try:
            return str(mesh.pid.call_one().get())
        except SupervisionError as e:
            return str(e)


@pytest.mark.parametrize("where", ["the client's host", "a third host", "the owner's host"])
def test_holder_is_notified_of_a_remote_owners_end(where, faults):
    with Workers(3, "tls") as workers:
        hosts = attach_to_workers(workers=workers.addresses, **workers.trust())
        owners, holders = (hosts.slice(hosts=n).spawn_procs() for n in (0, 1))
        on = {"the client's host": this_host(), "a third host": hosts.slice(hosts=2), "the owner's host": hosts.slice(hosts=0)}[where]
        owner, holder, targets = owners.spawn("owner", Owner), holders.spawn("holder", Holder), on.spawn_procs()
        owned = owner.spawn.call_one(targets).get()
        frozen = owned.pid.call_one().get()
        killed = owner.pid.call_one().get()
        freeze(frozen)
        try:
            answer = holder.call.call_one(owned)
            os.kill(killed, signal.SIGKILL)
            assert "owned" in answer.get(timeout=20) and faults.get(timeout=20).name == "owner"
        finally:
            os.kill(frozen, signal.SIGCONT)
        targets.stop().get()
        hosts.shutdown().get()
