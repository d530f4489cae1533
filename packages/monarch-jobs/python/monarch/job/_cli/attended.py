"""A verb whose work runs in a child process, so that a killed command still ends what the command started on hosts.

    command (the process of the user)  --signals-->  child (the client of the job)
                                       --pipe----->  end of file: the command was killed

Hosts cannot tell a killed client from a client that the network has cut off: without the child they keep its work for the whole lease
(`mesh_orphan_timeout`). The kernel closes the pipe of a killed command at once. The child is in a session of its own: signals of the
terminal and of the process group reach the command only, which passes each of them on once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

# From the first interrupt of an abandoned child to the second one, which kills: descendants of the command are gone within 2 s.
_GRACE = 1.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def attend() -> None:
    """Returns in the child. The parent waits, passes signals on as SIGINT, and exits as the child does.

    A process that may be a client already, or has other threads, goes on by itself.
    """
    if "monarch.actor" in sys.modules or threading.active_count() > 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe2(os.O_CLOEXEC)
    # A signal in between waits until the parent can pass it on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*_PASSED_ON, signal.SIGTSTP])
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.setsid()
        # Ignored in what a shell script starts in the background; here only the parent sends it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        threading.Thread(target=_watch, args=(read,), daemon=True, name="monarch-attended").start()
        return
    os.close(read)
    _wait(pid, before)


def _watch(pipe: int) -> None:
    """In the child: interrupts this process when the parent is gone, as Ctrl-C does, and then as a second Ctrl-C does."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE)
    os.kill(os.getpid(), signal.SIGINT)


def _wait(pid: int, mask: set[int]) -> NoReturn:
    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(pid, signal.SIGINT)

    def pause(number: int, frame: FrameType | None) -> None:
        # Ctrl-Z: both stop, and go on together.
        os.kill(pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)

    for number in _PASSED_ON:
        # What is ignored, as by `nohup`, stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    if signal.getsignal(signal.SIGTSTP) != signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, pause)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # WNOWAIT: until the child is reaped below, its number stands for no other process.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    signal.pthread_sigmask(signal.SIG_BLOCK, [*_PASSED_ON, signal.SIGTSTP])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # Not `sys.exit`: what runs at exit has run in the child.
    os._exit(code if code >= 0 else 128 - code)
