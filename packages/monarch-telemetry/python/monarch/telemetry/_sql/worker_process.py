"""The process of a worker: plans come on stdin, answers go to stdout. It ends by itself beyond its memory, and when stdin is closed."""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry._sql import plan as planning
from monarch.telemetry._sql import wire
from monarch.telemetry._sql.limits import Limits
from monarch.telemetry._sql.worker import LOOK, OUT_OF_MEMORY, most, receive, send
from monarch.telemetry.errors import QueryError, QueryLimit, QueryTimeout

# Seconds without a plan.
_IDLE_SECONDS = 60.0
# As a collector: a process of the job loses no time to a query.
_NICENESS = 10
# Limits of the kernel count what allocators reserve: memory in use is looked at. Where the library holds the interpreter, nothing can
# look, and the limit of the kernel ends this process.
_RESERVED = 1 << 30
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _fields(error: QueryError) -> dict[str, Any]:
    text, _, hint = str(error).partition("\nhint: ")
    found: dict[str, Any] = {"error": type(error).__name__, "text": text, "hint": hint or None}
    names = ("limit", "value", "reached") if isinstance(error, QueryLimit) else ("stage",) if isinstance(error, QueryTimeout) else ()
    return found | {name: getattr(error, name) for name in names}


def _watch(done: threading.Event, limit: int) -> None:
    """Ends this process where it uses more memory, in bytes."""
    while not done.wait(LOOK):
        with open("/proc/self/statm", encoding="ascii") as file:
            if int(file.read().split()[1]) * _PAGE > limit:
                os._exit(OUT_OF_MEMORY)


def _limit(limits: Limits) -> None:
    """Sets the limit of the kernel above what this process has now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        data = int(file.read().split()[5]) * _PAGE
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = data + most(limits) + _RESERVED
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _answered(head: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    limits = Limits(*head["limits"])._replace(apart=False)
    schemas = {name: pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text))) for name, text in head["schemas"].items()}
    _limit(limits)
    try:
        if "sql" in head:
            return {"plan": planning.make(head["sql"], schemas, limits=limits).to_json()}, b""
        plan = planning.Plan.from_json(head["plan"], schemas)
        parts = [wire.decode(data, len(data))]
        table = planning.finish(plan, parts, limits=limits, deadline=time.monotonic() + head["seconds"])
    except QueryError as error:
        return _fields(error), b""
    batches = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    return {}, wire.encode([wire.marked(batch, "answer") for batch in batches])


def main() -> None:
    """Answers what comes on stdin until it is closed, which also ends work in progress."""
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    came: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()

    def read() -> None:
        while (one := receive(sys.stdin.buffer)) is not None:
            came.put(one)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            head, data = came.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            os._exit(0)
        done = threading.Event()
        threading.Thread(target=_watch, args=(done, most(Limits(*head["limits"]))), daemon=True).start()
        answer = _answered(head, data)
        done.set()
        send(sys.stdout.buffer, *answer)


if __name__ == "__main__":
    main()
