"""Programs with imported modules are as those of a fresh interpreter."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.spmd import SPMDFailure, SPMDRun, run

Start = Callable[..., SPMDRun]
Program = Callable[..., str]

STATE = """
import json, os, signal, sys, threading
main = sys.modules["__main__"]
OTHERS = ("TORCHELASTIC_", "MONARCH_COMMAND", "MONARCH_PROGRAM", "MONARCH_SPMD", "MASTER_PORT")
found = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "flags": str(sys.flags), "name": __name__,
    "file": __file__, "is_main": main.__dict__ is globals(), "names": {n: str(type(v)) for n, v in globals().items() if n.startswith("__")},
    "handlers": {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    "environment": {k: v for k, v in os.environ.items() if not k.startswith(OTHERS)},
    "stdin": [sys.stdin.read(), os.readlink("/proc/self/fd/0"), str(type(sys.stdin.buffer))],
    "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.write_through, sys.stdout.line_buffering, str(type(sys.stdout.buffer))],
    "stderr": [sys.stderr.encoding, sys.stderr.errors, sys.stderr.write_through, sys.stderr.line_buffering],
    "is_same": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "threads": [t.name for t in threading.enumerate()], "is_leader": os.getpgid(0) == os.getpid(),
    "umask": os.umask(0), "open": len(os.listdir("/proc/self/fd")), "hash": hash("monarch") if "PYTHONHASHSEED" in os.environ else None,
    "warn": sys.warnoptions, "interactive": hasattr(sys, "ps1"),
}
with open(os.environ["OUT"] + "." + os.environ["RANK"], "w") as file:
    json.dump({"state": found, "has": "decimal" in sys.modules}, file, sort_keys=True)
"""


def states(folder: Path, start: Start, words: list[str], name: str, **options: Any) -> list[dict[str, Any]]:
    out = str(folder / name)
    start("--nproc-per-node=2", *words, env={"OUT": out} | options.pop("env", {}), **options).result.get()
    found = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in (0, 1)]
    for one in found:
        one["state"]["environment"].pop("OUT")
    return found


@pytest.mark.parametrize("kind", ["script", "module", "seed"])
def test_program_has_the_state_of_a_fresh_interpreter(program: Program, start: Start, folder: Path, kind: str) -> None:
    script = program(STATE)
    words = ["-m", "program", "--lr", "1"] if kind == "module" else [script, "--lr", "1"]
    options: dict[str, Any] = {"env": {"PYTHONHASHSEED": "7"}} if kind == "seed" else {}
    plain = states(folder, start, words, "plain", **options)
    preloaded = states(folder, start, words, "preloaded", preload=["decimal"], **options)
    assert [one["has"] for one in plain] == [False, False]
    assert [one["has"] for one in preloaded] == [True, True]
    assert [one["state"] for one in preloaded] == [one["state"] for one in plain]


CODES = {
    "zero": "pass",
    "exit": "import sys\nsys.exit(7)",
    "text": "import sys\nsys.exit('words')",
    "end": "import os\nos._exit(9)",
    "signal": "import os\nos.kill(os.getpid(), 15)",
    "abort": "import os\nos.abort()",
    "interrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()",
    "error": "def inner():\n    raise ValueError('wrong')\n\ninner()",
    "syntax": "def (",
    "handler": "import atexit\natexit.register(print, 'at exit')\nimport threading\nthreading.Timer(0.01, print).start()",
}


@pytest.mark.parametrize("case", CODES)
def test_end_is_that_of_a_fresh_interpreter(program: Program, start: Start, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    script = program(CODES[case])

    def end(**options: Any) -> tuple[str, str]:
        try:
            found = str(start(script, run_id="same", **options).result.get().returns)
        except SPMDFailure as error:
            first = error.failures[0]
            found = f"{first.exitcode} {first.message} {first.traceback}"
        printed = capfd.readouterr()
        return found, "".join(line for line in (printed.out + printed.err).splitlines(True) if line.startswith("[0]"))

    assert end(preload=["decimal"]) == end()


def test_random_states_differ(program: Program, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    script = program("import random\nprint('drawn', random.random())")
    start("--nproc-per-node=3", script, preload=["random"]).result.get()
    drawn = [line.split("drawn")[1] for line in capfd.readouterr().out.splitlines() if "drawn" in line]
    assert len(drawn) == 3 and len(set(drawn)) == 3


def test_module_beside_the_program_is_found_and_changed(program: Program, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    program("VALUE = 'first'", "beside_program.py")
    script = program("import beside_program, sys\nprint('is', beside_program.VALUE)")
    start(script, preload=["beside_program"]).result.get()
    program("VALUE = 'second one'", "beside_program.py")
    start(script, preload=["beside_program"]).result.get()
    printed = capfd.readouterr()
    assert "is first" in printed.out and "is second one" in printed.out
    assert "no effect" not in printed.out + printed.err


def test_file_with_the_name_of_a_loaded_module(program: Program, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    program("VALUE = 'own'", "cloudpickle.py")
    script = program("import cloudpickle\nprint('is', cloudpickle.VALUE)")
    start(script, preload=["decimal"]).result.get()
    printed = capfd.readouterr()
    assert "is own" in printed.out
    assert "cloudpickle.py has the name of a module that is loaded already" in printed.out + printed.err


def test_module_that_reads_the_rank(program: Program, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    program("import os\nRANK = os.environ.get('RANK')", "reads_rank.py")
    script = program("import reads_rank\nprint('rank is', reads_rank.RANK)")
    start("--nproc-per-node=2", script, preload=["reads_rank"]).result.get()
    printed = capfd.readouterr()
    assert "rank is 0" in printed.out and "rank is 1" in printed.out
    assert "a module reads the variable RANK at its import" in printed.out + printed.err


def test_ranks_are_restarted(program: Program, start: Start, folder: Path) -> None:
    script = program("import os, sys\nopen('runs', 'a').write('x')\nsys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 1)")
    assert start("--max-restarts=1", script, preload=["decimal"]).result.get().attempts == 2
    assert (folder / "runs").read_text() == "xx"


def test_program_is_stopped_with_its_children(program: Program, start: Start, folder: Path) -> None:
    script = program(
        """
        import os, signal
        if os.fork() == 0:
            os.setsid()
            with open("ready", "w") as file:
                file.write(str(os.getpid()))
            signal.pause()
        signal.pause()
        """
    )
    os.mkfifo("ready")
    with start(script, preload=["decimal"]) as running:
        child = int((folder / "ready").read_text())
        running.stop().get()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_changes_of_modules_reach_the_program(program: Program, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    program("import os, sys\nos.environ['CHANGED'] = 'yes'\nsys.path.append('/added')\nprint('imported')", "changes.py")
    script = program(
        "import os, sys\nhas = 'changes' in sys.modules\nimport changes\nprint('is', has, os.environ['CHANGED'], sys.path[-1])"
    )
    found: list[str] = []
    for modules in ([], ["changes"]):
        start(script, preload=modules).result.get()
        found.append(capfd.readouterr().out)
    assert "is False yes /added" in found[0] and "is True yes /added" in found[1]
    assert [text.count("imported") for text in found] == [1, 1]


def test_command_starts_as_always(folder: Path) -> None:
    result = run(this_host(), ["torchrun", "--no-python", "true"], workdir=str(folder), preload=["decimal"]).result.get()
    assert result.returns == {0: 0}


def test_hosts_give_the_modules(program: Program, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = program("import sys\nprint('has', 'decimal' in sys.modules)")
    run(this_host().with_preload(["decimal"]), ["torchrun", script], workdir=str(folder)).result.get()
    assert "has True" in capfd.readouterr().out


def test_wrong_modules_are_refused(start: Start, program: Program) -> None:
    with pytest.raises(TypeError, match="expected a list of names"):
        start(program(""), preload="torch")
