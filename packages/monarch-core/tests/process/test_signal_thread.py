"""Signals are handled at once, whichever thread gets them and whatever the main thread waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from monarch.extension import SignalThread
from tools.bare_interpreter import run_bare
from tools.thread_signals import signal_beside_main_thread

PROGRAM = """
import signal, sys, threading
from monarch.extension import SignalThread, promise

threading.Thread(target=threading.Event().wait, daemon=True).start()
{waiting}
with SignalThread([signal.SIGTERM], end):
    print("waiting", flush=True)
    wait()
print("ended", flush=True)
"""
EVENT = "ended = threading.Event(); end, wait = lambda number: ended.set(), ended.wait"
READ = "import os; read, write = os.pipe(); end, wait = lambda number: os.write(write, b'x'), lambda: os.read(read, 1)"
FUTURE = "ended = promise('the end'); end, wait = lambda number: ended.set_result(number), ended.future.get"


@contextmanager
def started(argv: list[str], line: str) -> Generator[subprocess.Popen[str]]:
    """A process whose first line begins so."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith(line)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("waiting", [EVENT, READ, FUTURE])
@pytest.mark.parametrize("beside", [True, False])
def test_signal_ends_the_wait_of_the_main_thread(waiting: str, beside: bool) -> None:
    argv = [sys.executable, "-W", "error", "-c", PROGRAM.format(waiting=waiting)]
    with started(argv, "waiting\n") as process:
        (signal_beside_main_thread if beside else os.kill)(process.pid, signal.SIGTERM)
        assert process.communicate(timeout=25) == ("ended\n", None)
        assert process.returncode == 0


def test_worker_ends_whichever_thread_gets_the_signal() -> None:
    argv = [sys.executable, "-m", "monarch.extension.cli", "worker", "--listen", "tcp://127.0.0.1:0", "--insecure"]
    with started(argv, "listening at ") as process:
        signal_beside_main_thread(process.pid, signal.SIGTERM)
        assert process.wait(25) == 0


def test_handlers_are_as_before_after_the_end() -> None:
    def before(number: int, frame: object) -> None:
        raise AssertionError("another handler is in force")

    at_first = signal.signal(signal.SIGUSR2, before)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    handled: list[int] = []
    try:
        with SignalThread([signal.SIGUSR2], handled.append):
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGURG)
        # The end waits for the signals that have come.
        assert set(handled) == {signal.SIGUSR2}
        assert signal.getsignal(signal.SIGUSR2) is before
        assert signal.set_wakeup_fd(wakeup) == wakeup
    finally:
        signal.signal(signal.SIGUSR2, at_first)


def test_ignored_signals_stay_ignored() -> None:
    code = """
import os, signal
from monarch.extension import SignalThread
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with SignalThread([signal.SIGHUP, signal.SIGTERM], lambda number: print(number)):
    os.kill(os.getpid(), signal.SIGHUP)
    print(signal.getsignal(signal.SIGHUP).name)
print(signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGTERM).name)
"""
    assert run_bare(code) == "SIG_IGN\nSIG_IGN SIG_DFL\n"


def test_error_of_a_handler_stops_no_later_signal() -> None:
    code = """
import os, signal, sys, threading
from monarch.extension import SignalThread
reported, ended = threading.Event(), threading.Event()
sys.excepthook = lambda kind, error, trace: reported.set()

def handle(number):
    if number == signal.SIGUSR1:
        raise ValueError
    ended.set()

with SignalThread([signal.SIGUSR1, signal.SIGTERM], handle):
    for number, event in ((signal.SIGUSR1, reported), (signal.SIGTERM, ended)):
        os.kill(os.getpid(), number)
        print(event.wait(20))
"""
    assert run_bare(code) == "True\nTrue\n"
