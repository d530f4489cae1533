"""Hosts that are other agents: workers on this machine, over unix sockets and over TLS."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from fresh_script import Script, run, wait_for_end
from worker_processes import COMMAND, Workers

from monarch.actor import (
    Actor,
    ActorError,
    AttachError,
    AuthenticationError,
    Channel,
    Future,
    HostMesh,
    SupervisionError,
    Uid,
    attach_to_workers,
    current_rank,
    endpoint,
    this_host,
)


class Echo(Actor):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def echo(self, x: Any) -> Any:
        self.seen.append(x)
        return x

    @endpoint
    def where(self) -> tuple[int, int, int]:
        return os.getpid(), os.getppid(), current_rank().rank

    @endpoint
    def all_seen(self) -> list[Any]:
        return self.seen

    @endpoint
    def variables(self, prefix: str) -> list[str]:
        return [name for name in os.environ if name.startswith(prefix)]

    @endpoint
    def wait(self) -> None:
        signal.pause()

    @endpoint
    def spawn_here(self) -> int:
        mesh = this_host().spawn_procs(name="inner")
        return mesh.spawn("inner", Echo).where.call_one().get()[0]


class Caller(Actor):
    @endpoint
    async def call(self, other: Any, x: Any) -> list[Any]:
        return [value async for value in _values(other, x)]

    @endpoint
    async def send(self, port: Any, x: Any) -> None:
        port.send(x)

    @endpoint
    async def tell(self, other: Any, x: Any) -> None:
        other.echo.broadcast(x)

    @endpoint
    async def spawn_on(self, hosts: HostMesh) -> list[int]:
        self.procs = hosts.spawn_procs(name="owned")
        self.echoes = self.procs.spawn("owned", Echo)
        return [pid for pid, _, _ in (await self.echoes.where.call()).values()]

    @endpoint
    async def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


async def _values(other: Any, x: Any) -> Any:
    for value in (await other.echo.call(x)).values():
        yield value


@pytest.fixture(params=["unix", "tls", "insecure"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.filterwarnings("ignore:.*without encryption")
def test_calls_over_hosts(kind: str):
    with Workers(3, kind) as workers, workers.attach() as hosts:
        assert hosts.initialized.get() is True
        procs = hosts.spawn_procs({"gpus": 2})
        echoes = procs.spawn("echo", Echo)
        found = echoes.where.call().get()
        assert found.extent.labels == ["hosts", "gpus"]
        assert [rank for _, _, rank in found.values()] == list(range(6))
        assert len({pid for pid, _, _ in found.values()}) == 6
        assert len({parent for _, parent, _ in found.values()}) == 3
        assert list(echoes.slice(hosts=1).echo.call(7).get().values()) == [7, 7]
        large = os.urandom(3 << 20)
        assert echoes.slice(hosts=2, gpus=1).echo.call_one(large).get() == large
        # A call from here to there, from there to there, and back here.
        assert this_host().spawn_procs().spawn("here", Caller).call.call_one(echoes, 1).get() == [1] * 6
        there = procs.spawn("there", Caller)
        assert there.slice(hosts=0, gpus=0).call.call_one(echoes, 2).get() == [2] * 6
        port, receiver = Channel.open()
        there.slice(hosts=2, gpus=0).send.call_one(port, "word").get()
        assert receiver.recv().get() == "word"


def test_mesh_is_usable_before_its_hosts_join():
    with Workers(0) as workers:
        place = f"ipc://{workers.folder}/0"
        hosts = attach_to_workers(workers=[place])
        echo = hosts.spawn_procs().spawn("echo", Echo)
        answers = [echo.echo.call_one(n) for n in range(5)]
        workers.start()
        assert [a.get() for a in answers] == list(range(5))
        hosts.shutdown().get()
        assert workers.processes[0].wait() == 0


def test_actors_of_a_joining_host_receive_calls():
    with Workers(1) as workers, workers.attach() as hosts:
        caller = hosts.spawn_procs().spawn("caller", Caller)
        later = attach_to_workers(workers=[f"ipc://{workers.folder}/1"])
        echo = later.spawn_procs().spawn("echo", Echo)
        # Its agent knows of the other host by then, but not its address.
        caller.tell.call_one(echo, "early").get()
        workers.start()
        assert caller.call.call_one(echo, "later").get() == ["later"]
        assert echo.all_seen.call_one().get() == ["early", "later"]
        later.shutdown().get()


def test_callers_of_a_host_that_never_joins_fail(faults):
    from monarch.config import configured

    with Workers(2) as workers, workers.attach() as hosts:
        caller = hosts.spawn_procs().spawn("caller", Caller)
        with configured(mesh_attach_config_timeout="500ms"):
            nobody = attach_to_workers(workers=[f"ipc://{workers.folder}/nobody"])
            echo = nobody.spawn_procs().spawn("echo", Echo)
            with pytest.raises(ActorError, match="it did not join"):
                caller.slice(hosts=0).call.call_one(echo, 1).get()
        # A host that joins later is notified of it too.
        workers.start()
        with attach_to_workers(workers=workers.addresses[2:]) as third:
            late = third.spawn_procs().spawn("caller", Caller)
            with pytest.raises(ActorError, match="it did not join"):
                late.call.call_one(echo, 1).get()


@pytest.mark.parametrize("kind", ["unix", "tls"])
def test_order_holds_across_broken_connections(kind: str):
    with Workers(1, kind) as workers, workers.attach() as hosts:
        echo = hosts.spawn_procs().spawn("echo", Echo)
        echo.echo.call_one(-1).get()
        from monarch._core.process.current import current_process

        client = current_process()
        assert client.hosts.native is not None
        for n in range(2000):
            echo.echo.broadcast(n)
            if n % 100 == 50:
                client.hosts.native.cut(hosts.__core__.agents[0])
        assert echo.all_seen.call_one().get() == [-1, *range(2000)]


def test_agent_that_is_killed():
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        echoes = hosts.spawn_procs().spawn("echo", Echo)
        echoes.echo.call(1).get()
        waiting = echoes.slice(hosts=1).wait.call_one()
        left = workers.procs_of(1)
        assert len(left) == 1
        workers.processes[1].kill()
        with pytest.raises(SupervisionError, match=r"host .* lost: agent killed") as caught:
            waiting.get()
        assert caught.value.failure is not None
        assert caught.value.failure.reason.kind == "host_lost"
        assert wait_for_end(left[0])
        assert list(echoes.slice(hosts=0).echo.call(2).get().values()) == [2]
        with pytest.raises(SupervisionError, match="lost"):
            echoes.slice(hosts=1).echo.call_one(3).get()


def test_procs_on_another_host_end_with_their_owner():
    with Workers(2) as workers, workers.attach() as hosts:
        owner_procs = hosts.slice(hosts=0).spawn_procs()
        owner = owner_procs.spawn("owner", Caller)
        pids = owner.spawn_on.call_one(hosts).get()
        assert len(pids) == 2
        with pytest.raises(SupervisionError):
            owner.end.call_one().get()
        assert all(wait_for_end(pid) for pid in pids)


def test_this_host_is_the_machine_of_the_actor():
    with Workers(1) as workers, workers.attach() as hosts:
        echo = hosts.spawn_procs().spawn("echo", Echo)
        inner = echo.spawn_here.call_one().get()
        assert inner in workers.procs_of(0) or wait_for_end(inner)


def test_shutdown_ends_the_agents_and_stop_does_not():
    with Workers(1) as workers:
        hosts = workers.attach()
        hosts.spawn_procs().spawn("echo", Echo).echo.call_one(1).get()
        hosts.stop().get()
        assert workers.processes[0].poll() is None
        assert hosts.spawn_procs().spawn("echo", Echo).echo.call_one(2).get() == 2
        hosts.shutdown().get()
        assert workers.processes[0].wait() == 0
        with pytest.raises(RuntimeError, match="already been shut down"):
            hosts.spawn_procs()


CLIENT = """
import json
hosts = attach(sys.argv[1:])
class Worker(Echo):
    @endpoint
    def pid(self):
        return os.getpid()
procs = hosts.spawn_procs({"gpus": 2})
workers = procs.spawn("w", Worker)
say(json.dumps(sorted(workers.pid.call().get().values())))
"""
ATTACH = "from monarch.actor import attach_to_workers\ndef attach(workers):\n    return attach_to_workers(workers=workers)\n"


def test_exit_of_a_client_frees_its_hosts():
    with Workers(2) as workers:
        for _ in range(2):
            done = run(ATTACH + CLIENT.replace("sys.argv[1:]", repr(workers.addresses)))
            assert (done.code, done.err, done.left) == (0, "", [])
            assert [workers.procs_of(n) for n in range(2)] == [[], []]
        assert all(p.poll() is None for p in workers.processes)


def test_killed_client_leaves_nothing_after_its_lease():
    with Workers(1) as workers:
        lease = 'from monarch.config import configure\nconfigure(mesh_orphan_timeout="2s")\n'
        script = Script(lease + ATTACH + CLIENT.replace("sys.argv[1:]", repr(workers.addresses)) + "signal.pause()\n")
        try:
            import json

            pids = json.loads(script.until("["))
            script.send(signal.SIGKILL)
            assert all(wait_for_end(pid) for pid in pids)
        finally:
            script.close()
        assert workers.processes[0].poll() is None


def test_two_clients_on_one_agent():
    with Workers(1) as workers, workers.attach() as hosts:
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call_one(1).get() == 1
        other = run(ATTACH + CLIENT.replace("sys.argv[1:]", repr(workers.addresses)))
        assert (other.code, other.err, other.left) == (0, "", [])
        assert echo.echo.call_one(2).get() == 2
        assert len(workers.procs_of(0)) == 1


def test_host_listens_on_one_port():
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        procs = hosts.spawn_procs({"gpus": 2})
        procs.spawn("there", Caller).slice(hosts=0, gpus=0).call.call_one(procs.spawn("echo", Echo), 1).get()
        # Other tests may have started a debug server in this process.
        ours = {*(p.pid for p in workers.processes), *workers.procs_of(0), *workers.procs_of(1)}
        listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
        found = [line for line in listening.splitlines() if any(f"pid={pid}," in line for pid in ours)]
        assert len(found) == 2, listening


def test_wrong_secret_is_refused():
    with Workers(1, "tls") as workers:
        with pytest.raises(AuthenticationError, match="attach failed: config push failed during attach: 1 of 1 hosts") as caught:
            attach_to_workers(workers=workers.addresses, secret=b"x" * 32).initialized.get()
        assert caught.value.hosts == {workers.addresses[0]: caught.value.hosts[workers.addresses[0]]}


@pytest.mark.filterwarnings("ignore:.*without encryption")
def test_hosts_that_do_not_join():
    from monarch.config import configured

    with configured(mesh_attach_config_timeout="300ms"), Workers(1, "tls") as workers:
        nobody = "tcp://127.0.0.1:1"
        hosts = attach_to_workers(workers=[*workers.addresses, nobody], secret=str(workers.secret))
        with pytest.raises(AttachError, match=r"1 of 2 hosts did not join: tcp://127.0.0.1:1: connection refused") as caught:
            hosts.initialized.get()
        assert list(caught.value.hosts) == [nobody]
        with pytest.raises(AttachError):
            hosts.spawn_procs()


def test_host_attached_twice_is_one_host():
    with Workers(1) as workers, workers.attach() as hosts:
        echo = hosts.spawn_procs().spawn("echo", Echo)
        again = workers.attach()
        assert again.initialized.get() is True
        assert again == hosts
        assert again.spawn_procs().spawn("echo", Echo).echo.call_one(1).get() == 1
        assert echo.echo.call_one(2).get() == 2


def test_host_attached_by_a_future_is_the_same():
    def later() -> Future[str]:
        port, receiver = Channel[str].open(once=True)
        port.send(workers.addresses[0])
        future = receiver.recv()
        future.get()
        return future

    with Workers(1) as workers:
        first = attach_to_workers(workers=[later()]).spawn_procs().spawn("echo", Echo)
        assert first.echo.call_one(1).get() == 1
        again = attach_to_workers(workers=[later()])
        assert again.spawn_procs().spawn("echo", Echo).echo.call_one(2).get() == 2
        again.shutdown().get()


def test_same_address_twice_is_refused():
    with Workers(1) as workers:
        hosts = attach_to_workers(workers=workers.addresses * 2)
        with pytest.raises(AttachError, match="in the job already"):
            hosts.initialized.get()


@pytest.mark.parametrize(
    ("address", "options", "text"),
    [
        ("tcp://127.0.0.1:1", {}, "needs one of: secret="),
        ("nonsense", {}, "invalid address"),
        ("quic://host:1", {}, "use tls://"),
        ("tcp://127.0.0.1:1", {"secret": b"short"}, "too short"),
        ("tcp://127.0.0.1:1", {"secret": "/nowhere/at/all"}, "secret file /nowhere/at/all: no such file"),
        ("tcp://127.0.0.1:1", {"private_key": b"key"}, "belong together"),
    ],
)
def test_bad_arguments(address: str, options: dict[str, Any], text: str):
    with pytest.raises(ValueError, match=text):
        attach_to_workers(workers=[address], **options)


def test_empty_list_of_workers_is_refused():
    with pytest.raises(ValueError, match="workers is empty"):
        attach_to_workers(workers=[])


def test_secret_that_others_may_read(tmp_path: Any):
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 32)
    path.chmod(0o644)
    with pytest.raises(ValueError, match="others may read it"):
        attach_to_workers(workers=["tcp://127.0.0.1:1"], secret=str(path))


def test_secret_in_a_pipe(tmp_path: Any):
    """The secret comes from the process that starts the worker, and so is in no file. Any process may open a named pipe."""
    with Workers(1, "tls") as workers:
        read, write = os.pipe()
        os.write(write, workers.secret.read_bytes())
        os.close(write)
        workers.options["pass_fds"] = (read,)
        pipe = os.readlink(f"/proc/self/fd/{read}")
        number = workers.start("--secret-file", f"/dev/fd/{read}")
        os.close(read)
        with workers.attach() as hosts:
            hosts.initialized.get()
            # The worker has closed the pipe, and so passes nothing on.
            held: list[str] = []
            for fd in os.listdir(f"/proc/{workers.processes[number].pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # the descriptor was closed meanwhile
                    held.append(os.readlink(f"/proc/{workers.processes[number].pid}/fd/{fd}"))
            assert held and pipe not in held
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ValueError, match="not a file"):
        attach_to_workers(workers=["tcp://127.0.0.1:1"], secret=str(tmp_path / "pipe"))


def worker(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, "worker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)


def test_port_in_use():
    with Workers(1, "tls") as workers:
        address = workers.addresses[0]
        done = worker("--listen", address, "--secret-file", str(workers.secret))
        assert (done.returncode, done.stdout) == (1, "")
        assert f"listen: {address}: Address already in use" in done.stderr


def test_worker_with_an_identity_that_is_known_before():
    ids = [Uid.instance("service") for _ in range(2)]
    named = {"MONARCH_SERVICE_PROC_IDS": ",".join(map(str, ids)), "MONARCH_SERVICE_PROC_RANK": "1"}
    with Workers(1, "tls", env={**os.environ, **named}) as workers:
        (address,) = workers.addresses
        assert workers.published[0]["uid"] == str(ids[1])[len("service<") : -1]
        with pytest.raises(AttachError, match="another agent answers"):
            attach_to_workers(workers=[f"{ids[0]}@{address}"], **workers.trust()).initialized.get()
        with attach_to_workers(workers=[f"{ids[1]}@{address}"], **workers.trust()) as hosts:
            # The variables are the worker's own: its child processes, even workers, have other identities.
            assert hosts.spawn_procs().spawn("echo", Echo).variables.call_one("MONARCH_SERVICE_PROC").get() == []


@pytest.mark.parametrize(
    ("ids", "rank", "text"),
    [
        ("service<2>,service<3>", "2", "MONARCH_SERVICE_PROC_RANK=2, and MONARCH_SERVICE_PROC_IDS has 2 identities"),
        ("service<2>", "one", "MONARCH_SERVICE_PROC_RANK=one"),
        ("service<1>", "0", "not the identity of a process"),
        ("service", "0", "not the identity of a process"),
        (f"service<{'z' * 12}>", "0", "not the identity of a process"),
        ("service<0>", "0", "invalid uid"),
    ],
)
def test_worker_with_a_bad_identity(ids: str, rank: str, text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MONARCH_SERVICE_PROC_IDS", ids)
    monkeypatch.setenv("MONARCH_SERVICE_PROC_RANK", rank)
    done = worker("--listen", "ipc://@nobody-dials-this")
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr


def test_worker_that_would_be_open_to_all():
    done = worker("--listen", "tcp://127.0.0.1:0")
    assert done.returncode == 1
    assert "needs one of: secret=" in done.stderr


def test_worker_ends_on_sigterm():
    with Workers(1) as workers:
        workers.processes[0].terminate()
        assert workers.processes[0].wait() == 0
        assert not (workers.folder / "0").exists()


def test_unused_worker_ends():
    with Workers(0, "tls") as workers:
        # No client has come yet.
        number = workers.start("--idle-timeout", "0.2")
        assert workers.processes[number].wait() == 0


def test_worker_ends_when_its_last_client_has_gone():
    with Workers(0) as workers:
        # Seconds, enough for a client to come, on a busy machine too.
        workers.start("--idle-timeout", "8")
        done = run(ATTACH + CLIENT.replace("sys.argv[1:]", repr(workers.addresses)))
        assert (done.code, done.err, done.left) == (0, "", [])
        assert workers.processes[0].wait() == 0
