"""What a killed client, daemon or mount server leaves, under readers."""

from __future__ import annotations

import ctypes
import hashlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fs_daemon_source import LIMIT, Source, content, output

from monarch.fs._daemon.daemon_client import DaemonClient
from monarch.fs._kernel.preflight import can_resume, problems
from monarch.fs._tree.difference import difference
from monarch.fs._tree.operations import DEVICE, PYFUSE3
from tools.frozen import freeze

pytestmark = [
    pytest.mark.skipif(bool(problems()), reason=f"cannot mount: {problems()}"),
    pytest.mark.skipif(not can_resume(), reason="the kernel is older than 6.9: it cannot send requests again"),
]
# For each line of input: reads all files in pieces without the page cache, several times, and prints one line.
_READER = """
import hashlib, os, sys
t, want = sys.argv[1], sys.argv[2].split(',')
for _ in sys.stdin:
    wrong = 0
    for i in list(range(8)) * 3:
        fd = os.open(f'{t}/{i}', os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        data = b''.join(os.pread(fd, 65536, o) for o in range(0, 200_000, 65536))
        os.close(fd)
        wrong += hashlib.sha256(data).hexdigest() != want[i]
    print('wrong' if wrong else 'right', flush=True)
"""


class Readers:
    """Four processes that read all the time."""

    def __init__(self, target: str, contents: list[bytes]) -> None:
        sums = ",".join(hashlib.sha256(content).hexdigest() for content in contents)
        command = [sys.executable, "-I", "-S", "-c", _READER, target, sums]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(4)
        ]

    def begin(self) -> None:
        """Each reader begins a round of reads."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def finish(self) -> None:
        """Waits until each reader has ended the round, without an error."""
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "right\n", line + process.stdout.read(2000)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait(LIMIT)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()


def _read_by_four(source: Source, client: DaemonClient) -> Readers:
    contents = [bytes([i]) * 100_000 + os.urandom(100_000) for i in range(8)]
    client.mount(source.request(source.table({str(i).encode(): content for i, content in enumerate(contents)})))
    return Readers(source.target, contents)


def _killed(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    os.close(descriptor)


def test_readers_survive_killed_servers(source: Source) -> None:
    client = source.client()
    with _read_by_four(source, client) as readers:
        for _ in range(int(os.environ.get("MONARCH_FS_KILLS", "12"))):
            server = client.status(source.target).server
            readers.begin()
            _killed(server)
            readers.finish()
    assert client.status(source.target).last_error == ""


def test_readers_survive_killed_daemons(source: Source) -> None:
    client = source.client()
    with _read_by_four(source, client) as readers:
        for _ in range(8):
            server = client.status(source.target).server
            readers.begin()
            _killed(client.daemon_pid)
            readers.finish()
            assert client.status(source.target).server == server
    assert client.status(source.target).last_error == ""


def test_mount_is_made_anew_when_all_are_killed(source: Source) -> None:
    client = source.client()
    old, new = source.table({b"a": b"old"}), source.table({b"a": b"new"})
    client.mount(source.request(old))
    client.stage(source.target, difference(old, new))
    client.commit(source.target, new.generation)
    status = client.status(source.target)
    freeze(status.server)
    _killed(client.daemon_pid)
    _killed(status.server)
    assert client.status(source.target).generation == new.generation
    assert content(source.target, "a") == "new"


def test_commit_survives_a_killed_server(source: Source) -> None:
    client = source.client()
    old, new = source.table({b"a": b"old"}), source.table({b"a": b"new"})
    client.mount(source.request(old))
    client.stage(source.target, difference(old, new))
    _killed(client.status(source.target).server)
    client.commit(source.target, new.generation)
    assert content(source.target, "a") == "new"


def test_aborted_connection_is_mounted_anew(source: Source) -> None:
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one"})))
    before = client.status(source.target).server
    # MNT_FORCE aborts the connection, and does not unmount a mount in use.
    held = os.open(source.target, os.O_RDONLY)
    assert ctypes.CDLL(None).umount2(os.fsencode(source.target), 1) == -1
    # The daemon notices it before it answers, or the old server answered before it ended.
    status = client.status(source.target)
    if status.server == before:
        _await_end(before, lambda: None)
        status = client.status(source.target)
    assert status.server != before and content(source.target, "a") == "one"
    os.close(held)


def test_crashing_servers_do_not_crash_forever(source: Source) -> None:
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one"})))
    status = client.status(source.target)
    # No server can restore such a state; the mount is created again from its table.
    for saved in next((source.folder / "home" / "fs").glob("daemon-*/m/*")).joinpath("state").iterdir():
        saved.write_bytes(b"damaged")
    _killed(status.server)
    _await_end(status.server, lambda: None)
    status = client.status(source.target)
    assert "mount servers in a row ended at once" in status.daemon_error and content(source.target, "a") == "one"


_CLIENT = """
import os, sys
from fs_daemon_source import Source
from pathlib import Path
source = Source(Path(sys.argv[1]))
client = source.client()
client.mount(source.request(source.table({b'a': b'one'}), backend=os.environ["BACKEND"]))
print(client.daemon_pid, flush=True)
sys.stdin.read()
"""


def test_killed_client_releases_its_mount(source: Source, back_end: str) -> None:
    keeper = source.client()
    other = source.request(source.table({b"x": b"y"}), target=f"{source.folder}/other")
    keeper.mount(other)
    process, daemon = _client_process(source)
    assert daemon == keeper.daemon_pid
    assert source.mounted()
    # The next client takes over the mount within the grace period: it is the same server.
    server = _server(source)
    process.kill()
    process.communicate()
    follower = source.client()
    follower.mount(source.request(source.table({b"a": b"one"}), backend=back_end))
    assert follower.status(source.target).server == server
    _await_end(server, lambda: follower.close())
    assert not source.mounted()


def test_killed_client_leaves_an_empty_directory(source: Source, back_end: str) -> None:
    """No client follows: the daemon unmounts, and no reader gets ENOTCONN."""
    keeper = source.client()
    keeper.mount(source.request(source.table({b"x": b"y"}), target=f"{source.folder}/other"))
    process, _ = _client_process(source)
    assert content(source.target, "a") == "one"
    server = _server(source)
    assert _backend(server) == back_end

    def kill() -> None:
        process.kill()
        process.communicate()

    _await_end(server, kill)
    assert not source.mounted() and output("print(os.path.exists(t) and os.listdir(t))", source.target) in ("[]", "False")


def test_mount_without_any_process_is_replaced(source: Source, back_end: str) -> None:
    """Client, daemon and mount server are killed: the next client mounts at the same place, where readers got ENOTCONN."""
    process, daemon = _client_process(source)
    server = _server(source)
    assert _backend(server) == back_end

    def kill() -> None:
        for pid in (daemon, server, process.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (daemon, server, process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()

    _await_end(server, kill)
    follower = source.client()
    follower.mount(source.request(source.table({b"a": b"two"}), backend=back_end))
    assert content(source.target, "a") == "two"
    _await_end(_server(source), lambda: follower.close())
    assert not source.mounted()


def _client_process(source: Source) -> tuple[subprocess.Popen[str], int]:
    """A process with a mount, and the pid of the daemon."""
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[1]}"}
    process = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, str(source.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def _backend(server: int) -> str:
    """The back end of a mount server: only the one over pyfuse3 has loaded it."""
    return PYFUSE3 if "pyfuse3" in Path(f"/proc/{server}/maps").read_text() else DEVICE


def _server(source: Source) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"monarch.fs._daemon.mount_server" in words and os.fsencode(str(source.folder)) in b" ".join(words):
            folder = Path(os.fsdecode(words[words.index(b"monarch.fs._daemon.mount_server") + 1]))
            if source.target in (folder / "record").read_text():
                return int(entry.name)
    raise AssertionError("no mount server")


def _await_end(pid: int, action: Callable[[], object]) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        # The process has already ended.
        action()
        return
    try:
        action()
        assert select.select([descriptor], [], [], LIMIT)[0], "the mount server does not end"
    finally:
        os.close(descriptor)


def test_mount_without_clients_and_daemon_ends(source: Source, back_end: str) -> None:
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one"}), backend=back_end))
    server = client.status(source.target).server

    def kill() -> None:
        # Closed without releasing the mount, as after SIGKILL.
        with client._lock:
            client._mounts.clear()
        daemon = client.daemon_pid
        freeze(daemon)
        client.close()
        os.kill(daemon, signal.SIGKILL)

    _await_end(server, kill)
    assert not source.mounted()
