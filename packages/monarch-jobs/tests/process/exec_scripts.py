"""Scripts that run commands, in fresh interpreters; and what tests look at processes with."""

from __future__ import annotations

import os

import fresh_script
from eventually import SOURCE
from fresh_script import Done as Done
from fresh_script import wait_for_end

PRELUDE = f"""
import os, signal, sys, threading
from monarch.actor import this_host, shutdown_context
from monarch.job import exec_command

{SOURCE}
def say(word):
    os.write(1, word.encode() + b"\\n")

"""


class Script(fresh_script.Script):
    """As in core's tests, with `exec_command` at hand."""

    def __init__(self, code: str, **options: object) -> None:
        super().__init__(code, **{"prelude": PRELUDE, **options})


def number_after(script: Script, word: str) -> int:
    """The number in the line that begins with `word`."""
    return int(script.until(word).split()[-1])


def kill_and_wait(pid: int, number: int) -> None:
    fd = os.pidfd_open(pid)
    os.kill(pid, number)
    os.close(fd)
    assert wait_for_end(pid)


def all_end(script: Script) -> bool:
    """Whether all that is left of a script ends, which it need not have done yet where the script just vanished."""
    return all(wait_for_end(pid) for pid, _ in script.processes())
