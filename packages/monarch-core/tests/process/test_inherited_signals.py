"""A client that ignores signals, as under `nohup` or in the background of a script: its procs start with the signals of a fresh shell."""

from __future__ import annotations

import signal

import pytest
from fresh import run

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
CODE = """
import signal, sys
from monarch.actor import Actor, endpoint, this_host

def ignored():
    with open("/proc/self/status") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
    return [signal.Signals(number).name for number in range(1, 32) if mask >> number - 1 & 1]

class Signals(Actor):
    @endpoint
    def ignored(self):
        return *ignored(), signal.getsignal(signal.SIGINT) is signal.default_int_handler

if __name__ == "__main__":
    hosts = this_host()
    if sys.argv[1] == "executed":
        hosts = hosts.with_python_executable(sys.executable)
    with hosts.spawn_procs() as procs:
        print(*procs.spawn("signals", Signals).ignored.call_one().get())
    print(*ignored())
"""


def ignore() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.parametrize("kind", ["forked", "executed"])
def test_procs_ignore_what_a_fresh_interpreter_does(kind: str) -> None:
    done = run(CODE, kind, preexec_fn=ignore)
    assert done.stdout.splitlines() == ["SIGPIPE SIGXFSZ True", "SIGHUP SIGINT SIGQUIT SIGPIPE SIGXFSZ"]
