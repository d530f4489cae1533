"""The runner: starts each program, diagnoses it once with the command, and prints a row.

A fault counts as found on line 1 if the first line has the expected cause. A healthy job counts if the output is "nothing is wrong".
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.faults.program import READY, Fault

ROOT = Path(__file__).resolve().parents[2]
_COMMAND = "from monarch._core.cli import main; main()"
_LATE = 60.0


class Row(NamedTuple):
    """What one diagnosis gave. `place` is that of the expected cause, 0 for none; of a healthy job 1 where nothing is wrong."""

    name: str
    place: int
    seconds: float
    bytes: int
    text: str


class Running(NamedTuple):
    """A program that runs: the pid of its client, and the prefix of a command that runs on the host of the client."""

    pid: int
    within: tuple[str, ...]


@contextmanager
def running(fault: Fault) -> Iterator[Running]:
    """The program, ready."""
    program = [sys.executable, "-m", "bench.faults", fault.name]
    job = subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert job.stdout is not None and job.stdin is not None
        # Output of procs is on stdout too.
        for line in job.stdout:
            if line.startswith(READY):
                pid, *within = json.loads(line.removeprefix(READY))
                break
        else:
            raise RuntimeError(f"{fault.name} has ended before its fault was there: code {job.wait()}")
        # A job whose console takes no output stands still.
        threading.Thread(target=job.stdout.read, name="output", daemon=True).start()
        yield Running(pid, tuple(within))
    finally:
        _end(job)


def _end(job: subprocess.Popen[str]) -> None:
    # The end of the block closes stdout.
    with job:
        assert job.stdin is not None
        job.stdin.close()
        try:
            job.wait(5)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGKILL)


def diagnosed(fault: Fault) -> Row:
    """Runs a program, waits until its fault can be seen, and diagnoses it once."""
    before = _folders()
    try:
        with running(fault) as job:
            time.sleep(fault.after)  # sleeps: the time that the fault needs
            return look(fault, job)
    finally:
        # The program may have been killed.
        for folder in _folders() - before:
            shutil.rmtree(folder, ignore_errors=True)


def _folders() -> set[Path]:
    """The folders that programs have made, but for those where a file system is mounted: it may be one that does not answer."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return {one for at in (tempfile.gettempdir(), "/var/tmp") for one in Path(at).glob("faults-*") if f" {one} " not in mounts}


def look(fault: Fault, job: Running) -> Row:
    """Diagnoses a program once, by the command."""
    began = time.monotonic()
    command = [*job.within, sys.executable, "-c", _COMMAND, "diagnose", str(job.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LATE, check=False, env={**os.environ, "NO_COLOR": "1"})
    seconds = time.monotonic() - began
    return Row(fault.name, _place(fault, done.stdout), seconds, len(done.stdout.encode()), done.stdout + done.stderr)


def _place(fault: Fault, text: str) -> int:
    if not fault.cause:
        return int(text.startswith("nothing is wrong"))
    causes = [line for line in text.splitlines() if re.match(r"\d+  ", line)]
    return next((place for place, line in enumerate(causes, 1) if re.search(rf"^\d+  {fault.cause}", line)), 0)


def measure(faults: Sequence[Fault], show: bool) -> int:
    """Prints the rows, and how many of the faults and of the healthy jobs are right. 1 where any is wrong."""
    rows = list[Row]()
    print(f"{'program':<24}{'result':<18}{'s':>6}{'bytes':>8}")
    possible = [fault for fault in faults if fault.is_possible()]
    for fault in faults:
        if fault not in possible:
            print(f"{fault.name:<24}not possible here: it needs {fault.missing()}")
            continue
        row = diagnosed(fault)
        rows.append(row)
        names = (
            {0: "not found", 1: "line 1", 2: "in first three", 3: "in first three"}
            if fault.cause
            else {0: "INVENTED", 1: "nothing is wrong"}
        )
        print(f"{row.name:<24}{names.get(row.place, 'later'):<18}{row.seconds:>6.2f}{row.bytes:>8}", flush=True)
        if show or row.place != 1:
            print("".join(f"    {line}\n" for line in row.text.splitlines()), flush=True)
    ill = [row for row, fault in zip(rows, possible, strict=True) if fault.cause]
    well = [row for row, fault in zip(rows, possible, strict=True) if not fault.cause]
    print(
        f"{sum(row.place == 1 for row in ill)} of {len(ill)} faults on line 1, {sum(1 <= row.place <= 3 for row in ill)} in the first three"
    )
    print(f"{sum(row.place == 1 for row in well)} of {len(well)} healthy jobs without a cause")
    return 0 if all(row.place == 1 for row in rows) else 1
