"""Workers that end before they have joined, and hosts that are lost before their procs are ready."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from fresh_script import run
from mesh_actors import Probe
from worker_processes import Workers

from monarch.actor import AttachError, HostMesh, SpawnError, SupervisionError, attach_to_workers
from monarch.config import configured
from tools.frozen import freeze

# Far longer than a test may take: a call that ends earlier has not waited for it.
TIMEOUT = "10min"


class Listener:
    """A worker from the network's view: it takes a connection, and ends."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path: Path | None = None
        if kind == "unix":
            self.path = folder / "worker"
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.bind(str(self.path))
            self.socket.listen()
            self.address, self.trust = f"ipc://{self.path}", {}
        else:
            self.socket = socket.create_server(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{self.socket.getsockname()[1]}"
            self.trust: dict[str, Any] = {"insecure": True} if kind == "insecure" else {"secret": b"x" * 32}

    def attach(self) -> HostMesh:
        return attach_to_workers(workers=[self.address], **self.trust)

    def end(self, unlink: bool = False) -> None:
        connection, _ = self.socket.accept()
        if unlink and self.path is not None:
            self.path.unlink()
        self.socket.close()
        connection.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Callable[[str], Listener]]:
    made: list[Listener] = []

    def make(kind: str) -> Listener:
        made.append(Listener(kind, tmp_path))
        return made[-1]

    with configured(mesh_attach_config_timeout=TIMEOUT):
        yield make
    for one in made:
        one.socket.close()


@pytest.mark.filterwarnings("ignore:.*without encryption")
@pytest.mark.parametrize(("kind", "unlink"), [("insecure", False), ("tls", False), ("unix", False), ("unix", True)])
def test_worker_that_ends_while_joining_is_reported(kind: str, unlink: bool, listener: Callable[[str], Listener]) -> None:
    worker = listener(kind)
    hosts = worker.attach()
    worker.end(unlink)
    with pytest.raises(AttachError, match="1 of 1 hosts did not join: .*the worker ended while it joined: closed by") as caught:
        hosts.initialized.get()
    assert list(caught.value.hosts) == [worker.address]


@pytest.mark.filterwarnings("ignore:.*without encryption")
def test_stop_does_not_wait_for_an_ended_worker(listener: Callable[[str], Listener], fresh: None) -> None:
    worker = listener("insecure")
    hosts = worker.attach()
    procs = hosts.spawn_procs({"gpus": 2})
    probe = procs.spawn("probe", Probe)
    call = probe.pid.call()
    stopped = hosts.stop()
    worker.end()
    stopped.exception()
    procs.stop().exception()
    with pytest.raises(SupervisionError):
        call.get()
    assert hosts.shutdown().exception() is None


@pytest.mark.filterwarnings("ignore:.*without encryption")
def test_procs_of_a_host_that_never_joins_fail(listener: Callable[[str], Listener], fresh: None) -> None:
    worker = listener("insecure")
    procs = worker.attach().spawn_procs({"gpus": 2})
    worker.end()
    with pytest.raises(SpawnError, match="2 of 2 procs did not start(.|\n)*the worker ended while it joined"):
        procs.initialized.get()
    assert procs.stop().get() is None


def test_frozen_worker_that_is_killed_is_reported(listener: Callable[[str], Listener]) -> None:
    del listener
    with Workers(1, "tls") as workers:
        process = workers.processes[0]
        freeze(process.pid)
        hosts = workers.attach()
        eventually("a connection to the worker", lambda: connected(workers.addresses[0]))
        process.kill()
        with pytest.raises(AttachError, match="the worker ended while it joined"):
            hosts.initialized.get()


def connected(address: str) -> bool:
    """Whether a connection to this address of the machine is open at the end that dials."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    return any(words[2].endswith(f":{port}") and words[3] == "01" for words in map(str.split, lines))


def test_spawning_on_a_lost_host_fails(fresh: None) -> None:
    with Workers(2) as workers, workers.attach() as hosts:
        probe = hosts.slice(hosts=1).spawn_procs().spawn("probe", Probe)
        probe.pid.call_one().get()
        workers.processes[1].kill()
        with pytest.raises(SupervisionError, match="lost"):
            while True:
                probe.pid.call_one().get()
        procs = hosts.slice(hosts=1).spawn_procs()
        with pytest.raises(SpawnError, match="1 of 1 procs did not start"):
            procs.initialized.get()
        procs.stop().get()


CAUGHT = """
from monarch.actor import AttachError, attach_to_workers
import socket
server = socket.create_server(("127.0.0.1", 0))
hosts = attach_to_workers(workers=[f"tcp://127.0.0.1:{server.getsockname()[1]}"], secret=b"x" * 32)
procs = hosts.spawn_procs()
procs.spawn("echo", Echo)
connection, _ = server.accept()
server.close()
connection.close()
try:
    hosts.initialized.get()
except AttachError:
    say("caught")
"""


def test_caught_attach_error_covers_its_procs() -> None:
    done = run(CAUGHT)
    assert (done.code, done.out, done.err) == (0, "caught\n", "")
