"""A run whose client ignores signals, as under `nohup` or in the background of a script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CLIENT = """
import sys
from monarch.actor import this_host
from monarch.spmd import SPMDFailure, run
try:
    run(this_host(), ["torchrun", "--nproc-per-node=1", sys.argv[1]]).result.get()
except SPMDFailure as failure:
    print(failure.exitcode)
"""
PROGRAM = """
import os, signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL
os.kill(os.getpid(), signal.SIGHUP)
"""


def ignore() -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def test_rank_dies_of_what_its_client_ignores(program: Callable[[str], str], folder: Path) -> None:
    argv = [sys.executable, "-c", CLIENT, program(PROGRAM)]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        argv, env={**os.environ, **paths}, cwd=folder, preexec_fn=ignore, capture_output=True, text=True, check=False, timeout=25
    )
    assert (done.returncode, done.stdout) == (0, f"-{signal.SIGHUP.value}\n"), done.stderr
