"""Commands, tunnels and copies on hosts that have been attached."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import monarch
from eventually import eventually
from exec_scripts import wait_for_end

from monarch.actor import HostMesh, SupervisionError, this_proc
from monarch.job import ExecError, PortForwarder, ProcessJob, exec_command
from monarch.job._client.copy import download, upload


@pytest.fixture
def hosts(folder: Path) -> Iterator[HostMesh]:
    job = ProcessJob({"hosts": 2})
    try:
        yield job.state(cached_path=None)["hosts"]
    finally:
        job.kill()


def test_ranks_of_several_hosts(hosts: HostMesh, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    words = ["sh", "-c", "echo $MONARCH_RANK_HOSTS/$MONARCH_SIZE_HOSTS $MONARCH_RANK_GPUS; echo e >&2; exit $MONARCH_RANK_HOSTS"]
    assert exec_command(hosts, words, per_host={"gpus": 2}).get() == 1
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] 0/2 0", "[1] 0/2 1", "[2] 1/2 0", "[3] 1/2 1"]
    assert sorted(err.splitlines()) == ["[0] e", "[1] e", "[2] e", "[3] e"]
    assert exec_command(hosts, words, point={"hosts": 1}).get() == 1
    assert capfd.readouterr() == ("1/2\n", "e\n")
    assert exec_command(hosts, ["echo", "word"], output_dir=f"{folder}/$SUBDIR").get() == 0
    assert (folder / "hosts_1/stdout.txt").read_text() == "word\n"
    with pytest.raises(ExecError, match="cannot start 'no-such-program'"):
        exec_command(hosts, ["no-such-program"], rank=1).get()


def test_much_output_of_an_attached_host(hosts: HostMesh, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert exec_command(hosts, ["sh", "-c", "yes 0123456789abcde | head -n 1000000"], rank=1).get() == 0
    assert capfdbinary.readouterr().out == b"0123456789abcde\n" * 1_000_000


def test_command_runs_on_a_slice_of_hosts(hosts: HostMesh, capfd: pytest.CaptureFixture[str]) -> None:
    assert exec_command(hosts.slice(hosts=1), ["echo", "one"]).get() == 0
    assert capfd.readouterr().out == "one\n"


def test_shutdown_of_the_hosts_ends_a_command(hosts: HostMesh, folder: Path) -> None:
    os.mkfifo(folder / "pid")
    future = exec_command(hosts, ["sh", "-c", f"echo $$ > {folder}/pid; exec sleep 1000"], rank=0)
    pid = int((folder / "pid").read_text())
    hosts.shutdown().get()
    assert isinstance(future.exception(), SupervisionError)
    assert wait_for_end(pid)


def test_tunnel_reaches_an_attached_host(hosts: HostMesh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, hosts.slice(hosts=1).spawn_procs() as procs:
        forwarder = this_proc().spawn("forwarder", PortForwarder)
        forwarder.forward.call_one(procs, server.getsockname()[1], this_proc(), "0").get()
        host, _, port = forwarder.addresses.call_one().get()[0].rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"x" * 1_000_000)
            received = 0
            while data := client.recv(1 << 20):
                received += len(data)
            assert received == 1_000_000
        forwarder.stop().get()


def test_copies_to_and_from_several_hosts(hosts: HostMesh, folder: Path) -> None:
    (folder / "tree").mkdir()
    (folder / "tree/file").write_bytes(os.urandom(3_000_000))
    assert upload(str(folder / "tree"), hosts.slice(hosts=0), f"{folder}/there") == []
    assert download(hosts, f"{folder}/there", str(folder / "back")) == []
    for rank in range(2):
        assert (folder / f"back/hosts_{rank}/there/file").read_bytes() == (folder / "tree/file").read_bytes()


def test_output_of_a_job_goes_with_its_workers(folder: Path) -> None:
    temporary = folder / "temporary"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary), "MONARCH_HOME": str(folder / "home")}

    def left() -> list[str]:
        return sorted(str(path.relative_to(temporary)).partition("/")[2] for path in temporary.glob("*/**/stdout.txt"))

    job, following = ProcessJob({"first": 2, "second": 1}, env), ProcessJob({"hosts": 1}, env)
    job.state()
    try:
        assert monarch("exec", "--all", "--", "true")[0] == 0
        assert left() == ["first/hosts_0/stdout.txt", "first/hosts_1/stdout.txt", "second/hosts_0/stdout.txt"]
        # A killed worker removes nothing: the next one of this user on the host does.
        assert job._ids is not None
        killed = job._ids["workers"][0]["pid"]
        os.kill(killed, signal.SIGKILL)
        assert wait_for_end(killed)
        job.kill()
        assert left() == ["first/hosts_0/stdout.txt"]
        following.state(cached_path=None)["hosts"].initialized.get()
        eventually("what the killed worker has left", left, lambda found: found == [])
    finally:
        job.kill()
        following.kill()
    assert list(temporary.iterdir()) == []
