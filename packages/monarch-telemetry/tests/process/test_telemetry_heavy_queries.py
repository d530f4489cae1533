"""Answers are made in a process of their own, which ends by the limits of the query where the work is out of proportion to the rows."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from monarch.telemetry import QueryError, QueryLimit, QueryTimeout
from monarch.telemetry._sql import plan as planning
from monarch.telemetry._sql import planner, wire
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._sql.worker import WORKERS
from tools.frozen import freeze

SCHEMAS = {"t": pa.schema([("x", pa.int64()), ("g", pa.string())])}
ROWS = 2200
# 10^10 rows, with a result that no engine knows in advance.
PRODUCT = "SELECT sum(a.x * b.x + c.x) FROM t a, t b, t c"


def rows(count: int = ROWS) -> Any:
    return pa.RecordBatch.from_pydict({"x": list(range(count)), "g": [str(n % 7) for n in range(count)]}, schema=SCHEMAS["t"])


def asked(sql: str, seconds: float = 60.0, *, count: int = ROWS, limits: Limits = DEFAULT, clock: Any = None) -> list[dict[str, Any]]:
    """The rows of an answer; the work has so many seconds on a clock that starts when it begins."""
    given = clock or planning.time.monotonic
    plan = planning.make(sql, SCHEMAS, limits=limits)
    part = wire.encode(planning.part(plan, {"t": (SCHEMAS["t"], [rows(count)])}, limits=limits))
    table, *_ = planner.finish(plan, [part], limits=limits, deadline=given() + seconds, clock=given)
    return table.to_pylist()


def workers() -> list[int]:
    """The workers of this process that run or wait."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end in the meantime, and so may a process.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in (task / "children").read_text().split():
                if b"monarch.telemetry._sql.worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


def used() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ended(pidfd: int) -> bool:
    """Whether the process has ended; waits for it, at most as long as a test may take."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(25_000))


@pytest.fixture(autouse=True)
def none_left() -> Generator[None]:
    WORKERS.close()
    # The time of a query is then for its work, and not for the start of a process.
    assert asked("SELECT 1 AS n") == [{"n": 1}]
    yield
    WORKERS.close()
    assert workers() == []


@pytest.mark.parametrize(
    "sql",
    [
        PRODUCT,
        f"EXPLAIN ANALYZE {PRODUCT}",
        "SELECT count(*) FROM t a JOIN t b ON a.x <> b.x JOIN t c ON a.x + b.x < c.x + 7",
        "SELECT a.x FROM t a, t b, t c ORDER BY a.x * b.x + c.x LIMIT 3",
        "SELECT count(*) FROM t a, t b WHERE a.x = (SELECT max(d.x + e.x + f.x) FROM t d, t e, t f)",
    ],
)
def test_product_of_tables_ends_at_the_timeout(sql: str) -> None:
    before = used()
    with pytest.raises(QueryTimeout, match="WHERE on time"):
        asked(sql, 0.5)
    # Its threads would continue for minutes.
    assert workers() == []
    assert used() - before < 128 << 20


def test_window_over_all_rows_ends_at_memory_limit() -> None:
    before = used()
    with pytest.raises(QueryLimit, match="memory") as caught:
        asked("SELECT array_agg(x) OVER (ORDER BY x) FROM t", count=60_000, limits=DEFAULT._replace(memory=16 << 20))
    assert caught.value.value == 16 << 20 and caught.value.reached > caught.value.value
    assert workers() == [] and used() - before < 128 << 20


def test_answers_and_errors_are_those_of_this_process() -> None:
    assert asked("SELECT count(*) AS n FROM t a, t b, t c") == [{"n": ROWS**3}]
    assert asked("SELECT a.x FROM t a JOIN t b ON a.x = b.x JOIN t c ON b.x = c.x WHERE a.x < 3 ORDER BY 1") == [{"x": n} for n in range(3)]
    assert asked("SELECT a.x FROM t a JOIN t b ON a.x = b.x JOIN t c ON b.x = c.x WHERE a.x < 0") == []
    (worker,) = workers()
    with pytest.raises(QueryLimit) as caught:
        asked("SELECT a.x FROM t a, t b, t c")
    assert (caught.value.limit, caught.value.value) == ("rows", DEFAULT.rows)
    with pytest.raises(QueryError, match="[Dd]ivide by zero"):
        asked("SELECT a.x / (b.x - b.x) AS y FROM t a, t b, t c LIMIT 1")
    # One process for all of them.
    assert workers() == [worker]


def test_killed_worker_is_named_and_replaced() -> None:
    def clock() -> float:
        # The time limit is checked while the worker works.
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
        return 0.0

    with pytest.raises(QueryError, match="exit code -9"):
        asked(PRODUCT, clock=clock)
    assert workers() == []
    assert asked("SELECT count(*) AS n FROM t a, t b, t c") == [{"n": ROWS**3}]


def test_idle_workers_that_were_stopped_are_replaced() -> None:
    (idle,) = workers()
    freeze(idle)
    assert asked("SELECT count(*) AS n FROM t") == [{"n": ROWS}]
    assert idle not in workers()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
def test_worker_that_another_ends_is_replaced_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes between the choice of the worker and the question."""
    hit: list[int] = []
    take = WORKERS._take

    def taken(is_over: Any) -> Any:
        worker = take(is_over)
        if len(hit) < most:
            hit.append(worker._process.pid)
            os.kill(hit[-1], number)
            if number != signal.SIGSTOP:
                os.waitid(os.P_PID, hit[-1], os.WEXITED | os.WNOWAIT)
        return worker

    monkeypatch.setattr(WORKERS, "_take", taken)
    most = 1
    assert asked("SELECT count(*) AS n FROM t") == [{"n": ROWS}]
    hit.clear()
    most = 2
    with pytest.raises(QueryError, match="was stopped by a signal" if number == signal.SIGSTOP else f"exit code -{int(number)}"):
        asked("SELECT count(*) AS n FROM t")
    assert len(set(hit)) == 2 and not set(hit) & set(workers())


def test_host_of_bytes_without_meaning_is_left_out() -> None:
    plan = planning.make("SELECT count(*) AS n FROM t", SCHEMAS)
    good = wire.encode(planning.part(plan, {"t": (SCHEMAS["t"], [rows()])}))
    bad, deadline = b"x" * 100, planning.time.monotonic() + 60.0
    table, _, malformed = planner.finish(plan, [bad, good], hosts=["bad", "good"], deadline=deadline)
    assert (table.to_pylist(), list(malformed)) == ([{"n": ROWS}], ["bad"])
    assert malformed["bad"].startswith("a part of an answer is not Arrow")


def test_question_without_a_thread_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    WORKERS.close()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(QueryError, match="no thread could be started.*\nhint: .*(RLIMIT_NPROC|pids.max)"):
            planner.make("SELECT count(*) + 1 AS n FROM t", SCHEMAS, deadline=planning.time.monotonic() + 60.0)
    assert workers() == []
    assert asked("SELECT count(*) + 2 AS n FROM t") == [{"n": ROWS + 2}]


def test_question_without_a_descriptor_names_the_limit() -> None:
    WORKERS.close()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(QueryError, match=r"Too many open files\nhint: this process may have 3 open files \(RLIMIT_NOFILE\)"):
            planner.make("SELECT count(*) + 4 AS n FROM t", SCHEMAS, deadline=planning.time.monotonic() + 60.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert workers() == []
    assert asked("SELECT count(*) + 5 AS n FROM t") == [{"n": ROWS + 5}]


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_worker_without_threads_names_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "datafusion.py").write_text('raise RuntimeError("can\'t start new thread")\n')
    WORKERS.close()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(QueryError, match="exit code 1 before.*\n(.*\n)+hint: .*(RLIMIT_NPROC|pids.max)"):
        planner.make("SELECT count(*) + 3 AS n FROM t", SCHEMAS, deadline=planning.time.monotonic() + 60.0)


def test_worker_has_the_path_of_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "datafusion.py").write_text("import os\nos.write(2, b'no such library\\n')\nos._exit(7)\n")
    WORKERS.close()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(QueryError, match=r"exit code 7 before it could be asked, last output:\n  no such library$"):
        planner.make("SELECT count(*) AS n FROM t", SCHEMAS, deadline=planning.time.monotonic() + 60.0)


def test_query_that_is_cancelled_ends_its_worker() -> None:
    """As `RunningQuery.clock` does it."""
    now = [0.0]
    asked("SELECT count(*) AS n FROM t a, t b, t c")
    (worker,) = workers()
    pidfd = os.pidfd_open(worker)
    try:
        found: list[BaseException] = []

        def ask() -> None:
            try:
                asked(PRODUCT, clock=lambda: now[0])
            except QueryTimeout as error:
                found.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        now[0] = math.inf
        thread.join()
        assert len(found) == 1 and ended(pidfd)
    finally:
        os.close(pidfd)


def test_worker_ends_with_its_process() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import threading
from test_telemetry_heavy_queries import PRODUCT, asked, workers
threading.Thread(target=asked, args=(PRODUCT,), daemon=True).start()
while not (found := workers()):  # polls: the process is made by another thread
    pass
print(found[0], flush=True)
threading.Event().wait()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert ended(pidfd)
        finally:
            os.close(pidfd)


def test_program_exit_during_a_query_is_silent() -> None:
    program = f"""
import atexit, sys, threading, time
# Runs after the worker has been ended: the thread could say so.
atexit.register(time.sleep, 0.5)
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_telemetry_heavy_queries as heavy

def ask():
    heavy.asked(heavy.PRODUCT)

threading.Thread(target=ask, daemon=True).start()
while not heavy.WORKERS._busy:  # polls: the worker starts
    pass
sys.exit(3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
