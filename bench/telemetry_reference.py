"""GROUP BY over many collectors with 100,000 rows each: Monarch, torchmonarch 0.7.0's engine, and one DataFusion session over all rows.

    REFERENCE-PYTHON bench/telemetry_reference.py serve COLLECTORS ROUNDS       the reference, in its own environment

All three answer the same statement over the same rows of `pyspy_frames`, on one machine, one after the other. Monarch has a job with that
many hosts, each a worker process with its collector; the reference has that many collector processes of one host, below its root collector.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAME = "torchmonarch 0.7.0"
# 100,000 rows.
DUMPS, THREADS, FRAMES, FILES = 20, 4, 1250, 16
GROUPED = "SELECT filename, COUNT(*) AS n FROM pyspy_frames GROUP BY filename ORDER BY filename"
POINT = "SELECT name, line FROM pyspy_frames WHERE dump_id = 'dump-7' AND thread_id = 2 AND frame_depth = 700 LIMIT 1"


def counts(hosts: int) -> list[dict[str, Any]]:
    """The correct result of GROUPED."""
    found = [0] * FILES
    for frame in range(FRAMES):
        found[frame % FILES] += DUMPS * THREADS * hosts
    return sorted(({"filename": f"module_{n}.py", "n": count} for n, count in enumerate(found)), key=lambda row: str(row["filename"]))


def milliseconds(ask: Callable[[str], Any], hosts: int, rounds: int) -> tuple[float, float]:
    """Medians of both statements; the first answer of each does not count."""
    found: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for sql, times in zip((GROUPED, POINT), found, strict=True):
            began = time.perf_counter()
            rows = ask(sql)
            took = (time.perf_counter() - began) * 1e3
            if number:
                times.append(took)
            assert (rows == counts(hosts)) if sql == GROUPED else (rows == [{"name": "function_60", "line": 701}]), rows
    return statistics.median(found[0]), statistics.median(found[1])


# ---- the reference, in its environment


def serve(collectors: int, rounds: int) -> None:
    """Prints both medians as a line of JSON."""
    import telemetry_reference_root as roots

    frames = [{"name": f"function_{n % 64}", "filename": f"module_{n % FILES}.py", "line": n + 1} for n in range(FRAMES)]
    traces = [{"thread_id": thread, "frames": frames} for thread in range(THREADS)]
    payload = json.dumps({"Ok": {"capture_mode": "python_only", "stack_traces": traces}})
    root, folders = roots.start(collectors)
    try:
        root.load.call_one(DUMPS, payload).get()
        found = milliseconds(roots.asking(root), collectors, rounds)
        print(json.dumps(["milliseconds", *found]), flush=True)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        roots.stop()


def theirs(collectors: int, rounds: int) -> tuple[float, float]:
    """Runs the reference. `RuntimeError` if it cannot be installed or ends without an answer."""
    from fs_reference import PIN
    from fs_tree import environment

    python = environment("reference", PIN, "pyarrow>=21") / "bin" / "python"
    argv = [str(python), "-W", "ignore", __file__, "serve", str(collectors), str(rounds)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parent)
    for line in done.stdout.splitlines():
        if line.startswith('["milliseconds", '):
            _, grouped, point = json.loads(line)
            return grouped, point
    raise RuntimeError(f"{NAME} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")


# ---- ours


def rows_of(dump: int) -> list[dict[str, Any]]:
    none = {"module": None, "short_filename": None, "is_entry": False}
    frames = [{"frame_depth": n, "line": n + 1, "name": f"function_{n % 64}", "filename": f"module_{n % FILES}.py"} for n in range(FRAMES)]
    return [{"dump_id": f"dump-{dump}", "thread_id": thread, **frame, **none} for thread in range(THREADS) for frame in frames]


def processor() -> float:
    """Processor seconds of this process and of all its descendants."""
    from telemetry_idle import processor
    from telemetry_soak import children

    tree, found, left = children(), 0.0, [os.getpid()]
    while left:
        pid = left.pop()
        left += tree.get(pid, [])
        with contextlib.suppress(OSError):
            found += processor(pid)
    return found


def of_one_host(running: Any, rounds: int) -> list[float]:
    """Milliseconds of a question about one host, asked of this host and of all, and milliseconds of processors for each of both."""
    hosts = running.asking.hosts
    sql, names = f"SELECT pid FROM procs WHERE host_id = {hosts[0].host}", [host.hostname for host in hosts]
    times: list[list[float]] = [[], []]
    used = [0.0, 0.0]
    for number in range(2 * rounds + 2):
        way = number % 2
        for host, name in zip(hosts, names, strict=True):
            # A host without a known name is always asked.
            host.hostname = None if way else name
        before, began = processor(), time.perf_counter()
        running.engine.query(sql)
        took, cost = (time.perf_counter() - began) * 1e3, (processor() - before) * 1e3
        if number > 1:
            times[way].append(took)
            used[way] += cost / rounds
    return [*map(statistics.median, times), *used]


def ours(collectors: int, rounds: int) -> tuple[float, float, float, list[float], list[float]]:
    """Both medians, the KiB received by this process for an answer of GROUPED, milliseconds of processors for each, and `of_one_host`."""
    import monarch.telemetry as telemetry
    from monarch.job import ProcessJob
    from monarch.telemetry._sql import wire

    job = ProcessJob({"hosts": collectors})
    running = telemetry.start(hosts=job.state(None).hosts, snapshot_interval_secs=3600.0)
    decode, sizes = wire.decode, list[int]()

    def counted(data: bytes, most: int) -> Any:
        sizes.append(len(data))
        return decode(data, most)

    try:
        hosts = running.asking.hosts[:collectors]
        for dump in range(DUMPS):
            for future in [host.start().report.call_one("pyspy_frames", rows_of(dump)) for host in hosts]:
                future.get()
        grouped, point = milliseconds(lambda sql: running.engine.query(sql).to_pylist(), collectors, rounds)
        used: list[float] = []
        for sql in (GROUPED, POINT):
            before = processor()
            for _ in range(rounds):
                running.engine.query(sql)
            used.append((processor() - before) / rounds * 1e3)
        one = of_one_host(running, rounds)
        wire.decode = counted
        running.engine.query(GROUPED)
    finally:
        wire.decode = decode
        running.stop().get()
        job.kill()
    return grouped, point, sum(sizes) / 1024, used, one


def local(collectors: int, rounds: int) -> tuple[float, float]:
    """One session with all rows in this process."""
    from importlib import import_module

    from monarch.telemetry._collector.keeping import schemas
    from monarch.telemetry._sql.context import Session

    pa: Any = import_module("pyarrow")
    schema = schemas()["pyspy_frames"]
    batch = pa.RecordBatch.from_pylist([row for dump in range(DUMPS) for row in rows_of(dump)], schema=schema)
    tables = {"pyspy_frames": (schema, [batch] * collectors)}

    def ask(sql: str) -> list[dict[str, Any]]:
        return [row for part in Session(tables).frame(sql).collect() for row in part.to_pylist()]

    return milliseconds(ask, collectors, rounds)


def reference(rounds: int, collectors: int = 64) -> Iterator[str]:
    """The lines of the part."""
    about = f"{collectors} collectors of {DUMPS * THREADS * FRAMES:,} rows"
    grouped, point, size, used, one = ours(collectors, rounds)
    yield f"{about} | ours: GROUP BY {grouped:.1f} ms, {size:.1f} KiB into the entry node; point query {point:.1f} ms"
    yield f"{about} | ours: an answer needed {used[0]:.0f} and {used[1]:.0f} ms of the {os.cpu_count()} processors"
    yield f"{about} | ours: a question about one host, asked of it {one[0]:.1f} ms, of all {one[1]:.1f} ms"
    yield f"{about} | ours: an answer about one host needed {one[2]:.0f} and {one[3]:.0f} ms of the processors"
    grouped, point = local(collectors, rounds)
    yield f"{about} | one DataFusion session over all rows: GROUP BY {grouped:.1f} ms, point query {point:.1f} ms"
    try:
        grouped, point = theirs(collectors, rounds)
        yield f"{about} | {NAME}: GROUP BY {grouped:.1f} ms, point query {point:.1f} ms"
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        yield f"{about} | {NAME}: not measured: {error}"


if __name__ == "__main__":
    serve(int(sys.argv[2]), int(sys.argv[3]))
