"""The longest stop of the serving script by statements whose plan is far larger than their text, and the outcome of each statement."""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from monarch import telemetry

# Seconds between two reads of the clock, and the time limit of a question.
_TICK, _SECONDS = 0.001, 3.0
_BODY = "SELECT CASE WHEN x > 1 THEN x ELSE x + 1 END AS x FROM "


def _chain(body: str, depth: int) -> str:
    each = "".join(f", a{n} AS ({body.format(f'a{n - 1}')})" for n in range(1, depth))
    return f"WITH a0 AS (SELECT seq AS x FROM logs){each} SELECT count(*) FROM a{depth - 1} WHERE x > 5"


STATEMENTS = {
    "CASE in CASE, 10 levels": _chain(_BODY + "{}", 10),
    "CASE in CASE, 12 levels": _chain(_BODY + "{}", 12),
    "subqueries in each other": f"SELECT count(*) FROM {f'({_BODY}' * 12}(SELECT seq AS x FROM logs){')' * 12} WHERE x > 5",
    "UNION ALL, doubled 11 times": _chain("SELECT * FROM {0} UNION ALL SELECT * FROM {0}", 11),
    "joins, doubled 8 times": _chain("SELECT l.x FROM {0} l JOIN {0} r ON l.x = r.x", 8),
    "CUBE of 30": "SELECT count(*) FROM logs GROUP BY CUBE(" + ", ".join(f"seq + {n}" for n in range(30)) + ")",
    "CUBE of 12": "SELECT count(*) FROM logs GROUP BY CUBE(" + ", ".join(f"seq + {n}" for n in range(12)) + ")",
    "180 windows": "SELECT "
    + ", ".join(f"sum(seq) OVER (PARTITION BY host ORDER BY seq + {n}) AS w{n}" for n in range(180))
    + " FROM logs",
    "1,000 operators": "SELECT " + "+".join(["seq"] * 1000) + " FROM logs",
    "16 KiB of a list": "SELECT count(*) FROM logs WHERE seq IN (" + ", ".join(str(n) for n in range(2600)) + ")",
    "16 KiB of brackets": "SELECT " + "(" * 16_000,
    "recursion without an end": "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x",
}


@contextlib.contextmanager
def _ticking() -> Generator[list[float]]:
    """The longest time, in ms, for which another thread of this process could not run."""
    longest, done = [0.0], threading.Event()

    def tick() -> None:
        before = time.perf_counter()
        while not done.is_set():
            time.sleep(_TICK)
            now = time.perf_counter()
            longest[0], before = max(longest[0], (now - before - _TICK) * 1e3), now

    thread = threading.Thread(target=tick)
    thread.start()
    yield longest
    done.set()
    thread.join()


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256


def stalls(rounds: int) -> Iterator[str]:
    """Runs each statement `rounds` times, beside equal times without one."""
    running = telemetry.start()
    running.engine.query("SELECT count(*) FROM logs")
    worst: list[float] = []
    before = _resident()
    for name, sql in STATEMENTS.items():
        asked: list[float] = []
        idle: list[float] = []
        outcome, took = "", 0.0
        for _ in range(rounds):
            with _ticking() as longest:
                began = time.perf_counter()
                try:
                    outcome = f"{running.engine.query(sql, timeout=_SECONDS).num_rows} rows"
                except telemetry.QueryError as error:
                    outcome = type(error).__name__
                took = time.perf_counter() - began
            asked.append(longest[0])
            with _ticking() as longest:
                time.sleep(took)
            idle.append(longest[0])
        worst += asked
        stops = f"longest stop of the script {max(asked):.0f} ms, without it {max(idle):.0f} ms"
        yield f"{name}, {len(sql)} bytes | {outcome} after {took:.1f} s | {stops}"
    stops = f"median of the longest stops {statistics.median(worst):.1f} ms, worst {max(worst):.0f} ms"
    yield f"all | {stops} | memory of the script {_resident() - before:+.0f} MiB"
    yield f"the script has loaded the library that plans: {'datafusion' in sys.modules}"
    running.stop().get()
