"""Large parts of messages that their receiver pulls from the sender on another host: without agents, and as reliably as with them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eventually import eventually
from forwarded_port import ForwardedPort
from fresh_script import Done, run
from worker_processes import Workers

from monarch.actor import Actor, endpoint
from monarch.actor.testing import fault
from monarch.config import configured

pytestmark = [pytest.mark.usefixtures("moved"), pytest.mark.parametrize("moved", ["fetched"], indirect=True)]
MIB = 1 << 20


class Keeper(Actor):
    def __init__(self, folder: str = "") -> None:
        self.folder = folder
        self.seen: list[tuple[int, int]] = []

    @endpoint
    def note(self, x: np.ndarray) -> None:
        self.seen.append((len(x), int(x.sum(dtype=np.int64))))

    @endpoint
    def noted(self) -> list[tuple[int, int]]:
        return self.seen

    @endpoint
    def give(self, size: int) -> np.ndarray:
        return np.full(size, 3, np.uint8)

    @endpoint
    def tell(self, other: Any, size: int) -> None:
        other.note.broadcast(np.full(size, 2, np.uint8))

    @endpoint
    def fetch(self, other: Any, size: int) -> int:
        return int(other.give.call_one(size).get().sum(dtype=np.int64))

    @endpoint
    def stop_there(self, host: Any, folder: str, size: int) -> None:
        """Starts an actor on the other host, sends to it, and stops it."""
        procs = host.spawn_procs()
        keeper = procs.spawn("kept", Keeper, folder)
        keeper.note.broadcast(np.ones(size, np.uint8))
        procs.stop().get()

    @endpoint
    def usage(self) -> tuple[int, int, int]:
        """Descriptors, threads, bytes of memory."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * os.sysconf("SC_PAGESIZE")

    def __cleanup__(self, exc: Exception | None) -> None:
        if self.folder:
            path = Path(self.folder, f"seen-{os.getpid()}")
            path.with_suffix(".new").write_text(json.dumps(self.seen))
            path.with_suffix(".new").rename(path)


def offered_parts() -> int:
    from monarch._core.process.current import current_process

    return current_process().native.offered_parts()


def peak_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.mark.filterwarnings("ignore:.*without encryption")
@pytest.mark.parametrize("kind", ["unix", "tls", "insecure"])
def test_agents_have_no_part_in_it(kind: str):
    size = 48 * MIB
    with Workers(2, kind) as workers, workers.attach() as hosts:
        keepers = hosts.spawn_procs().spawn("keeper", Keeper)
        one, other = keepers.slice(hosts=0), keepers.slice(hosts=1)
        assert keepers.noted.call().get() is not None
        before = [peak_of(process.pid) for process in workers.processes]
        one.note.broadcast(np.ones(size, np.uint8))
        assert one.noted.call_one().get() == [(size, size)]
        assert int(one.give.call_one(size).get().sum(dtype=np.int64)) == 3 * size
        assert one.fetch.call_one(other, size).get() == 3 * size
        grown = [peak_of(process.pid) - was for process, was in zip(workers.processes, before, strict=True)]
        assert max(grown) < size // 4, grown
        assert offered_parts() == 0


def test_stop_follows_sent_messages(tmp_path: Path):
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        for _ in range(3):
            procs = hosts.spawn_procs()
            keepers = procs.spawn("keeper", Keeper, str(tmp_path))
            for n in range(2):
                # The parts go to one process, to the other, and beyond the window of credit.
                keepers.slice(hosts=n).note.broadcast(np.ones(20 * MIB, np.uint8))
                keepers.slice(hosts=n).note.broadcast(np.ones(10 * MIB, np.uint8))
            procs.stop().get()
            seen = list(tmp_path.glob("seen-*"))
            assert [json.loads(path.read_text()) for path in seen] == [[[20 * MIB, 20 * MIB], [10 * MIB, 10 * MIB]]] * 2
            for path in seen:
                path.unlink()


def test_stop_by_a_proc_follows_its_messages(tmp_path: Path):
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        keeper = hosts.slice(hosts=0).spawn_procs().spawn("keeper", Keeper)
        keeper.stop_there.call_one(hosts.slice(hosts=1), str(tmp_path), 30 * MIB).get()
        (path,) = tmp_path.glob("seen-*")
        assert json.loads(path.read_text()) == [[30 * MIB, 30 * MIB]]


def test_frozen_receiver_can_still_be_stopped():
    with Workers(1, "tls") as workers, workers.attach() as hosts:
        procs = hosts.spawn_procs({"procs": 2})
        keepers = procs.spawn("keeper", Keeper)
        frozen, other = keepers.slice(procs=0), keepers.slice(procs=1)
        assert keepers.noted.call().get() is not None
        handle = fault(procs.slice(procs=0), "freeze")
        frozen.note.broadcast(np.ones(30 * MIB, np.uint8))
        # Messages to other procs there are not delayed, and their agent receives the stop.
        other.note.broadcast(np.ones(30 * MIB, np.uint8))
        assert other.noted.call_one().get() == [(30 * MIB, 30 * MIB)]
        assert offered_parts() == 1
        # The proc exceeds its bounds and is killed.
        bounds = {"stop_grace_period": "100ms", "stop_actor_timeout": "200ms", "cleanup_timeout": "100ms", "process_exit_timeout": "200ms"}
        with configured(**bounds):
            procs.stop().get()
        assert offered_parts() == 0
        del handle


def test_ending_proc_stays_until_its_parts_are_pulled():
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        target = hosts.slice(hosts=1).spawn_procs().spawn("keeper", Keeper)
        for n in range(1, 4):
            senders = hosts.slice(hosts=0).spawn_procs()
            senders.spawn("keeper", Keeper).tell.call_one(target, 30 * MIB).get()
            senders.stop().get()
            assert target.noted.call_one().get() == [(30 * MIB, 60 * MIB)] * n


def test_many_pulls_run_at_once():
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        procs = hosts.spawn_procs({"procs": 3})
        # The calling actors do not wait for each other.
        keepers, givers = procs.spawn("keeper", Keeper), procs.spawn("giver", Keeper)
        sums: list[int] = []

        def ask(n: int) -> None:
            one, other = keepers.slice(hosts=n % 2, procs=n % 3), givers.slice(hosts=(n + 1) % 2, procs=n // 2 % 3)
            for k in range(3):
                size = (n + 1) * 700_000 + k
                one.note.broadcast(np.ones(size, np.uint8))
                sums.append(int(one.give.call_one(size).get().sum(dtype=np.int64)) - 3 * size)
                sums.append(one.fetch.call_one(other, size).get() - 3 * size)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [0] * 72
        want = sorted((n + 1) * 700_000 + k for n in range(12) for k in range(3))
        noted = [seen for each in keepers.noted.call().get().values() for seen in each]
        assert sorted(noted) == [(size, size) for size in want]
        assert offered_parts() == 0


def test_memory_is_flat_after_many_calls():
    size = 3 * MIB
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        keepers = hosts.spawn_procs().spawn("keeper", Keeper)
        one, other = keepers.slice(hosts=0), keepers.slice(hosts=1)
        data = np.ones(size, np.uint8)

        def call(times: int) -> list[tuple[int, int, int]]:
            for n in range(times):
                one.give.call_one(size).get()
                other.note.broadcast(data)
                if n % 50 == 0:
                    assert one.fetch.call_one(other, size).get() == 3 * size
            other.noted.call_one().get()
            # The last offer ends when its receiver has reported that it has the bytes.
            eventually("every loan is given back", offered_parts, lambda left: not left)
            return list(keepers.usage.call().get().values())

        before, after = call(100), call(500)
        for (fds, threads, memory), (fds_then, threads_then, memory_then) in zip(before, after, strict=True):
            assert fds_then <= fds + 2
            assert threads_then <= threads + 2
            assert memory_then < memory + 4 * size


SCRIPT = """
import json, os
import numpy as np
from monarch.actor import Actor, attach, attach_to_workers, endpoint
from monarch._core.process.current import current_process

class Store(Actor):
    @endpoint
    def length(self, x):
        return len(x)
    @endpoint
    def give(self, n):
        return np.full(n, 5, np.uint8)

gateway, workers, trust = json.loads(os.environ["TEST_HOSTS"])
if gateway:
    attach(gateway, **trust)
hosts = attach_to_workers(workers=workers, **trust)
stores = hosts.spawn_procs().spawn("store", Store)
for n in range(3):
    for one in (stores.slice(hosts=0), stores.slice(hosts=1)):
        assert one.length.call_one(np.ones(12 << 20, np.uint8)).get() == 12 << 20
        assert one.give.call_one(12 << 20).get().sum() == 5 * (12 << 20)
assert current_process().native.offered_parts() == 0
print("done")
"""


def run_with(workers: Workers, gateway: str = "") -> Done:
    return run("", prelude=SCRIPT, env={"TEST_HOSTS": json.dumps((gateway, workers.addresses, workers.trust()))})


def test_parts_go_through_agents_without_streams():
    with Workers(2, "tls") as workers, ForwardedPort(workers.addresses[0]) as port:
        done = run_with(workers, port.address)
        done.assert_clean()
        assert done.out == "done\n"


def test_unloadable_transport_is_named_once(tmp_path: Path):
    entries = tmp_path / "moving-1.0.dist-info" / "entry_points.txt"
    entries.write_text("[monarch.bulk]\n0-test = moving_nowhere:mover\n")
    with Workers(2, "tls") as workers:
        done = run_with(workers)
    assert (done.code, done.out) == (0, "done\n")
    said = [line for line in done.err.splitlines() if "moving_nowhere:mover" in line]
    # Its procs print the line at their workers.
    assert len(said) == 1, done.err
    assert all("large messages to other hosts go through their agents" in line and "No module named" in line for line in said)
