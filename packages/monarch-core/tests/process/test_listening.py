"""Listeners of membership: their events, the order of these, and the outcome of a listener that raises or waits."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from typing import Any

import pytest
from fresh import run
from worker_processes import Workers

from monarch import extension
from monarch.actor import Actor, MonarchError, endpoint, this_host
from monarch.extension import HostEnd, HostJoined, ProcEnd, ProcJoined

TIMEOUT = 25.0


class Peer(Actor):
    """Has a listener of its own in its process."""

    def __init__(self) -> None:
        self.events: queue.Queue[Any] = queue.Queue()
        extension.listen(self.events.put)

    @endpoint
    def place(self) -> tuple[int, int]:
        return extension.member().proc, os.getpid()

    @endpoint
    def reach(self, proc: int, host: int) -> None:
        extension.reach(proc, host)

    @endpoint
    def spawn(self) -> int:
        self.mesh = this_host().spawn_procs(name="nested")
        return self.mesh.spawn("peer", Peer).place.call_one().get()[0]

    @endpoint
    def next(self) -> Any:
        return self.events.get(timeout=TIMEOUT)


@pytest.fixture
def events() -> Any:
    """The events of a listener in this process."""
    found: queue.Queue[Any] = queue.Queue()
    listening = extension.listen(found.put)
    yield found
    listening.stop()


def until(events: Any, wanted: Any) -> list[Any]:
    """The events up to the first for which `wanted` holds."""
    found = [events.get(timeout=TIMEOUT)]
    while not wanted(found[-1]):
        found.append(events.get(timeout=TIMEOUT))
    return found


def next_of(events: Any, kind: type, count: int) -> list[Any]:
    """The next events of a kind; members of earlier tests may end meanwhile."""
    return [until(events, lambda event: isinstance(event, kind))[-1] for _ in range(count)]


def about(found: list[Any], proc: int) -> list[Any]:
    return [event for event in found if getattr(event, "proc", None) == proc]


def test_procs_join_and_end_in_order(events: Any) -> None:
    mesh = this_host().spawn_procs({"procs": 2}, name="listened")
    joined = [events.get(timeout=TIMEOUT) for _ in range(2)]
    assert {(type(event), event.name, int(event.rank), event.host) for event in joined} == {
        (ProcJoined, "listened", rank, extension.member().host) for rank in range(2)
    }
    procs = {int(event.rank): event.proc for event in joined}
    peers = mesh.spawn("peer", Peer)
    assert [peers.slice(procs=rank).place.call_one().get()[0] for rank in range(2)] == [procs[0], procs[1]]
    mesh.stop().get()
    ends: dict[int, str] = {}
    while len(ends) < 2:
        event = events.get(timeout=TIMEOUT)
        # Members of earlier tests may end now.
        if isinstance(event, ProcEnd) and event.proc in procs.values():
            assert event.proc not in ends
            ends[event.proc] = event.reason.kind
    assert ends == {procs[rank]: "stopped" for rank in range(2)}


def test_killed_proc_joins_before_its_end_with_reason(events: Any) -> None:
    with pytest.raises(MonarchError):
        this_host().spawn_procs(name="mortal", bootstrap=_leave).initialized.get()
    assert until(events, lambda event: isinstance(event, ProcEnd))[-1].reason.kind == "exit_code"
    for _ in range(5):
        mesh = this_host().spawn_procs(name="mortal")
        peer = mesh.spawn("peer", Peer)
        proc, pid = peer.place.call_one().get()
        os.kill(pid, signal.SIGKILL)
        found = about(until(events, lambda event: isinstance(event, ProcEnd)), proc)
        assert [type(event) for event in found] == [ProcJoined, ProcEnd] and found[1].reason.signal == 9 and found[1].pid == pid
        with pytest.raises(MonarchError):
            peer.place.call_one().get()


def _leave() -> None:
    os._exit(3)


def test_hosts_join_and_are_lost(events: Any) -> None:
    with Workers(2) as workers:
        hosts = workers.attach()
        hosts.initialized.get()
        joined = next_of(events, HostJoined, 2)
        assert {(event.pid, event.address) for event in joined} == {
            (process.pid, address) for process, address in zip(workers.processes, workers.addresses, strict=True)
        }
        mesh = hosts.spawn_procs(name="far")
        procs = {int(event.rank): event for event in next_of(events, ProcJoined, 2)}
        by_pid = {event.pid: event.host for event in joined}
        assert [procs[rank].host for rank in range(2)] == [by_pid[process.pid] for process in workers.processes]
        peers = mesh.spawn("peer", Peer)
        near = peers.slice(hosts=0)
        lost, survivor = procs[1], procs[0]
        near.reach.call_one(lost.proc, lost.host).get()
        workers.processes[1].kill()
        found = until(events, lambda event: isinstance(event, HostEnd))
        found = [event for event in found if isinstance(event, HostEnd) or event.proc in (lost.proc, survivor.proc)]
        assert [(type(event), getattr(event, "proc", None)) for event in found] == [(ProcEnd, lost.proc), (HostEnd, None)]
        assert found[-1].host == lost.host and found[-1].reason.kind == "host_lost" and "lost" in found[-1].describe()
        # The proc that knew a proc there gets the same events.
        theirs = [near.next.call_one().get() for _ in range(2)]
        assert [type(event) for event in theirs] == [ProcEnd, HostEnd] and theirs[0].proc == lost.proc and theirs[1].host == lost.host
        with pytest.raises(MonarchError):
            peers.place.call().get()
        assert near.place.call_one().get()[0] == survivor.proc
        hosts.shutdown().get()


def test_proc_is_notified_of_procs_it_spawned() -> None:
    mesh = this_host().spawn_procs(name="spawner")
    peer = mesh.spawn("peer", Peer)
    nested = peer.spawn.call_one().get()
    event = peer.next.call_one().get()
    assert isinstance(event, ProcJoined) and event.proc == nested and event.name == "nested"
    mesh.stop().get()


def test_failing_listener_is_named_and_left_out(events: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def breaks(event: Any) -> None:
        seen.append(event)
        raise LookupError("no such member")

    def leaves(event: Any) -> None:
        raise SystemExit(3)

    broken, gone = extension.listen(breaks), extension.listen(leaves)
    mesh = this_host().spawn_procs(name="listened")
    mesh.stop().get()
    found = until(events, lambda event: isinstance(event, ProcEnd))
    # Each event goes to all listeners before the next one: the last listener has handled the first event.
    assert seen == [found[0]] and not broken.is_active() and not gone.is_active()
    assert "left out: the membership listener test_listening.test_failing_listener_is_named_and_left_out.<locals>.breaks" in caplog.text
    assert "LookupError: no such member" in caplog.text and "SystemExit: 3" in caplog.text
    broken.stop()


def test_twice_is_twice_and_stopped_is_over(events: Any) -> None:
    counted: list[Any] = []
    first, second = extension.listen(counted.append), extension.listen(counted.append)
    last: queue.Queue[Any] = queue.Queue()
    marker = extension.listen(last.put)
    mesh = this_host().spawn_procs(name="listened")
    last.get(timeout=TIMEOUT)
    assert len(counted) == 2 and counted[0] is counted[1]
    first.stop()
    first.stop()
    mesh.stop().get()
    last.get(timeout=TIMEOUT)
    assert len(counted) == 3 and second.is_active() and not first.is_active()
    second.stop()
    marker.stop()


def test_listener_may_stop_itself_and_listen(events: Any) -> None:
    inner: list[Any] = []

    def once(event: Any) -> None:
        outer.stop()
        more.append(extension.listen(inner.append))

    more: list[extension.Listening] = []
    outer = extension.listen(once)
    mesh = this_host().spawn_procs(name="listened")
    mesh.initialized.get()
    mesh.stop().get()
    until(events, lambda event: isinstance(event, ProcEnd))
    # All listeners have had an event before the next one comes.
    later = this_host().spawn_procs(name="later")
    until(events, lambda event: isinstance(event, ProcJoined))
    assert type(inner[0]) is ProcEnd and len(more) == 1
    later.stop().get()
    more[0].stop()


def test_listener_that_waits_delays_no_call() -> None:
    entered, release = threading.Event(), threading.Event()

    def waits(event: Any) -> None:
        entered.set()
        assert release.wait(TIMEOUT)

    listening = extension.listen(waits)
    mesh = this_host().spawn_procs(name="listened")
    assert entered.wait(TIMEOUT)
    peer = mesh.spawn("peer", Peer)
    assert peer.place.call_one().get()[1] != os.getpid()
    other = this_host().spawn_procs(name="other")
    other.initialized.get()
    other.stop().get()
    release.set()
    listening.stop()
    mesh.stop().get()


def test_listener_modules_load_only_when_used() -> None:
    done = run(
        """
        import sys
        from monarch.actor import this_host
        from monarch import extension
        mesh = this_host().spawn_procs()
        mesh.initialized.get()
        assert not [name for name in sys.modules if name.startswith("monarch._core.extension")]
        listening = extension.listen(print)
        from monarch._core.process.current import current_process
        assert current_process().membership is not None
        listening.stop()
        assert current_process().membership is None
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_events_are_values() -> None:
    made = [
        ProcJoined(5, 6, "mesh", 1),
        HostJoined(6, "name", 77, "tcp://x:1"),
        HostEnd(6, "name", _reason()),
    ]
    for event in made:
        assert pickle.loads(pickle.dumps(event)) == event and hash(event) == hash(pickle.loads(pickle.dumps(event)))
        with pytest.raises(AttributeError, match="cannot be set: it is immutable"):
            event.host = 3  # type: ignore[misc]
    assert made[0] != ProcJoined(5, 6, "mesh", 2) and made[0] != made[1] and "name='mesh'" in repr(made[0])
    assert type(made[0].proc) is extension.ProcId
    with pytest.raises(TypeError, match=r"listen\(3\): expected a function"):
        extension.listen(3)  # type: ignore[arg-type]


def _reason() -> Any:
    from monarch._core.errors.failure import ExitReason

    return ExitReason("host_lost", detail="silent")
