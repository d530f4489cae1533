"""The queues of a run: the steps of each run one after another, and the queues run side by side.

The steps of queue 0 run in stages. A step of another queue starts with its stage, or when its predecessors in its queue have ended. No
stage waits for it, only the end of the run does: a step that depends on it must come after it in its queue. After a failure these queues
are completed, except for optional steps, so that all problems are seen.

A run may have a limit of time, after which `timed` steps do not begin, and those that run are ended. They are shown as such, and are no
failure: a slow machine has checked less, and reports it. Their failed tests count all the same.

A few failed tests of a step are repeated, while no other step runs: at the end of a stage, and at the end of the run. If all pass, the
step is flaky, which is no failure. A step that failed in another way is not repeated.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

from tools.project import ROOT

PY = sys.executable
# The programs beside this interpreter come first, even if its environment is not activated.
PATH = os.pathsep.join([str(Path(PY).parent), os.environ.get("PATH", os.defpath)])
# The last lines of pytest and cargo test.
CLOSING = re.compile(r"^(?:=+ .*\b(?:passed|failed|errors?|no tests ran)\b.* =+|test result: (?!ok. 0 passed).*)$")
# A line of pytest's `--durations`.
DURATION = re.compile(r"^(\d+\.\d+)s (?:call|setup|teardown) +\S")
# A larger number of failed tests is no accident.
MOST_REPEATED = 10
# The exit code of pytest after failed tests. Any other code means another failure: of collection, or of the process.
_TESTS_FAILED = 1
_NO_TESTS = 5
# Seconds that a step has to clean up when the run is ended.
_GRACE_S = 10.0


class Step(NamedTuple):
    """A command of a stage. A step is skipped without the program `needs`. The failure of an `optional` one does not count.

    A step of another `queue` than 0 runs beside the stages.

    A step that is `apart` has a /dev/shm of its own, if the machine permits it: its tests look for leftovers there. `cache` is the
    cache folder of a run of pytest, of this step alone, which has the failed tests afterwards. If the tests are a selection, there may be
    none: the step is `sparse`. A `timed` step is left out, or ended, when the time of the run is over. `wheels` are those that the step
    checks; none are named by a step that checks everything.
    """

    name: str
    stage: str
    argv: tuple[str, ...]
    folder: str = "."
    needs: str = ""
    queue: int = 0
    optional: bool = False
    apart: bool = False
    cache: str = ""
    sparse: bool = False
    timed: bool = False
    wheels: tuple[str, ...] = ()

    def failed_tests(self) -> list[str]:
        """The failed tests of the last run of the step."""
        try:
            found: dict[str, bool] = json.loads((ROOT / self.cache / "v" / "cache" / "lastfailed").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return sorted(found)


class Outcome(NamedTuple):
    """The outcome of a step: `code` is None if it was skipped, `durations` are the slowest tests of pytest.

    `repeated` are the failed tests that must be repeated, `flaky` those that have passed then. `no_time`: the time of the run was over.
    """

    step: Step
    code: int | None
    seconds: float
    closing: list[str]
    durations: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    no_time: bool = False

    @property
    def state(self) -> str:
        if self.no_time and not self.code:
            return "NO TIME: ended before its end" if self.seconds else "NO TIME: not begun"
        if self.flaky:
            return f"flaky ({len(self.flaky)})"
        if not self.code:
            return "skipped" if self.code is None else "ok"
        return f"{'failed, which is allowed' if self.step.optional else 'FAILED'} ({self.code})"

    @property
    def failed(self) -> bool:
        """Whether the outcome is final and a failure; a step with `repeated` tests is not decided yet."""
        return bool(self.code) and not self.step.optional and not self.repeated


class _Queue:
    """The steps that wait in a queue, and the thread that runs them; `busy` is held while one of its steps runs."""

    def __init__(self) -> None:
        self.waiting: deque[Step] = deque()
        self.thread: threading.Thread | None = None
        self.busy = threading.Lock()


class Lanes:
    """Runs steps while the `with` block runs, whose end waits for the other queues.

    If the block ends by an exception, such as that of Ctrl-C, or at SIGTERM, all processes of the steps are ended. `until` is the moment of
    the monotonic clock at which the time of the run is over.
    """

    def __init__(self, until: float | None = None) -> None:
        self._until = until
        self.outcomes: list[Outcome] = []
        self._queues: dict[int, _Queue] = {}
        self._running: dict[int, tuple[Step, subprocess.Popen[str]]] = {}
        self._lock = threading.Lock()
        self._printing = threading.Lock()
        # Held while tests are repeated, and by a queue from the choice of its next step until it is busy.
        self._gate = threading.Lock()
        self._ending = False

    @property
    def failed(self) -> bool:
        """Whether a step has failed so far."""
        with self._lock:
            return any(outcome.failed for outcome in self.outcomes)

    def run(self, stage: list[Step]) -> None:
        """Runs the steps of a stage, and starts the steps beside them. Failed tests of all queues so far are repeated at the end."""
        with self._lock:
            for step in stage:
                if step.queue:
                    self._queues.setdefault(step.queue, _Queue()).waiting.append(step)
            for queue in self._queues.values():
                if queue.waiting and queue.thread is None:
                    queue.thread = threading.Thread(target=self._run_queue, args=(queue,), daemon=True)
                    queue.thread.start()
        for step in stage:
            if not step.queue:
                self._complete(step)
        self._repeat()

    def _repeat(self) -> None:
        """Repeats failed tests, after the current steps of the other queues."""
        if not self._undecided():
            return
        with contextlib.ExitStack() as alone:
            alone.enter_context(self._gate)
            with self._lock:
                queues = list(self._queues.values())
            for queue in queues:
                alone.enter_context(queue.busy)
            for outcome in self._undecided():
                decided = self._decided(outcome)
                with self._lock:
                    self.outcomes[self.outcomes.index(outcome)] = decided

    def _undecided(self) -> list[Outcome]:
        with self._lock:
            return [outcome for outcome in self.outcomes if outcome.repeated]

    def _decided(self, first: Outcome) -> Outcome:
        """The outcome of a step after its failed tests were repeated."""
        self._print(f"\n=== {first.step.name}: {len(first.repeated)} failed tests once more\n")
        argv = (*first.step.argv, "--last-failed", "--last-failed-no-failures=none")
        code, seconds, closing, _ = self._ended(first.step._replace(argv=argv, queue=0, timed=False), [])
        # A test that pytest has not found again stays in its list.
        is_flaky = code == 0 and not first.step.failed_tests()
        return first._replace(
            code=0 if is_flaky else code or first.code,
            seconds=first.seconds + seconds,
            closing=[*first.closing, *closing],
            repeated=(),
            flaky=first.repeated if is_flaky else (),
        )

    def _run_queue(self, queue: _Queue) -> None:
        while True:
            with self._lock:
                if self._ending or not queue.waiting:
                    queue.thread = None
                    return
                step = queue.waiting.popleft()
            if not (step.optional and self.failed):
                with self._gate:
                    queue.busy.acquire()
                try:
                    self._complete(step)
                finally:
                    queue.busy.release()

    def _complete(self, step: Step) -> None:
        outcome = self._outcome(step)
        with self._lock:
            self.outcomes.append(outcome)

    def _outcome(self, step: Step) -> Outcome:
        title = f"\n=== {step.name}: {' '.join(step.argv).replace(PY, 'python')}\n"
        if step.needs and shutil.which(step.needs, path=PATH) is None:
            self._print(f"{title}skipped: there is no '{step.needs}' here\n")
            return Outcome(step, None, 0.0, [])
        until = self._until if step.timed else None
        if until is not None and time.monotonic() >= until:
            self._print(f"{title}not begun: the time of this run is over\n")
            return Outcome(step, None, 0.0, [], no_time=True)
        collected = [title]
        if not step.queue:
            self._print(collected.pop())
        if step.cache:
            shutil.rmtree(ROOT / step.cache, ignore_errors=True)
        code, seconds, closing, durations = self._ended(step, collected)
        failed = step.failed_tests() if step.cache and code == _TESTS_FAILED else []
        no_time = bool(code) and until is not None and time.monotonic() >= until
        if no_time:
            failed = step.failed_tests() if step.cache else []
            code = _TESTS_FAILED if failed else 0
        repeated = tuple(failed) if len(failed) <= MOST_REPEATED else ()
        is_empty = step.sparse and code == _NO_TESTS
        return Outcome(step, None if is_empty else code, seconds, closing, tuple(durations), repeated, no_time=no_time)

    def _ended(self, step: Step, collected: list[str]) -> tuple[int, float, list[str], list[str]]:
        """Runs a step; its exit code, its seconds, its closing lines, and its durations of tests."""
        start = time.monotonic()
        closing: list[str] = []
        durations: list[str] = []
        # Without `with process`: an exception would wait for the process's end there.
        process = self._started(step)
        with self._ended_in_time(step, process):
            self._read(step, process, collected, closing, durations)
        with self._lock:
            del self._running[process.pid]
        self._print("".join(collected))
        return process.returncode, time.monotonic() - start, closing, durations

    def _read(self, step: Step, process: subprocess.Popen[str], collected: list[str], closing: list[str], durations: list[str]) -> None:
        """Reads the output until the end of the process, and prints it or collects it."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if step.queue:
                    collected.append(line)
                else:
                    self._print(line)
                if CLOSING.match(line.rstrip()):
                    closing.append(line.rstrip())
                elif DURATION.match(line):
                    durations.append(line.rstrip())
        process.wait()

    @contextlib.contextmanager
    def _ended_in_time(self, step: Step, process: subprocess.Popen[str]) -> Generator[None]:
        """Ends the process of a timed step when the time of the run is over: by SIGINT, at which pytest ends its fixtures."""
        if self._until is None or not step.timed:
            yield
            return
        left = max(0.0, self._until - time.monotonic())
        timers = [
            threading.Timer(left + more, _kill, (process.pid, number)) for more, number in ((0, signal.SIGINT), (_GRACE_S, signal.SIGKILL))
        ]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def _started(self, step: Step) -> subprocess.Popen[str]:
        with self._lock:
            if self._ending:
                raise SystemExit
            process = subprocess.Popen(
                (*_apart(), *step.argv) if step.apart else step.argv,
                cwd=ROOT / step.folder,
                env={**os.environ, "PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # A process group, so that the step can be ended with all its processes.
                process_group=0,
            )
            self._running[process.pid] = step, process
        return process

    def _print(self, text: str) -> None:
        with self._printing:
            print(text, end="", flush=True)

    def _signal(self, number: int, *, optional_only: bool = False) -> None:
        with self._lock:
            running = [pid for pid, (step, _) in self._running.items() if step.optional or not optional_only]
        for pid in running:
            _kill(pid, number)

    def _join(self, timeout: float) -> bool:
        """Whether all queues have ended, after at most this many seconds."""
        end = time.monotonic() + timeout
        with self._lock:
            threads = [queue.thread for queue in self._queues.values() if queue.thread is not None]
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def __enter__(self) -> Lanes:
        self._before = signal.signal(signal.SIGTERM, _exit)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                # The wait has short pieces: a signal's handler runs between them.
                told = 0.0
                while not self._join(0.5):
                    if self.failed and not told:
                        told = time.monotonic()
                        self._signal(signal.SIGINT, optional_only=True)
                    elif told and time.monotonic() > told + _GRACE_S:
                        self._signal(signal.SIGKILL, optional_only=True)
                self._repeat()
                return
        except BaseException:
            self._end()
            raise
        finally:
            signal.signal(signal.SIGTERM, self._before)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._ending = True
        self._signal(signal.SIGINT)  # pytest ends its fixtures at this signal
        end = time.monotonic() + _GRACE_S
        while self._alive() and time.monotonic() < end:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        self._join(_GRACE_S)

    def _alive(self) -> bool:
        with self._lock:
            return any(process.poll() is None for _, process in self._running.values())


@functools.cache
def _apart() -> tuple[str, ...]:
    """The prefix of a command line that runs with a /dev/shm of its own; empty if that is impossible."""
    argv = ("unshare", "--mount", "--ipc", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    try:
        tried = subprocess.run([*argv, "true"], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError:
        return ()
    return argv if tried.returncode == 0 else ()


def _kill(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
