"""The process of a worker: questions come on stdin, answers go to stdout. It ends with stdin, and after some idle time."""

from __future__ import annotations

import math
import os
import resource
import select
import sys
import threading
import time
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry._sql import expected, wire
from monarch.telemetry._sql import plan as planning
from monarch.telemetry._sql.limits import Limits
from monarch.telemetry._sql.worker import OUT_OF_MEMORY, most_planning, most_working, receive, send
from monarch.telemetry.errors import QueryError, QueryLimit, QueryTimeout

# Limits of the kernel count reserved memory: the asking process checks the memory in use, and these limits bound the growth between two
# checks.
_RESERVED = 512 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _fields(error: QueryError) -> dict[str, Any]:
    text, _, hint = str(error).partition("\nhint: ")
    found: dict[str, Any] = {"error": type(error).__name__, "text": text, "hint": hint or None}
    names = ("limit", "value", "reached") if isinstance(error, QueryLimit) else ("stage",) if isinstance(error, QueryTimeout) else ()
    return found | {name: getattr(error, name) for name in names}


def _limit(most: int, seconds: float) -> None:
    """Sets the limits of the kernel above what this process has now.

    That of processor time ends a worker whose asker has been killed, and whose interpreter is held: no thread sees the end of stdin then.
    """
    with open("/proc/self/statm", encoding="ascii") as file:
        data = int(file.read().split()[5]) * _PAGE
    processor = time.process_time() + (max(0.0, seconds) + 1.0) * (os.cpu_count() or 1)
    for kind, wanted in ((resource.RLIMIT_DATA, data + most + _RESERVED), (resource.RLIMIT_CPU, math.ceil(processor))):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


class _Answers:
    """What is asked, one question after the other; the tables are those that came last."""

    def __init__(self) -> None:
        self._schemas: dict[str, Any] = {}

    def answer(self, head: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], Any]:
        limits = Limits(*head["limits"])
        try:
            if "schemas" in head:
                self._schemas = {name: pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text))) for name, text in head["schemas"].items()}
            if head["do"] == "make":
                _limit(most_planning(), head["seconds"])
                hosts = dict(head["hosts"])
                return {"plan": planning.make(head["sql"], self._schemas, limits=limits, cut=head["cut"], hosts=hosts).to_json()}, b""
            _limit(most_working(limits), head["seconds"])
            return self._finished(head, data, limits)
        except QueryError as error:
            return _fields(error), b""

    def _finished(self, head: Mapping[str, Any], data: bytes, limits: Limits) -> tuple[dict[str, Any], Any]:
        plan = planning.Plan.from_json(head["plan"], self._schemas)
        view, parts, at, malformed = memoryview(data), list[list[Any]](), 0, dict[str, str]()
        for size, host in zip_longest(head["sizes"], head["hosts"]):
            try:
                batches = wire.decode(view[at : at + size], max(size, limits.memory))
                if host is not None:
                    expected.check(plan, batches)
                parts.append(batches)
            except wire.Malformed as error:
                if host is None:
                    raise
                malformed[host] = str(error)
            at += size
        own = wire.by_stream(parts.pop()) if head["own"] else {}
        rows = sum(batch.num_rows for part in parts for batch in part)
        if own:
            tables = {name: (self._schemas[name], batches) for name, batches in own.items()}
            parts.append(planning.part(plan, tables, limits=limits))
        return {"rows": rows, "malformed": malformed}, wire.stream_of(planning.finish(plan, parts, limits=limits))


def _end_with(stdin: int) -> None:
    """Ends this process when the other end of stdin is closed, also while a question is worked on."""
    poll = select.poll()
    # Input is read by the main thread.
    poll.register(stdin, 0)
    poll.poll()
    os._exit(0)


def main() -> None:
    """Answers what comes on stdin until it is closed."""
    idle = float(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    stdin = sys.stdin.fileno()
    threading.Thread(target=_end_with, args=(stdin,), daemon=True).start()
    answers = _Answers()
    # The first plan of a process takes ten times longer, and the limit of planning on hosts is measured with a plan.
    planning.make("SELECT sum(n) AS n FROM t WHERE n > 0", {"t": pa.schema([("n", pa.int64())])})
    # The output written from here on has no reader.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    # Ready for questions.
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    poll = select.poll()
    poll.register(stdin, select.POLLIN)
    while poll.poll(idle * 1e3) and (one := receive(sys.stdin.buffer)) is not None:
        try:
            found = answers.answer(*one)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        send(sys.stdout.buffer, *found)
    os._exit(0)
