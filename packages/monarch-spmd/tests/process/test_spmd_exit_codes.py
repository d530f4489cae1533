"""Exit codes of every kind: those of ranks are those of the interpreter alone, with which the same program is run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from monarch.spmd import SPMDFailure, SPMDRun
from monarch.spmd.program import ProgramExit, run_program

Start = Callable[..., SPMDRun]
Program = Callable[..., str]

# Arguments of `sys.exit`. For `()` and `(0,)`, Python before 3.12 gives another code if no frame above has an `except`.
VALUES = (
    *("0", "1", "2", "3", "126", "127", "128", "129", "137", "143", "254", "255", "256", "257", "512", "-1", "-2", "-255", "-256"),
    *("2**31", "2**31 + 3", "-2**31", "2**32 + 7", "2**63 - 1", "2**63", "-2**63", "2**64", "2**200", "-2**200"),
    *("None", "True", "False", "0.0", "1.0", "float('nan')", "'words'", "''", "b''", "(1, 2)", "[]", "object", "ValueError('x')"),
)
EXITS = {
    **{f"sys.exit({value})": f"sys.exit({value})" for value in VALUES},
    "no value": "raise SystemExit",
    "subclass": "class Own(SystemExit): pass\nraise Own(9)",
    "subclass with a code": "class Own(SystemExit): code = 11\nraise Own(9)",
    "code that is set later": "error = SystemExit(9)\nerror.code = 12\nraise error",
    "int subclass": "class Own(int): pass\nsys.exit(Own(13))",
    "several values": "raise SystemExit(1, 2)",
    "finally": "try: sys.exit(3)\nfinally: sys.exit(4)",
    "within another": "try: raise ValueError\nexcept ValueError: sys.exit(5)",
}
SIGNALS = (
    "SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM SIGTERM SIGSTKFLT SIGCHLD "
    "SIGCONT SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR SIGSYS SIGRTMIN SIGRTMAX"
).split()
OTHERS = {
    **{f"os._exit({code})": f"os._exit({code})" for code in (0, 1, 2, 126, 127, 128, 255, 256, -1, "2**31", "True", "None", "1.5")},
    **{name: f"os.kill(os.getpid(), signal.{name})" for name in SIGNALS},
    **{
        f"{name} by default": f"signal.signal(signal.{name}, signal.SIG_DFL); signal.raise_signal(signal.{name})"
        for name in ("SIGINT", "SIGPIPE")
    },
    "os.abort": "os.abort()",
    "of another thread": "import threading\nthread = threading.Thread(target=sys.exit, args=(6,))\nthread.start()\nthread.join()",
    "exception": "raise ValueError(2)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "subclass of KeyboardInterrupt": "class Own(KeyboardInterrupt): pass\nraise Own",
    "BaseException": "raise BaseException",
    "GeneratorExit": "raise GeneratorExit",
    "group": "raise BaseExceptionGroup('', [SystemExit(7)])",
    "exception whose text cannot be made": "class Own(Exception):\n    def __str__(self): raise ValueError\nraise Own",
    "exit of an exit handler": "import atexit; atexit.register(sys.exit, 3)",
    "exception of an exit handler": "import atexit; atexit.register(int, 'x')",
    "end of an exit handler": "import atexit; atexit.register(os._exit, 3); sys.exit(4)",
    "stdout that cannot be written": "sys.stdout = open('/dev/full', 'w'); print('x')",
    "exit of the hook": "def hook(*_): sys.exit(8)\nsys.excepthook = hook\nraise ValueError",
    "exception of the hook": "def hook(*_): raise KeyError\nsys.excepthook = hook\nraise ValueError",
    "end of the hook": "sys.excepthook = lambda *_: os._exit(9)\nraise ValueError",
    "no hook": "del sys.excepthook\nraise ValueError",
    "syntax": "def f(:",
    "null": "\0",
    "out of memory": "raise MemoryError",
    "endless recursion": "def f(): f()\nf()",
}


def alone(script: str) -> int:
    """The code of the interpreter without a run."""
    done = subprocess.run([sys.executable, "-u", script], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode


@pytest.mark.parametrize("case", [*EXITS, *OTHERS])
def test_exit_code_of_a_rank(program: Program, start: Start, case: str) -> None:
    script = program(f"import os, signal, sys\n{(EXITS | OTHERS)[case]}\n")
    expected = alone(script)
    try:
        found: int | None = start(script).result.get().returns[0]
    except SPMDFailure as failure:
        found = failure.exitcode
        assert found != 0
        assert failure.reason.signal == (-expected if expected < 0 else None)
    assert found == expected


@pytest.mark.parametrize("case", EXITS)
def test_exit_code_in_a_living_proc(program: Program, case: str) -> None:
    script = program(f"import os, signal, sys\n{EXITS[case]}\n")
    found = 0
    try:
        run_program([script])
    except ProgramExit as exit:
        found = exit.exitcode
    assert found == alone(script)
