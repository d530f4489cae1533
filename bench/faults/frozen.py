"""Programs with a process that does not run Python, or stands still."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

from bench.faults.actors import Trainer
from bench.faults.program import Fault, rest
from monarch.actor import this_host


def sigstop() -> None:
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    pid = trainers.slice(gpus=3).pid.call_one().get()
    call = trainers.step.call(30.0)
    os.kill(pid, signal.SIGSTOP)
    rest(call)


def gil() -> None:
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    call = trainers.crunch.call(1)
    rest(call)


def hanging_import() -> None:
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    pipe = folder / "data"
    os.mkfifo(pipe)
    # A pipe without a writer stands for a file system that does not answer.
    (folder / "module_that_waits.py").write_text(f"TABLE = open({str(pipe)!r}).read()\n")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    sys.path.insert(0, str(folder))
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    call = trainers.load.call(0)
    rest(call)


def stopped_client() -> None:
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    trainers.step.call().get()
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
    rest(trainers.step.call(30.0))


_STEPS = """
import os, signal, time
while True:
    time.sleep(0.2)
    print("step", flush=True)
    if os.environ["RANK"] == "2":
        os.kill(os.getpid(), signal.SIGSTOP)
"""


def stopped_program() -> None:
    """One of four ranks of a script is stopped."""
    from monarch.spmd import run

    script = Path(tempfile.mkdtemp(prefix="faults-")) / "train.py"
    script.write_text(_STEPS)
    rest(run(this_host(), ["torchrun", "--nproc-per-node=4", str(script)]).result)


# The process is called by its actor where the client shows its calls, which an overloaded client may not do in time.
FAULTS = (
    Fault("stopped_client", stopped_client, r"the client \(pid \d+\) is stopped by a signal", 1.0),
    Fault("sigstop", sigstop, r"(trainer|workers) rank 3 .*is stopped by a signal", 4.0),
    Fault("stopped_program", stopped_program, r"the program \S+ \(pid \d+\) of rank rank 2 .*is stopped by a signal", 5.0),
    Fault("gil", gil, r"trainer rank 1 .*keeps the GIL in actors\.py:\d+ in crunch", 5.0),
    Fault("hanging_import", hanging_import, r"trainer rank 0 .*importing module_that_waits", 11.0),
)
