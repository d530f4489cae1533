"""A server that is killed and replaced on the same connection, and readers that are killed while they wait."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from fs_mounted import LIMIT, mounted, output, reader

from monarch.fs._kernel import connection
from monarch.fs._kernel.preflight import can_resume
from monarch.fs._tree.operations import DEVICE, PYFUSE3

pytestmark = pytest.mark.usefixtures("back_end")

_STUCK = "fd = os.open(t + '/stuck', os.O_RDONLY)\nprint('open', flush=True)\nprint(os.read(fd, 5), flush=True)"


def _open_reader(target: Path, code: str = _STUCK) -> subprocess.Popen[str]:
    process = reader(code, target)
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    return process


@pytest.mark.skipif(not can_resume(), reason="the kernel is older than 6.9: it cannot send requests again")
def test_reads_survive_killed_servers(tmp_path: Path) -> None:
    with mounted(tmp_path / "m") as (mount, server):
        waiting = _open_reader(mount.target)
        assert server.line() == "waits"
        for _ in range(20):
            server.close()
            server = mount.serve("resumed")
            assert server.line() == "waits"
        assert output("print(open(t + '/small').read(), len(os.listdir(t + '/dir')))", mount.target) == "hello 300"
        assert server.ask("change small other") is None
        assert output("print(open(t + '/small').read())", mount.target) == "other"
        assert not server.ask("counters")["opens"]
        server.ask("finish")
        assert waiting.communicate(timeout=LIMIT)[0] == "b'never'\n"


@pytest.mark.skipif(not can_resume(), reason="the kernel is older than 6.9: it cannot send requests again")
def test_server_killed_before_it_initialised_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "m"
    target.mkdir()
    with mounted(target) as (mount, server):
        server.ask("counters")
        server.send("stop")
        # The process ends with or before the thread that acknowledges the command.
        assert "ended" in (server.line(), server.line())
        # Requests wait for the next server, which starts without sending a look-up.
        waiting = reader("print(open(t + '/small').read())", target)
        mount.serve("resumed")
        assert waiting.communicate(timeout=LIMIT)[0] == "hello\n"


@pytest.mark.skipif(not can_resume(), reason="the kernel is older than 6.9: it cannot send requests again")
def test_stopped_server_leaves_its_requests_to_the_next(tmp_path: Path) -> None:
    with mounted(tmp_path / "m") as (mount, server):
        waiting = _open_reader(mount.target)
        assert server.line() == "waits"
        server.send("stop")
        assert "ended" in (server.line(), server.line())
        server = mount.serve("resumed")
        assert server.line() == "waits"
        server.ask("finish")
        assert waiting.communicate(timeout=LIMIT)[0] == "b'never'\n"


@pytest.mark.skipif(not can_resume(), reason="the kernel is older than 6.9: it cannot send requests again")
def test_other_back_end_takes_a_connection_over(tmp_path: Path, back_end: str) -> None:
    pytest.importorskip("pyfuse3")
    other = {"BACKEND": DEVICE if back_end == PYFUSE3 else PYFUSE3}
    with mounted(tmp_path / "m") as (mount, server):
        waiting = _open_reader(mount.target)
        assert server.line() == "waits"
        server.close()
        server = mount.serve("resumed", environment=other)
        assert server.line() == "waits"
        assert output("print(open(t + '/small').read(), len(os.listdir(t + '/dir')))", mount.target) == "hello 300"
        server.ask("finish")
        assert waiting.communicate(timeout=LIMIT)[0] == "b'never'\n"


def test_killed_reader_leaves_at_once(tmp_path: Path) -> None:
    with mounted(tmp_path / "m") as (mount, server):
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            waiting = _open_reader(mount.target, "import signal; signal.signal(2, signal.SIG_DFL)\n" + _STUCK)
            if number == signal.SIGKILL:
                # Later readers wait for the same page, without their own request.
                assert server.line() == "waits"
            waiting.send_signal(number)
            assert waiting.wait(LIMIT) == -number
            waiting.communicate()
        assert output("print(open(t + '/small').read())", mount.target) == "hello"


def test_killed_process_leaves_its_lookup(tmp_path: Path) -> None:
    with mounted(tmp_path / "m", "live") as (mount, server):
        waiting = reader("os.stat(t + '/slow')", mount.target)
        assert server.line() == "looks"
        waiting.kill()
        assert waiting.wait(LIMIT) == -signal.SIGKILL
        waiting.communicate()
        assert output("print(open(t + '/small').read())", mount.target) == "hello"


def test_signal_interrupts_request_of_reader(tmp_path: Path) -> None:
    code = """
import mmap, signal
def left(*_): raise ZeroDivisionError
signal.signal(signal.SIGUSR1, left)
fd = os.open(t + "/stuck", os.O_RDONLY | os.O_DIRECT)
print("open", flush=True)
try: os.preadv(fd, [mmap.mmap(-1, 4096)], 0)
except ZeroDivisionError: print("left")
"""
    with mounted(tmp_path / "m") as (mount, server):
        waiting = _open_reader(mount.target, code)
        assert server.line() == "waits"
        waiting.send_signal(signal.SIGUSR1)
        assert waiting.communicate(timeout=LIMIT)[0] == "left\n"
        assert server.ask("counters")["interrupt"] == 1


def test_aborted_connection_frees_readers_and_server(tmp_path: Path) -> None:
    with mounted(tmp_path / "m") as (mount, server):
        waiting = _open_reader(mount.target)
        assert server.line() == "waits"
        connection.abort(mount.connection.device)
        text = waiting.communicate(timeout=LIMIT)[0]
        assert "Error" in text and waiting.returncode == 1
        assert server.line() == "ended" and server.process.wait(LIMIT) == 0


def test_connection_without_any_holder_is_dead(tmp_path: Path) -> None:
    target = tmp_path / "m"
    with mounted(target) as (mount, server):
        assert connection.mount_point(str(target)).kind == "live"
        spare = os.dup(mount.connection.fd)
        os.close(mount.connection.fd)
        server.close()
        # The descriptor alone keeps the connection: no server answers, and the mount is not dead.
        assert connection.mount_point(str(target)).kind == "live"
        os.close(spare)
        assert connection.mount_point(str(target)) == connection.MountPoint("dead", ("fuse.monarch", "a tree"), mount.connection.device)
        connection.detach(str(target), lazy=False)
        assert connection.mount_point(str(target)).kind == "free"
        mount.connection = connection.open_connection(str(target), connection.MountOptions())
        mount.serve()
        assert output("print(open(t + '/small').read())", target) == "hello"
