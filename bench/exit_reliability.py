"""Scripts that spawn 4 procs, call, and end: the right exit code, an empty stderr, no leftovers, every time.

    python bench/exit_reliability.py [--fall-off 200] [--exit 50] [--interrupt 50] [--procs 4] [--seed 0]

Three ways to end: the end of the script (code 0), `sys.exit(3)` (code 3), Ctrl-C at a random moment between the start of the script and
the steady state of its calls (130, or death by SIGINT, which a shell shows as 130; on stderr nothing but Python's own traceback).
Prints one JSON line for each way, with the slowest time from the last statement, or the signal, to the end of the process; exits 1 if
any run was not clean.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import time

from leftovers import Leftovers

SCRIPT = """
import os, sys
os.write(1, b"begun\\n")
from monarch.actor import Actor, endpoint, this_host

class Echo(Actor):
    @endpoint
    def echo(self, x):
        return x

procs = this_host().spawn_procs(per_host={"procs": %(procs)d})
mesh = procs.spawn("echo", Echo)
assert list(mesh.echo.call(7).get().values()) == [7] * %(procs)d
os.write(1, b"called\\n")
%(end)s
"""
ENDS = {"fall_off": "", "exit": "sys.exit(3)", "interrupt": "while True: mesh.echo.call(7).get()"}
CODES = {"fall_off": {0}, "exit": {3}, "interrupt": {130, -signal.SIGINT}}
TIMEOUT_S = 60.0  # seconds for one run; only a hang takes longer
REAP_S = 0.5  # seconds for the kernel to remove killed processes from /proc


class Run:
    """One run of the script: `seconds` from its last moment to its end, and its `problems`."""

    def __init__(self, way: str, procs: int, delay: float) -> None:
        self.problems: list[str] = []
        self.seconds = 0.0
        before = Leftovers()
        try:
            self._run(way, procs, delay, before)
            self._look(before)
        finally:
            for pid, _ in before.processes():
                os.kill(pid, signal.SIGKILL)
            before.close()

    def _run(self, way: str, procs: int, delay: float, before: Leftovers) -> None:
        code = SCRIPT % {"procs": procs, "end": ENDS[way]}
        argv = [sys.executable, "-c", code]
        # stderr goes to a file: a process left behind would hold a pipe open, and reading it would not end.
        with open(before.folder / "stderr", "w+") as err:
            process = subprocess.Popen(
                argv, env=before.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, start_new_session=True
            )
            with process:
                assert process.stdout is not None
                _wait_for(process.stdout.fileno(), b"begun" if way == "interrupt" else b"called")
                if way == "interrupt":
                    time.sleep(delay)
                    process.send_signal(signal.SIGINT)
                start = time.monotonic()
                try:
                    status = process.wait(TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self.problems.append(f"still running after {TIMEOUT_S:.0f} s")
                    process.kill()
                    status = process.wait()
                self.seconds = time.monotonic() - start
            err.seek(0)
            text = err.read()
        os.unlink(before.folder / "stderr")
        if status not in CODES[way]:
            self.problems.append(f"exit code {status}")
        if text and not (way == "interrupt" and _only_interrupted(text)):
            self.problems.append(f"stderr: {text.strip()[-500:]}")

    def _look(self, before: Leftovers) -> None:
        end = time.monotonic() + REAP_S
        left = before.look()
        while left and time.monotonic() < end:
            time.sleep(0.01)
            left = before.look()
        self.problems += [f"left: {thing}" for thing in left]


def _wait_for(fd: int, word: bytes) -> None:
    """Reads until the script has written `word`, or has ended."""
    seen = b""
    while word not in seen and select.select([fd], [], [], TIMEOUT_S)[0]:
        data = os.read(fd, 4096)
        if not data:
            return
        seen += data


def _only_interrupted(text: str) -> bool:
    lines = text.strip().splitlines()
    return lines[0].startswith("Traceback") and lines[-1].startswith("KeyboardInterrupt") and "Exception ignored" not in text


def measure(way: str, count: int, procs: int, seed: int) -> bool:
    """Runs the script `count` times and prints the JSON line; True if all runs were clean."""
    moments = random.Random(seed)
    # Ctrl-C falls anywhere between the first statement and well into the calls: a clean run gives the length of that time.
    start = time.monotonic()
    if way == "interrupt":
        Run("fall_off", procs, 0.0)
    span = 1.5 * (time.monotonic() - start)
    slowest, bad = 0.0, []
    for index in range(count):
        delay = moments.uniform(0.0, span)
        run = Run(way, procs, delay)
        slowest = max(slowest, run.seconds)
        if run.problems:
            bad.append({"run": index, "delay": round(delay, 4), "problems": run.problems})
    line = {
        "bench": f"exit/{way}",
        "n": count,
        "clean": count - len(bad),
        "slowest_ms": round(1000 * slowest, 1),
        "seed": seed,
        "bad": bad[:10],
    }
    print(json.dumps(line), flush=True)
    return not bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fall-off", type=int, default=200)
    parser.add_argument("--exit", type=int, default=50)
    parser.add_argument("--interrupt", type=int, default=50)
    parser.add_argument("--procs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = {"fall_off": options.fall_off, "exit": options.exit, "interrupt": options.interrupt}
    clean = [measure(way, count, options.procs, options.seed) for way, count in counts.items() if count]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
