"""Programs whose actors wait for things outside of the job: locks of files, programs, pipes, connections, their standard input."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

from bench.faults.program import Fault, rest
from monarch.actor import Actor, current_rank, endpoint, this_host

_OUTPUT = "print('a line of a report\\n' * 10_000)"
_LOCK = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


class Writer(Actor):
    """Writes checkpoints under the lock of a file."""

    @endpoint
    def save(self, path: str) -> None:
        with Path(path).open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    @endpoint
    def save_in_order(self, path: str, others: Any) -> None:
        """Rank 0 calls the others while it has the lock that they need."""
        with Path(path).open("w", encoding="utf-8") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            others.save_by_range.call(path).get()

    @endpoint
    def save_by_range(self, path: str) -> None:
        with Path(path).open("w", encoding="utf-8") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)


class Worker(Actor):
    """Uses programs and services."""

    def __init__(self) -> None:
        self.registry = threading.Lock()

    @endpoint
    def convert(self) -> int:
        """Reads the output of a program only when it has ended."""
        program = subprocess.Popen([sys.executable, "-c", _OUTPUT], stdout=subprocess.PIPE)
        return program.wait()

    @endpoint
    def fork(self) -> None:
        """Forks while another thread has a lock."""
        held, forked = threading.Event(), threading.Event()

        def keep() -> None:
            with self.registry:
                held.set()
                forked.wait()

        thread = threading.Thread(target=keep)
        thread.start()
        held.wait()
        child = multiprocessing.get_context("fork").Process(target=self._register)
        child.start()
        forked.set()
        thread.join()
        child.join()

    def _register(self) -> None:
        with self.registry:
            pass

    @endpoint
    def fetch(self, port: int) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/rewards") as answer:
            return answer.read()

    @endpoint
    def confirm(self) -> str:
        if current_rank().rank != 1:
            return "y"
        terminal, _ = os.openpty()
        os.dup2(terminal, 0)
        return os.read(0, 1).decode()


def _workers() -> Any:
    return this_host().spawn_procs({"gpus": 3}, name="procs").spawn("worker", Worker)


def _file() -> str:
    return os.path.join(tempfile.mkdtemp(prefix="outside-"), "checkpoints.lock")


def file_lock() -> None:
    path = _file()
    # Its input ends with this process.
    other = subprocess.Popen([sys.executable, "-c", _LOCK, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    rest(this_host().spawn_procs({"gpus": 3}, name="procs").spawn("writer", Writer).save.call(path))


def file_lock_and_call() -> None:
    writers = this_host().spawn_procs({"gpus": 3}, name="procs").spawn("writer", Writer)
    rest(writers.slice(gpus=0).save_in_order.call_one(_file(), writers.slice(gpus=slice(1, 3))))


def full_pipe() -> None:
    rest(_workers().convert.call())


def lock_over_fork() -> None:
    rest(_workers().fork.call())


def not_accepted() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    rest(_workers().fetch.call(server.getsockname()[1]))


def standard_input() -> None:
    rest(_workers().confirm.call())


FAULTS = (
    Fault("file_lock", file_lock, r"writer rank 0 .*in save .*and so do 2 more: process \S+ \(pid \d+\) holds the lock of /\S+\.lock", 6.0),
    Fault("file_lock_and_call", file_lock_and_call, r"writer rank \d .*waits .*for the lock of /\S+ of writer rank 0.*: a cycle of 2", 6.0),
    Fault("full_pipe", full_pipe, r"worker rank 0 .*in convert .*its program \S+ \(pid \d+\) cannot end: its standard output is full", 6.0),
    Fault("lock_over_fork", lock_over_fork, r"worker rank 0 .*in fork .*\(pid \d+\) was forked while a thread held a lock", 6.0),
    Fault("not_accepted", not_accepted, r"worker rank 0 .*in fetch .*listens at 127\.0\.0\.1:\d+, has not accepted the connection", 6.0),
    Fault("standard_input", standard_input, r"worker rank 1 of 3 .*in confirm .*reads its standard input, where no input comes", 6.0),
)
