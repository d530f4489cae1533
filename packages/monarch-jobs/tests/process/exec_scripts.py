"""Scripts that run commands, in fresh interpreters; and what tests look at processes with."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

# The tests of core have what runs a script and tells what it left behind.
_CORE_TESTS = Path(__file__).resolve().parents[3] / "monarch-core" / "tests" / "process"
if str(_CORE_TESTS) not in sys.path:
    sys.path.append(str(_CORE_TESTS))
_fresh_script = importlib.import_module("fresh_script")

Done = _fresh_script.Done
wait_for_end = _fresh_script.wait_for_end

PRELUDE = """
import os, signal, sys, threading
from monarch.actor import this_host, shutdown_context
from monarch.job import exec_command

def say(word):
    os.write(1, word.encode() + b"\\n")

"""


class Script(_fresh_script.Script):
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
