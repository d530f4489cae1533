"""What threads and programs of this process wait for, as the kernel shows it."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually

from monarch._core.observe.kernel_waits import kernel_waits

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the numbers of the system calls are not known")


@contextmanager
def thread_in(wait: Callable[[], object], end: Callable[[], object]) -> Iterator[Callable[[], dict[str, Any]]]:
    """A thread that waits until `end`; gives a function that returns its row."""
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()

    def row() -> dict[str, Any]:
        assert thread.ident is not None
        return next(iter(kernel_waits([thread.ident])["threads"]), {})

    try:
        yield row
    finally:
        end()
        thread.join()


def test_reader_of_a_pipe_shows_both_ends() -> None:
    reads, writes = os.pipe()
    with thread_in(lambda: os.read(reads, 1), lambda: os.write(writes, b"1")) as row:
        seen = eventually("the thread reads", row)
        assert (seen["call"], seen["descriptor"], seen["readers"], seen["writers"]) == ("read", reads, [os.getpid()], [os.getpid()])
    os.close(reads)
    os.close(writes)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_connection_that_is_not_accepted_names_its_listener(timeout: float | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout) as client:

        def end() -> None:
            server.accept()[0].close()

        with thread_in(lambda: client.recv(1), end) as row:
            seen = eventually("the thread waits", row)
            assert seen["there"] == f"127.0.0.1:{server.getsockname()[1]}"
            assert seen["accepted"] is False and [pid for pid, _ in seen["peers"]] == [os.getpid()]
            assert 0.0 <= seen["sent"] < 60.0
        # The other end has closed; a new connection is accepted.
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server, socket.create_connection(server.getsockname()[:2]) as client:
        accepted, _ = server.accept()
        with accepted, thread_in(lambda: client.recv(1), lambda: accepted.send(b"1")) as row:
            assert eventually("the thread waits", row)["accepted"] is True


def test_lock_of_a_file_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as held, path.open("w") as wanted:
        fcntl.flock(held, fcntl.LOCK_EX)
        with thread_in(lambda: fcntl.flock(wanted, fcntl.LOCK_EX), lambda: fcntl.flock(held, fcntl.LOCK_UN)) as row:
            seen = eventually("the thread waits", row)
            assert (seen["call"], seen["target"], seen["holder"]) == ("lock", str(path), os.getpid())


_HOLD = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+")
if sys.argv[2] == "flock":
    fcntl.flock(file, fcntl.LOCK_EX)
else:
    fcntl.fcntl(file, 38, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_program(path: Path, kind: str = "flock") -> Iterator[int]:
    """The pid of a program that has the lock of a file."""
    path.touch()
    with subprocess.Popen([sys.executable, "-c", _HOLD, path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdin is not None
        program.stdout.readline()
        yield program.pid
        program.stdin.close()


def test_each_thread_names_the_holder_of_its_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with first.open("w") as one, second.open("w") as other, held_by_program(first) as pid, held_by_program(second) as other_pid:
        threads = [threading.Thread(target=fcntl.flock, args=(file, fcntl.LOCK_EX)) for file in (one, other)]
        for thread in threads:
            thread.start()
        idents = [thread.ident for thread in threads if thread.ident is not None]
        rows = eventually("both threads wait", lambda: kernel_waits(idents)["threads"], lambda found: len(found) == 2)
        assert {row["target"]: row["holder"] for row in rows} == {str(first): pid, str(second): other_pid}
    for thread in threads:
        thread.join()


def test_lock_of_an_open_file_names_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    with held_by_program(path, "file") as pid, path.open("w") as file:
        thread = threading.Thread(target=fcntl.fcntl, args=(file, 38, wanted), daemon=True)
        thread.start()
        assert thread.ident is not None
        [row] = eventually("the thread waits", lambda: kernel_waits([thread.ident or 0])["threads"])
        assert (row["holder"], row["target"]) == (pid, str(path))
    thread.join()


def test_inherited_lock_names_a_living_process(tmp_path: Path) -> None:
    """The process that took the lock has ended; its child still has the open file."""
    path = tmp_path / "lock"
    code = (
        "import fcntl, os, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "child = os.fork()\nif child: print(child, flush=True); os._exit(0)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdin is not None
        child = int(program.stdout.readline())
        program.wait()
        with path.open("w") as file:
            thread = threading.Thread(target=fcntl.flock, args=(file, fcntl.LOCK_EX), daemon=True)
            thread.start()
            assert thread.ident is not None
            [row] = eventually("the thread waits", lambda: kernel_waits([thread.ident or 0])["threads"])
            # In a container the kernel hides a lock whose process has ended.
            assert row["holder"] in (child, 0)
            program.stdin.close()
            thread.join()


def test_program_with_a_full_pipe_is_shown() -> None:
    code = "print('x' * 10_000_000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:

        def end() -> None:
            program.kill()

        with thread_in(lambda: os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT), end) as row:

            def full() -> dict[str, Any]:
                idents = [one.ident for one in threading.enumerate() if one.ident is not None]
                programs = kernel_waits(idents)["programs"]
                return next((one["wait"] for one in programs if one["pid"] == program.pid and one["wait"]), {})

            seen = eventually("the program waits for room", full, lambda one: one.get("call") == "write")
            assert (seen["descriptor"], seen["writers"], seen["readers"]) == (1, [program.pid], [os.getpid()])
            assert eventually("the thread waits", row) == {**row(), "call": "child", "child": program.pid}
