"""A process beside this one that finishes plans which may take for ever: joins of many rows, windows over them, values that grow.

The library looks at no time while it joins, and cannot be cancelled there: `SELECT sum(a.x) FROM t a, t b, t c` of 2,000 rows keeps its
threads busy for minutes. A process can be ended. One that is warm costs a plan some milliseconds for the way of its rows; a fresh one
half a second. A worker has one plan at a time, ends by itself when no plan comes for a minute, and with the process that it is for.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple

from monarch.telemetry._sql import wire
from monarch.telemetry._sql.limits import Limits
from monarch.telemetry.errors import QueryError, QueryLimit, QueryRejected, QueryTimeout

# Workers that wait for the next plan.
_IDLE = 2
# Memory in use: a plan has some times its limit, as the library does not count batches on their way, and the answer stands there twice.
_TIMES, _BASE = 3, 256 << 20
# How often time and memory are looked at, seconds.
LOOK = 0.05
# The exit code of a worker that has used up its memory.
OUT_OF_MEMORY = 3
_SIZE = struct.Struct("<QQ")
_HINT = "ask for less: a WHERE on time, fewer columns, or a join on more columns"
_COMMAND = ("-P", "-m", "monarch.telemetry._sql.worker_process")


class Work(NamedTuple):
    """A plan as JSON with the schemas of what it reads, and the batches that came for it."""

    plan: str
    schemas: Mapping[str, Any]
    batches: Sequence[Any]


class _Ended(Exception):
    """The worker has ended; `code` is how."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Worker:
    """A process; one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *_COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, head: dict[str, Any], data: bytes, is_over: Callable[[], bool]) -> tuple[dict[str, Any], bytes]:
        """The answer; `_Ended` where the worker has none. It is killed when the time is over."""
        given, taken = self._process.stdin, self._process.stdout
        assert given is not None and taken is not None
        done = threading.Event()

        def watch() -> None:
            while not done.wait(LOOK):
                if is_over():
                    self._process.kill()
                    return

        threading.Thread(target=watch, name="monarch-query-limit", daemon=True).start()
        try:
            send(given, head, data)
            answer = receive(taken)
        except (OSError, ValueError):  # a pipe that was closed at the end of the program too
            answer = None
        finally:
            done.set()
        if answer is None:
            self.close()
            raise _Ended(self._process.returncode)
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()


class Workers:
    """The workers of this process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._is_registered = self._is_over = False

    def run(self, work: Work, limits: Limits, deadline: float, clock: Callable[[], float] = time.monotonic) -> list[Any]:
        """The batches of the answer. `QueryTimeout` at `deadline`, a time of `clock`; `QueryLimit` where it needs more memory; the errors
        of a plan."""
        _, came = self._asked({"plan": work.plan}, work.schemas, wire.encode(work.batches), limits, deadline, clock)
        return wire.decode(came, len(came))

    def make(
        self, sql: str, schemas: Mapping[str, Any], limits: Limits, deadline: float, clock: Callable[[], float] = time.monotonic
    ) -> str:
        """The plan of a statement as JSON, as it is made without a process of its own. The errors of `run`, and those of the gate."""
        answer, _ = self._asked({"sql": sql}, schemas, b"", limits, deadline, clock)
        return answer["plan"]

    def _asked(
        self, what: dict[str, Any], schemas: Mapping[str, Any], data: bytes, limits: Limits, deadline: float, clock: Callable[[], float]
    ) -> tuple[dict[str, Any], bytes]:
        written = {name: schema.serialize().to_pybytes().hex() for name, schema in schemas.items()}
        while True:
            worker, is_new = self._take()
            head = {**what, "schemas": written, "limits": tuple(limits), "seconds": deadline - clock()}
            try:
                answer, came = worker.ask(head, data, lambda: clock() >= deadline)
            except _Ended as end:
                self._drop(worker)
                if self._is_over:
                    _leave()
                if clock() >= deadline:
                    raise QueryTimeout("the time of the query is over", stage="execution", hint=_HINT) from None
                # The library ends the process where the kernel gives it no more.
                if end.code in (OUT_OF_MEMORY, -signal.SIGABRT):
                    raise QueryLimit("memory bytes", limits.memory, most(limits), hint=_HINT) from None
                if is_new or end.code != 0:
                    raise QueryError(f"the process of the query has ended with exit code {end.code}", hint=_HINT) from None
                # It had waited for too long.
                continue
            except BaseException:
                self._drop(worker)
                worker.close()
                raise
            self._give(worker)
            if "error" in answer:
                raise _error(answer)
            return answer, came

    def _take(self) -> tuple[_Worker, bool]:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.lives:
                    self._busy.add(worker)
                    return worker, False
                worker.close()
            if not self._is_registered:
                self._is_registered = True
                atexit.register(self._end)
        worker = _Worker()
        with self._lock:
            self._busy.add(worker)
        return worker, True

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.discard(worker)

    def _give(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
            if len(self._idle) < _IDLE:
                self._idle.append(worker)
                return
        worker.close()

    def close(self) -> None:
        """Ends all of them."""
        with self._lock:
            ended = [*self._idle, *self._busy]
            self._idle.clear()
        for worker in ended:
            worker.close()

    def _end(self) -> None:
        self._is_over = True
        self.close()

    def forget(self) -> None:
        """In a fork: the workers are those of its parent."""
        self.__init__()


def _leave() -> None:
    """The program has ended, and with it the workers, which is no error of the query: the thread that asked ends with the process.

    When functions of `atexit` run, of all threads only those that no one waits for are left, and the one that runs the functions.
    """
    if threading.current_thread().daemon:
        threading.Event().wait()
    raise QueryError("the program ends")


WORKERS = Workers()
os.register_at_fork(after_in_child=WORKERS.forget)


def _error(answer: Mapping[str, Any]) -> QueryError:
    kind, text, hint = answer["error"], answer["text"], answer["hint"]
    if kind == "QueryLimit":
        return QueryLimit(answer["limit"], answer["value"], answer["reached"], hint=hint)
    if kind == "QueryTimeout":
        return QueryTimeout(text, stage=answer["stage"], hint=hint)
    return (QueryRejected if kind == "QueryRejected" else QueryError)(text, hint=hint)


def most(limits: Limits) -> int:
    """Bytes of memory that a worker may use."""
    return _BASE + _TIMES * limits.memory


def send(pipe: IO[bytes], head: dict[str, Any], data: bytes) -> None:
    """Writes a head and data to the other end."""
    text = json.dumps(head).encode()
    pipe.write(_SIZE.pack(len(text), len(data)))
    pipe.write(text)
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """What the other end has sent; None at the end of the pipe."""
    sizes = pipe.read(_SIZE.size)
    if len(sizes) < _SIZE.size:
        return None
    head, data = _SIZE.unpack(sizes)
    text, came = pipe.read(head), pipe.read(data)
    return (json.loads(text), came) if len(text) == head and len(came) == data else None
