"""The addresses of workers: under an identity, on an inherited socket, at an address in use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fresh_script import run
from mesh_actors import Probe
from worker_processes import COMMAND, Workers

from monarch.actor import AttachError, Uid, attach_to_workers

SECRET = b"0123456789abcdef"
# One worker by each of the functions; each prints a word when it is over.
STARTS = {
    "forever": "run_worker_loop_forever({arguments})",
    "until_shutdown": "run_worker_loop_until_shutdown({arguments}); print('over')",
    "future": "start_worker_loop_forever({arguments}).get(); print('over')",
}


class Worker:
    """A process that becomes a worker by a call in Python, with its inherited socket."""

    def __init__(self, start: str, arguments: str, *pass_fds: int) -> None:
        code = f"from monarch.actor import *\n{STARTS[start].format(arguments=arguments)}"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=pass_fds)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def identity() -> str:
    return str(Uid.instance("svc"))


@pytest.mark.parametrize("start", list(STARTS))
def test_worker_has_the_identity_of_its_address(start: str, tmp_path: Path) -> None:
    mine, other, place = identity(), identity(), f"ipc://{tmp_path}/socket"
    with Worker(start, f"address='{mine}@{place}'") as worker:
        with pytest.raises(AttachError, match="another agent answers at this address"):
            attach_to_workers(workers=[f"{other}@{place}"]).initialized.get()
        hosts = attach_to_workers(workers=[f"{mine}@{place}"])
        probe = hosts.spawn_procs().spawn("probe", Probe)
        assert probe.pid.call_one().get() != worker.process.pid
        hosts.shutdown().get()
        assert worker.process.stdout is not None
        out = worker.process.stdout.read()
        worker.process.wait()
        assert (worker.process.returncode, out) == (0, b"" if start == "forever" else b"over\n")


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_worker_leaves_a_file_at_its_address_alone(kind: str, tmp_path: Path) -> None:
    place, kept = tmp_path / "place", tmp_path / "kept"
    kept.write_text("precious")
    {"file": lambda: place.write_text("precious"), "link": lambda: place.symlink_to(kept), "folder": place.mkdir}[kind]()
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "worker", "--listen", f"ipc://{place}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None and worker.stderr is not None
        listening = worker.stdout.readline()
        worker.kill()
        said = worker.stderr.read()
    assert listening == ""
    assert f"listen: ipc://{place}: Address already in use" in said
    assert place.is_dir() if kind == "folder" else place.read_text() == "precious"


def test_command_with_an_identity_publishes_it() -> None:
    with Workers(0) as workers:
        mine = identity()
        number = workers.start("--listen", f"{mine}@ipc://{workers.folder}/0")
        said = workers.published[number]
        assert (said["address"], f"svc<{said['uid']}>") == (f"ipc://{workers.folder}/0", mine)
        with attach_to_workers(workers=[f"{mine}@{said['address']}"]) as hosts:
            assert hosts.initialized.get() is True


@pytest.mark.parametrize("bad", ["svc<1>", f"svc<{'z' * 12}>", "svc<0>"])
def test_identity_that_no_process_can_have(bad: str) -> None:
    for use in (f"start_worker_loop_forever(address='{bad}@ipc://@x')", f"attach_to_workers(workers=['{bad}@ipc://@x'])"):
        done = run(f"import monarch.actor\ntry:\n    monarch.actor.{use}\nexcept ValueError as e:\n    say(str(e))\n")
        assert "is not the identity of a process" in done.out or "invalid uid" in done.out, done


@pytest.mark.parametrize("start", list(STARTS))
@pytest.mark.parametrize("listens", [False, True])
def test_bound_socket_is_used_by_the_worker(start: str, listens: bool) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if listens:
            bound.listen()
        url, fd = f"tcp://127.0.0.1:{bound.getsockname()[1]}", bound.fileno()
        with Worker(start, f"address='tcp://127.0.0.1:fd{fd}', secret={SECRET!r}", fd) as worker:
            # The port is refused until the worker listens.
            hosts = attach_to_workers(workers=[url], secret=SECRET)
            probe: Any = hosts.spawn_procs().spawn("probe", Probe)
            # Child processes of the worker do not inherit the socket.
            inode = os.stat(fd).st_ino
            each = "[os.readlink(p) for n in os.listdir('/proc/self/fd') if os.path.lexists(p := '/proc/self/fd/' + n)]"
            links: Any = probe.evaluate.call_one(each).get()
            assert f"socket:[{inode}]" not in links
            hosts.shutdown().get()
            assert worker.process.wait() == 0


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", COMMAND, "worker", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=25, check=False, **options)


def test_descriptor_that_is_no_bound_socket_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with socket.socket() as unbound, open(os.devnull, "rb") as file:
        for fd, why in ((unbound.fileno(), "the socket is not bound"), (file.fileno(), "Socket operation on non-socket")):
            done = command("--listen", f"tcp://127.0.0.1:fd{fd}", "--secret-file", str(secret), pass_fds=(fd,))
            assert (done.returncode, done.stdout) == (1, "")
            assert f"descriptor {fd}: {why}" in done.stderr
        assert os.fstat(unbound.fileno())


OCCUPIED = """
import errno
from monarch.actor import start_worker_loop_forever, run_worker_loop_forever, run_worker_loop_until_shutdown
future = start_worker_loop_forever(address={address!r}, secret=b"0123456789abcdef")
for wait in (future.get, lambda: run_worker_loop_until_shutdown(address={address!r}, secret=b"0123456789abcdef")):
    try:
        wait()
    except ValueError as e:
        assert isinstance(e, OSError) and e.errno == errno.EADDRINUSE
        say(str(e))
# The failed attempts do not keep this process from being a worker elsewhere.
start_worker_loop_forever(address="ipc://@monarch-test-{number}")
say("free")
"""


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_occupied_address_fails_the_future(kind: str, tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0)) if kind == "tcp" else socket.socket(socket.AF_UNIX)
    with taken:
        if kind == "unix":
            taken.bind(str(tmp_path / "socket"))
            taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}" if kind == "tcp" else f"ipc://{tmp_path}/socket"
        done = run(OCCUPIED.format(address=address, number=os.getpid()))
    first, second, last = done.out.splitlines()
    assert first == f"listen: {address}: Address already in use"
    assert (first, last, done.code) == (second, "free", 0), done


OWN = """
class Probe(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

from monarch.actor import attach_to_workers, start_worker_loop_forever
ended = start_worker_loop_forever(address={listen!r}, secret={secret!r})
hosts = attach_to_workers(workers=[{own!r}, {other!r}], secret={secret!r})
assert hosts.initialized.get(20) is True
pids = hosts.spawn_procs({{"procs": 2}}).spawn("probe", Probe).pid.call().get(20)
assert len(set(pids.values())) == 4
again = attach_to_workers(workers=[{own!r}], secret={secret!r})
assert again.spawn_procs().spawn("probe", Probe).pid.call_one().get(20) not in pids.values()
assert this_host().spawn_procs().spawn("probe", Probe).pid.call_one().get(20)
hosts.shutdown().get()
ended.get(20)
say("over")
"""


@pytest.mark.parametrize("kind", ["tcp", "any", "unix"])
def test_process_attaches_to_its_own_worker(kind: str, tmp_path: Path) -> None:
    """The process attaches beside another worker, like rank 0 of a world whose ranks all are workers; its host is its own machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = f"ipc://{tmp_path}/own" if kind == "unix" else f"tcp://localhost:{port}"
    listen = {"tcp": f"tcp://127.0.0.1:{port}", "any": f"tcp://*:{port}", "unix": own}[kind]
    with Workers(1, "tls") as workers:
        done = run(OWN.format(listen=listen, own=own, other=workers.addresses[0], secret=str(workers.secret)))
    assert (done.out, done.code) == ("over\n", 0), done
