"""The daemon as a process: started once, ended by itself, undisturbed by malformed peers; nothing is mounted."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fs_table_builder import build_table

from monarch.actor import Future
from monarch.extension.channel import Channel, ChannelError, connect, make_private
from monarch.fs import FsError
from monarch.fs._daemon import daemon_folder
from monarch.fs._daemon.daemon_client import DaemonClient, MountRequest
from monarch.fs._daemon.daemon_start import reach_daemon
from monarch.fs._store.store import Store
from monarch.fs._tree.node import Kind, Node
from monarch.fs._tree.operations import MountOptions
from tools.frozen import freeze

LIMIT = 20.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Longer than the path of a socket may be.
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / ("long" * 30) / "home"))
    yield daemon_folder.daemon_folder()


def _pid(sock: socket.socket) -> int:
    return Channel(sock).peer()[0]


def _await_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], LIMIT)[0], f"the daemon {pid} does not end"
    finally:
        os.close(descriptor)


def _client(tmp_path: Path, timeout: float = LIMIT) -> DaemonClient:
    def fetch(target: str, tree: str, id: bytes) -> Future[Any]:
        raise AssertionError(f"nothing is mounted: {target}, {tree}, {id!r}")

    return DaemonClient(fetch, store=Store(tmp_path / "store", 1 << 20), timeout=timeout)


def _request(target: str) -> MountRequest:
    table = build_table({b"": Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 1)})
    return MountRequest(target, "tree", "source", table.encode(), MountOptions(), None)


def test_many_starters_start_one_daemon(folder: Path) -> None:
    code = "import sys, pathlib\n"
    code += "from monarch.fs._daemon.daemon_start import reach_daemon\nfrom monarch.extension.channel import Channel\n"
    code += "c = Channel(reach_daemon(pathlib.Path(sys.argv[1])))\nprint(c.peer()[0], flush=True)\nsys.stdin.read()"
    starters = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    pids = set[str]()
    for starter in starters:
        assert starter.stdout is not None
        pids.add(starter.stdout.readline())
    for starter in starters:
        starter.communicate(timeout=LIMIT)
    assert len(pids) == 1 and int(next(iter(pids))) > 0
    _await_end(int(pids.pop()))
    assert not (folder / "s").exists() and "no mounts and no clients" in (folder / "log").read_text()


def test_daemon_has_nothing_of_its_starter(folder: Path) -> None:
    held, other = os.pipe()
    os.set_inheritable(held, True)
    sock = reach_daemon(folder)
    pid = _pid(sock)
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert os.readlink(f"/proc/self/fd/{held}") not in links
    assert os.readlink(f"/proc/{pid}/cwd") == "/" and os.getsid(pid) not in (os.getsid(0), 0)
    assert folder.stat().st_mode & 0o777 == 0o700
    sock.close()
    os.close(held)
    os.close(other)
    _await_end(pid)


def test_malformed_peers_disturb_no_other(folder: Path, tmp_path: Path) -> None:
    client = _client(tmp_path)
    with pytest.raises(FsError, match="cannot be made"):
        client.mount(_request("/proc/none"))
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"MCH1" + b"\xff" * 13,
        b"MCH1\0" + (2).to_bytes(4, "little") + bytes(8) + b"[]",
        os.urandom(5000),
    ):
        with connect(folder, "s") as sock:
            sock.settimeout(LIMIT)
            sock.sendall(data)
            assert sock.recv(100) == b""
    half = connect(folder, "s")
    half.sendall(b"MFS1" + bytes(3))
    flood = [connect(folder, "s") for _ in range(300)]
    with pytest.raises(FsError, match="cannot be made"):
        client.mount(_request("/proc/none"))
    flood[-1].settimeout(LIMIT)
    assert flood[-1].recv(1) == b""
    for sock in [*flood, half]:
        sock.close()
    assert (folder / "log").read_text().count("was refused") == 1
    pid = client.daemon_pid
    client.close()
    _await_end(pid)


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"op": "x"},
        {"op": "mount"},
        {"op": "mount", "target": "a"},
        {"op": "mount", "target": "/a", "owner": 5},
        {"op": "status", "target": "/a"},
    ],
)
def test_malformed_requests_are_answered(folder: Path, head: dict[str, object]) -> None:
    channel = Channel(reach_daemon(folder))
    channel.queue(head | {"call": 7})
    channel.flush()
    select.select([channel], [], [], LIMIT)
    [answer] = channel.receive()
    assert answer.head["call"] == 7 and answer.head["error"]["reason"]
    pid = channel.peer()[0]
    channel.close()
    _await_end(pid)


def test_stopped_daemon_is_named(folder: Path, tmp_path: Path) -> None:
    first = _client(tmp_path)
    with pytest.raises(FsError, match="cannot be made"):
        first.mount(_request("/proc/none"))
    client = _client(tmp_path, timeout=1.0)
    freeze(first.daemon_pid)
    try:
        with pytest.raises(FsError, match=f"/proc/none: the daemon {first.daemon_pid} is stopped and has not answered for 1 s"):
            client.mount(_request("/proc/none"))
    finally:
        os.kill(first.daemon_pid, signal.SIGCONT)
    with pytest.raises(FsError, match="cannot be made"):
        first.mount(_request("/proc/none"))
    assert client.daemon_pid == first.daemon_pid
    client.close()
    first.close()
    _await_end(first.daemon_pid)


def test_request_is_repeated_to_the_next_daemon(folder: Path, tmp_path: Path) -> None:
    client = _client(tmp_path)
    with pytest.raises(FsError, match="cannot be made"):
        client.mount(_request("/proc/none"))
    first = client.daemon_pid
    freeze(first)
    failed: list[Exception] = []

    def ask() -> None:
        try:
            client.mount(_request("/proc/none"))
        except FsError as e:
            failed.append(e)

    asking = threading.Thread(target=ask)
    asking.start()
    os.kill(first, signal.SIGKILL)
    asking.join(LIMIT)
    assert "cannot be made" in str(failed[0]) and client.daemon_pid != first
    client.close()
    _await_end(client.daemon_pid)


def test_daemon_that_cannot_start_is_named(folder: Path, tmp_path: Path) -> None:
    make_private(folder)
    (folder / "lock").mkdir()
    client = _client(tmp_path)
    with pytest.raises(FsError, match="the daemon ended|did not start"):
        client.mount(_request("/proc/none"))
    client.close()


def test_closed_client_refuses_requests(tmp_path: Path) -> None:
    client = _client(tmp_path)
    client.close()
    client.close()
    with pytest.raises(FsError, match="is closed"):
        client.mount(_request("/proc/none"))


def test_channel_of_another_process_ends_with_it(folder: Path) -> None:
    channel = Channel(reach_daemon(folder))
    os.kill(channel.peer()[0], signal.SIGKILL)
    select.select([channel], [], [], LIMIT)
    with pytest.raises(ChannelError):
        channel.receive()
    channel.close()
