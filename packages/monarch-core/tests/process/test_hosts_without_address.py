"""Hosts that never join because their addresses do not arrive, and spawns of procs on lost hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from fresh_script import run
from worker_processes import Workers

from monarch.actor import (
    Actor,
    AttachError,
    Channel,
    HostMesh,
    MeshFailure,
    MonarchError,
    SpawnError,
    SupervisionError,
    attach_to_workers,
    endpoint,
)


class Echo(Actor):
    @endpoint
    def echo(self, x: int) -> int:
        return x


class NoAddress(MonarchError):
    pass


class Pending:
    """Two hosts whose addresses have not arrived."""

    def __init__(self) -> None:
        self.channels = [Channel[str].open(once=True) for _ in range(2)]
        self.hosts: HostMesh = attach_to_workers(workers=[receiver.recv() for _, receiver in self.channels], name="a", secret=b"x" * 32)

    def fail(self, error: Exception) -> None:
        for port, _ in self.channels:
            port.exception(error)


@pytest.fixture
def pending(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pending]:
    # Unseen failures reach the root, which would end this process.
    told: list[MeshFailure] = []
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", told.append)
    yield Pending()


def test_each_host_without_address_is_counted(pending: Pending) -> None:
    pending.fail(RuntimeError("no machine"))
    with pytest.raises(AttachError, match=r"2 of 2 hosts did not join: a\[0\]: its address did not come: RuntimeError: no machine; a\[1\]"):
        pending.hosts.initialized.get(20)


def test_procs_of_hosts_that_never_join_fail(pending: Pending) -> None:
    """Nothing was sent to them."""
    procs = pending.hosts.spawn_procs()
    ready = procs.initialized
    pending.fail(RuntimeError("no machine"))
    with pytest.raises(SpawnError, match=r"2 of 2 procs did not start(?s:.*)host a\[0\] lost: it did not join"):
        ready.get(20)


@pytest.mark.parametrize("use", ["hosts", "spawn", "procs", "call"])
def test_error_of_an_address_reaches_its_users(pending: Pending, use: str) -> None:
    """The error is raised unchanged: `except` finds its type."""
    procs = pending.hosts.spawn_procs()
    call = procs.spawn("echo", Echo).echo.call(1)
    pending.fail(NoAddress("the job has ended"))
    uses: dict[str, Any] = {
        "hosts": lambda: pending.hosts.initialized.get(20),
        "spawn": lambda: (pending.hosts.initialized.exception(20), pending.hosts.spawn_procs()),
        "procs": lambda: procs.initialized.get(20),
        "call": lambda: call.get(20),
    }
    with pytest.raises(NoAddress, match=r"\Athe job has ended\Z") as caught:
        uses[use]()
    assert use != "call" or isinstance(caught.value.__cause__, SupervisionError)


def test_exit_does_not_wait_for_missing_hosts() -> None:
    """They have no procs to stop."""
    done = run("""
        from monarch.actor import Channel, attach_to_workers, shutdown_context
        from monarch.config import configure

        configure(stop_actor_timeout="1h")
        port, receiver = Channel[str].open(once=True)
        procs = attach_to_workers(workers=[receiver.recv()], name="a", secret=b"x" * 32).spawn_procs()
        shutdown_context(3600.0).get()
        print("over")
    """)
    done.assert_clean()
    assert done.out == "over\n"


def test_exit_waits_for_hosts_that_are_attached_again() -> None:
    """One host has not joined: the clean-up on the others is part of the exit."""
    with Workers(1) as workers:
        done = run(f"""
            from monarch.actor import Channel, attach_to_workers, shutdown_context

            class Model(Echo):
                def __cleanup__(self, exc):
                    time.sleep(0.5)  # sleeps: an exit that does not wait is over meanwhile
                    raise ValueError("the checkpoint failed")

            first = attach_to_workers(workers={workers.addresses!r})
            assert first.spawn_procs().spawn("model", Model).echo.call_one(1).get() == 1
            port, receiver = Channel[str].open(once=True)
            again = attach_to_workers(workers=[*{workers.addresses!r}, receiver.recv()], name="b")
        """)
    assert done.code == 1 and "the checkpoint failed" in done.err


def test_slice_without_the_failed_hosts_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: None)
    with Workers(1) as workers:
        port, receiver = Channel[str].open(once=True)
        hosts = attach_to_workers(workers=[*workers.addresses, receiver.recv()], name="a")
        port.exception(RuntimeError("no machine"))
        with pytest.raises(AttachError):
            hosts.initialized.get(20)
        assert hosts.slice(hosts=0).spawn_procs().spawn("echo", Echo).echo.call_one(1).get(20) == 1
        for mesh in (hosts, hosts.slice(hosts=1)):
            with pytest.raises(AttachError, match="no machine"):
                mesh.spawn_procs()


def test_spawn_on_a_lost_host_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[MeshFailure] = []
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", told.append)
    with Workers(1) as workers:
        hosts = workers.attach()
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call_one(1).get(20) == 1
        os.kill(workers.processes[0].pid, signal.SIGKILL)
        with pytest.raises(SupervisionError):
            while True:
                echo.echo.call_one(1).get(20)
        with pytest.raises(SpawnError, match=r"1 of 1 procs did not start"):
            hosts.spawn_procs().initialized.get(20)
