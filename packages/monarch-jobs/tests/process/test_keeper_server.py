"""What a keeper does with its clients, its clock, its log and its directory; the server runs on a thread of the test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually

from monarch.actor import this_host
from monarch.extension.channel import Channel, ChannelEnded, ChannelError, Message
from monarch.job import CredentialsError, KeptService
from monarch.job._client import keeper_channel
from monarch.job._keeper import bounded_log
from monarch.job._keeper.idle_time import IdleTime
from monarch.job._keeper.keeper_server import KeeperServer
from monarch.job._keeper.kept_services import KeptServices


class Bell(KeptService):
    stopped = 0

    def __init__(self) -> None:
        self.is_busy = True

    def start(self, hosts: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
        self.is_busy = config["busy"]
        return {"hosts": list(hosts)}

    def stop(self) -> None:
        type(self).stopped += 1

    def status(self) -> Mapping[str, Any]:
        raise OSError("no status")

    def busy(self) -> bool:
        return self.is_busy


class Running:
    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.folder = folder
        self.log = folder / "log"
        self.descriptor = keeper_channel.opened(str(folder))
        self.server = KeeperServer(
            self.descriptor,
            str(self.log),
            lambda: {"hosts": this_host()},
            KeptServices(lambda name: Bell()),
            clock=lambda: self.now,
            idle=IdleTime(0.0),
            tick=0.02,
        )
        self.why: list[str] = []
        self.thread = threading.Thread(target=lambda: self.why.append(self.server.run()))
        self.thread.start()

    def connect(self) -> Channel:
        channel = keeper_channel.connect(str(self.folder), 5.0)
        assert channel is not None and channel.take(5.0).head == {"keeper": os.getpid()}
        return channel

    def ask(self, message: dict[str, Any]) -> dict[str, Any] | None:
        channel = self.connect()
        try:
            channel.send(message)
            return channel.take(5.0).head
        finally:
            channel.close()

    def ended(self) -> str:
        self.thread.join(20.0)
        assert self.why, "the keeper does not end"
        return self.why[0]


@pytest.fixture
def running(tmp_path: Path) -> Generator[Running]:
    folder = tmp_path / ("long" * 30) / "keeper"
    folder.mkdir(0o700, parents=True)
    Bell.stopped = 0
    found = Running(folder)
    yield found
    found.server.end("the test is over")
    found.thread.join()
    os.close(found.descriptor)


def bell(*, busy: bool) -> dict[str, Any]:
    return {"do": "serve", "service": "bell", "key": "x", "config": {"busy": busy}}


def test_idle_keeper_ends_without_stopping_finished_services(running: Running) -> None:
    assert running.ask(bell(busy=True)) == {"hosts": ["hosts"]}
    running.now = 4000.0
    assert running.ask(bell(busy=True)) == {"hosts": ["hosts"]}  # the service is busy, so an hour counts as nothing
    assert running.ask({**bell(busy=False), "key": "x"}) == {"hosts": ["hosts"]}
    assert Bell.stopped == 1  # the service of the other configuration
    running.now += 3599.0
    assert running.ask({"do": "status"}) is not None
    running.now += 4000.0
    assert running.ended() == "idle"
    assert Bell.stopped == 1
    assert not (running.folder / "socket").exists()


def test_end_stops_all(running: Running) -> None:
    running.ask(bell(busy=True))
    running.server.end("asked to")
    assert (running.ended(), Bell.stopped) == ("asked to", 1)
    assert keeper_channel.connect(str(running.folder), 1.0) is None


def test_removed_directory_ends_it(running: Running) -> None:
    running.ask(bell(busy=True))
    (running.folder / "socket").unlink()
    running.folder.rmdir()
    assert (running.ended(), Bell.stopped) == ("its directory is gone", 1)


def _frame(head: bytes) -> bytes:
    return b"MCH1\0" + len(head).to_bytes(4, "little") + bytes(8) + head


@pytest.mark.parametrize(
    "data",
    [
        b"\0\xff\n" * 10,
        _frame(b"[]"),
        _frame(b"1"),
        _frame(b"[" * 100_000),
        _frame(b'{"do": NaN}'),
        _frame(b'{"do": "fly", "service": "a", "key": "b"}'),
        _frame(b'{"do": "serve"}'),
        _frame(b'{"do": "serve", "service": "a", "key": 1, "config": {}}'),
        _frame(b'{"do": "serve", "service": "a", "key": "b", "config": []}'),
        _frame(b'{"do": "stop", "service": "", "key": "b"}'),
        b"MCH1\0" + (1 << 25).to_bytes(4, "little") + bytes(8),
        b"MCH1\0" + (2).to_bytes(4, "little") + (1).to_bytes(8, "little") + b"{}x",
        b"half a frame",
        b"",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_malformed_request_is_refused_and_the_next_served(running: Running, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        descriptor = os.open(running.folder, os.O_RDONLY)
        raw.connect(f"/proc/self/fd/{descriptor}/socket")
        os.close(descriptor)
        raw.settimeout(10.0)
        try:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before it was complete
        channel = Channel(raw.dup())
    answers: list[Message] = []
    with pytest.raises(ChannelError):
        while True:
            answers.append(channel.take(10.0))
    channel.close()
    assert all("error" in answer.head for answer in answers[1:])
    status = running.ask({"do": "status"})
    assert status is not None and status["services"] == []


def test_service_whose_status_raises_is_listed(running: Running) -> None:
    running.ask(bell(busy=True))
    status = running.ask({"do": "status"})
    assert status is not None and status["services"][0]["detail"] == {"error": "OSError: no status"}


def test_many_connections_that_send_nothing(running: Running) -> None:
    held = [running.connect() for _ in range(64)]
    refused = keeper_channel.connect(str(running.folder), 5.0)
    assert refused is not None
    with pytest.raises(ChannelEnded):
        refused.take(5.0)
    for channel in [*held, refused]:
        channel.close()


OTHER_USER = """
import os, socket, sys
folder = os.open(sys.argv[1], os.O_PATH)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as raw:
    raw.connect(f"/proc/self/fd/{folder}/socket")
    raw.settimeout(10.0)
    print(repr(raw.recv(100)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, and this user is not root")
def test_other_user_is_refused(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    def ask() -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", OTHER_USER, str(running.folder)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)

    assert "PermissionError" in ask().stderr
    # The check also notices changed modes.
    running.folder.chmod(0o711)
    (running.folder / "socket").chmod(0o666)
    found = ask()
    assert (found.stdout, found.stderr) == ("b''\n", "")
    assert "the peer is of uid 65534, not 0" in capfd.readouterr().out
    with pytest.raises(CredentialsError, match="is open to others"):
        keeper_channel.connect(str(running.folder), 1.0)


def test_log_is_bounded(running: Running) -> None:
    lines = [f"line {number}\n" for number in range(200_000)]
    with running.log.open("a") as f:
        f.writelines(lines)
        f.flush()
        eventually("the log is shortened", lambda: running.log.stat().st_size <= bounded_log.MOST_BYTES, seconds=20.0)
        # The descriptor of the process goes on at the end of the shortened file.
        f.write("the last\n")
    found = running.log.read_text().splitlines()
    assert found[0] == "(older lines are removed)" and found[-2:] == ["line 199999", "the last"]
    assert set(found[1:-1]) <= {line.rstrip() for line in lines}


def test_messages_that_are_too_large_are_not_sent(running: Running) -> None:
    channel = running.connect()
    with pytest.raises(ValueError, match="too large"):
        channel.send({"do": "x" * (16 << 20)})
    channel.close()
