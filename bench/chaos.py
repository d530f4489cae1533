"""Random spawns, calls, slices, stops, kills, freezes and aborts, and a proof from the recorded history that every promise was kept.

    python bench/chaos.py [--seed 0] [--seconds 60] [--operations N] [--procs 16] [--hosts N] [--without KINDS] [--flood] [--keep FOLDER]

The seed decides every operation (`chaos_script.py`), so a run with the same seed repeats the operations, as far as its time goes;
`--operations` ends it by count instead. With `--hosts`, processes also run on that many workers, whose connections a proxy ends in order or
resets. With `--flood`, the listeners of the client are flooded all the time, by another user if root runs this. `chaos_check.py` judges the
history; its table lists the proved properties. Also, the script ends with code 0, no operation takes longer than 30 s, stderr has only
expected lines, and no process, descriptor, shared memory, socket or file is left, neither at the end nor after each few
hundred operations.

Prints one JSON line; exits 1 after any violation. `--keep` keeps the parts of the history that show it, and the stacks of a hang.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos_check import check, detection, read
from chaos_hosts import ChaosHosts
from leftovers import Leftovers

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "packages" / "monarch-core" / "tests" / "process"))

from listener_flood import KINDS as FLOOD_KINDS  # noqa: E402
from listener_flood import STRANGER, ListenerFlood, listening_sockets  # noqa: E402

# Seconds that the script may take beyond its time: to settle, to stop everything, to exit.
BEYOND_S = 150.0
REAP_S = 2.0
# The limits of the client's growth between the end of the second part of the history and the last one: only a few descriptors and threads.
# Memory may grow by records of ended objects, and by pages that the allocator keeps.
GROWTH_KB_PER_OPERATION = 1.0
# Unused shared memory is freed after a while, with its descriptor; a leak would be larger than this.
SLACK = 4
GROWTH_KB = 16_384
# The only text that the runtime may print: a stop arrived while an endpoint was busy.
SAID = re.compile(r"(\[\d+\] )*monarch: .* is still in .* after its time to stop was over")


class Run:
    """One run: its `problems`, and its measurements."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.problems: list[str] = []
        self.parts: list[dict[str, Any]] = []
        self.calls: list[float] = []
        self.notices: list[float] = []
        self.records = 0
        self.keep: Path | None = options.keep
        if self.keep is not None:
            self.keep.mkdir(parents=True, exist_ok=True)
        before = Leftovers()
        folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        try:
            self._run(options, before, folder)
            self._look(before)
        finally:
            for pid, _ in before.processes():
                os.kill(pid, signal.SIGKILL)
            before.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, options: argparse.Namespace, before: Leftovers, folder: Path) -> None:
        argv = [sys.executable, str(HERE / "chaos_script.py"), str(folder)]
        for name in ("seed", "seconds", "operations", "procs", "without"):
            if getattr(options, name) is not None:
                argv += [f"--{name}", str(getattr(options, name))]
        stderr = folder / "stderr"
        hosts = ChaosHosts(options.hosts, folder / "workers.log") if options.hosts else None
        if hosts is not None:
            argv += ["--hosts", hosts.option]
        passed = [] if hosts is None else [hosts.control.fileno()]
        with (
            contextlib.ExitStack() as floods,
            open(stderr, "w") as err,
            open(folder / "stdout", "w") as told,
            # A descriptor of its own: a shared descriptor has a shared position in the file.
            open(folder / "stdout") as out,
            subprocess.Popen(argv, env=before.environment, stdin=subprocess.DEVNULL, stdout=told, stderr=err, pass_fds=passed) as process,
        ):
            end = time.monotonic() + options.seconds + BEYOND_S
            ended = seen = 0
            flooded: set[str] = set()
            while not ended:
                if options.flood:
                    self._flood(process.pid, floods, flooded)
                # Parts are judged while the next one runs, by the lines that announce their ends.
                ended = process.poll() is not None
                out.seek(seen)
                for line in out:
                    if line.endswith("\n"):
                        seen += len(line)
                        self._part(json.loads(line))
                if time.monotonic() > end:
                    self.problems.append("the script did not end")
                    process.send_signal(signal.SIGUSR1)
                    time.sleep(1.0)
                    process.kill()
                    break
                time.sleep(0.1)
            code = process.wait()
        if hosts is not None:
            hosts.close()
        if options.flood and not flooded:
            self.problems.append("the client listened at nothing that could be flooded")
        if code != 0:
            self.problems.append(f"the script ended with code {code}")
        said = [line for line in stderr.read_text(errors="replace").splitlines() if not SAID.fullmatch(line)]
        if said:
            self.problems.append("stderr: " + "\n".join(said[-30:]))
        # The remaining files belong to the part that did not reach its end.
        for path in folder.iterdir():
            if path.stat().st_size and self.problems and path.name != "stdout":
                self._keep(path)
        self._growth()

    def _flood(self, pid: int, floods: contextlib.ExitStack, flooded: set[str]) -> None:
        """Begins to flood new listeners of the client."""
        try:
            addresses = set(listening_sockets(pid)) - flooded
        except OSError:  # the client has ended
            return
        flooded |= addresses
        uid = STRANGER if os.geteuid() == 0 else None
        for address in addresses:
            for kind in FLOOD_KINDS:
                floods.enter_context(ListenerFlood(kind, address, uid))

    def _part(self, line: dict[str, Any]) -> None:
        if "hang" in line:
            self.problems.append(f"hang: {line['hang']}")
            return
        if "path" not in line:
            return
        self.parts.append(line)
        if line["left"]:
            self.problems.append(f"part {line['part']}: {line['left']}")
        path = Path(line["path"])
        records = read(path)
        self.records += len(records)
        found = check(records)
        self.problems += [f"part {line['part']}: {v.property}: {v.text}" for v in found]
        calls, notices = detection(records)
        self.calls += calls
        self.notices += notices
        if found or line["left"]:
            self._keep(path)
        for done in (path, *path.parent.glob(f"{path.name}.*")):
            done.unlink()

    def _keep(self, path: Path) -> None:
        if self.keep is not None:
            shutil.copy(path, self.keep)

    def _growth(self) -> None:
        if len(self.parts) < 3:
            return
        first, last = self.parts[1], self.parts[-1]
        for what in ("fds", "threads", "segments"):
            if last[what] > first[what] + SLACK:
                self.problems.append(f"the client has {last[what]} {what}, {first[what]} after the second part")
        allowed = GROWTH_KB + GROWTH_KB_PER_OPERATION * (last["operations"] - first["operations"])
        if last["rss_kb"] - first["rss_kb"] > allowed:
            self.problems.append(f"the client has grown from {first['rss_kb']} to {last['rss_kb']} kB")

    def _look(self, before: Leftovers) -> None:
        end = time.monotonic() + REAP_S
        left = before.look()
        while left and time.monotonic() < end:
            time.sleep(0.01)
            left = before.look()
        self.problems += [f"left: {thing}" for thing in left]


def quantile(values: list[float], q: float) -> float | None:
    """The quantile in milliseconds."""
    return round(1000 * sorted(values)[min(len(values) - 1, int(q * len(values)))], 2) if values else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--operations", type=int)
    parser.add_argument("--procs", type=int, default=16, help="how many processes may live at once")
    parser.add_argument("--hosts", type=int, default=0, help="workers that processes are on, too")
    parser.add_argument("--without", help="kinds of operations to leave out, such as fork,cramp")
    parser.add_argument("--flood", action="store_true", help="floods of the client's listeners while it runs")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    start = time.monotonic()
    run = Run(options)
    last = run.parts[-1] if run.parts else {}
    line = {
        "bench": "chaos",
        "seed": options.seed,
        "seconds": round(time.monotonic() - start, 1),
        "procs": options.procs,
        "operations": last.get("operations", 0),
        "records": run.records,
        "kills": last.get("kills", 0),
        "call_raises_ms": {"n": len(run.calls), "p50": quantile(run.calls, 0.5), "p99": quantile(run.calls, 0.99)},
        "supervise_ms": {"n": len(run.notices), "p50": quantile(run.notices, 0.5), "p99": quantile(run.notices, 0.99)},
        "client": {what: [run.parts[min(1, len(run.parts) - 1)][what], last[what]] for what in ("fds", "threads", "rss_kb") if last},
        "violations": len(run.problems),
        "problems": run.problems[:20],
    }
    print(json.dumps(line), flush=True)
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
