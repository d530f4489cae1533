"""Processes beside this one that plan statements and make answers: what they do may take for ever, and a process can be ended.

The library looks at no time while it plans or joins, and cannot be cancelled there: some hundred bytes of nested expressions are planned
for hours, and `SELECT sum(a.x) FROM t a, t b, t c` of 2,000 rows keeps its threads busy for minutes. The thread that asks looks at the
time and at the memory of its worker, from outside: the worker may hold its interpreter. A worker that is warm costs a question some tenths
of a millisecond; a fresh one half a second. A worker has one question at a time, and ends with the process that it is for.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple

from monarch.extension import python_command
from monarch.telemetry._arrow import pa
from monarch.telemetry._few_threads import files_hint, hint
from monarch.telemetry._sql.limits import Limits
from monarch.telemetry._sql.problems import PlanMismatch
from monarch.telemetry.errors import QueryError, QueryLimit, QueryRejected, QueryTimeout

# The most idle workers: as many as there are concurrent questions.
_IDLE = 8
# Seconds after which an idle worker ends: the first one remains longer, because the next question of a person waits for it.
_STAYS, _LEAVES = 600.0, 60.0
# Seconds for which a question waits for one of them before another one is started.
_IDLE_WORKER_TIMEOUT = 0.2
# Seconds after which a question is a long one: its priority is lowered, so that procs of the job lose no time to it.
_LONG, _NICENESS = 2.0, 10
# Limits of memory in use: a plan uses a multiple of its limit, because the library does not count batches in transfer, and the answer is
# there twice. Planning alone needs some MiB.
_TIMES, _BASE, _PLANNING = 3, 256 << 20, 256 << 20
# Seconds between two checks of time and memory.
LOOK = 0.05
# Exit codes for memory that the kernel refuses, in the library or in Python.
OUT_OF_MEMORY = 3
# Exit codes of a worker that another process killed.
_KILLS = (-signal.SIGKILL, -signal.SIGTERM)
# The most bytes, and the most lines, of the output of a worker in the error of its start.
_MOST_OUTPUT, _OUTPUT_LINES = 4096, 6
# The output of Python and OpenBLAS if they cannot start a thread.
_NO_THREAD = (b"can't start new thread", b"pthread_create failed")
_SIZE = struct.Struct("<QQ")
_PIPE = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_HINT = "ask for less: a WHERE on time, fewer columns, or a join on more columns"
_PLANNED = "name fewer expressions in each other, or group by fewer columns"
_PROCESS = "monarch.telemetry._sql.worker_process"


class Ask(NamedTuple):
    """What a worker is asked: `what` as JSON, over tables of these schemas, with data."""

    what: dict[str, Any]
    schemas: Mapping[str, Any]
    data: Sequence[Any] = ()

    @property
    def plans(self) -> bool:
        return self.what["do"] == "make"


class _Ended(Exception):
    """The worker has ended; `why` is what was seen of it before, `used` its memory in bytes then. `seen`: it was looked at before."""

    def __init__(self, code: int, why: str | None = None, used: int = 0, *, seen: bool = True) -> None:
        super().__init__(code)
        self.code, self.why, self.used = code, why, used
        # By another process, and not because of the question: it was stopped, or was killed before its first check.
        self.is_of_others = why == "stopped" or (why is None and not seen and code in _KILLS)


class _Worker:
    """A process; one thread at a time."""

    def __init__(self, idle: float) -> None:
        # A group of its own, so that Ctrl-C does not reach it. No session: the kernel shares the processor among sessions, and on a busy
        # machine each answer would wait for the turn of one more.
        # The output of the worker before its first question. No write waits for it.
        self._stderr = open(os.memfd_create("stderr"), "rb", buffering=0)
        try:
            self._process = subprocess.Popen(
                python_command(_PROCESS, str(idle)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                process_group=0,
                bufsize=0,
            )
        except BaseException:
            self._stderr.close()
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._given, self._taken = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._given, self._taken):
            os.set_blocking(pipe, False)
            with contextlib.suppress(OSError):  # the pipes of a user have a limit in all
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
        # The schemas that were sent to it.
        self.schemas: Mapping[str, Any] | None = None
        # Whether its threads have the lowest priority, permanently: it gets no further question.
        self.is_slow = False

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def begin(self) -> QueryError | None:
        """Waits until it can be asked; how it has ended instead, with what it has written last."""

        def look() -> None:
            if self.is_stopped:
                raise self._killed("stopped")

        with self._stderr as file:
            try:
                self._read(1, look)
            except _Ended:
                return QueryError("the process of the query was stopped by a signal before it could be asked")
            except (OSError, EOFError):
                self.kill()
                output = os.pread(file.fileno(), _MOST_OUTPUT, max(0, os.fstat(file.fileno()).st_size - _MOST_OUTPUT))
                last = "".join(f"\n  {line}" for line in output.decode(errors="replace").splitlines()[-_OUTPUT_LINES:])
                text = f"the process of the query has ended with exit code {self._process.returncode} before it could be asked"
                self.close()
                more = hint() if any(sign in output for sign in _NO_THREAD) else None
                return QueryError(f"{text}, last output:{last}" if last else text, hint=more)
        return None

    def ask(self, head: dict[str, Any], data: Sequence[Any], is_over: Callable[[], bool], most: int) -> tuple[dict[str, Any], Any]:
        """The answer; `_Ended` where the worker has none. It is killed when the time is over, or it uses more than `most` bytes."""

        began, seen = time.monotonic(), False

        def look() -> None:
            nonlocal seen
            seen = True
            if not self.is_slow and time.monotonic() - began > _LONG:
                self.is_slow = True
                # All threads of its group, which contains only itself.
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PGRP, self._process.pid, _NICENESS)
            if is_over():
                raise self._killed("time")
            if (used := self._used()) > most:
                raise self._killed("memory", used)
            if self.is_stopped:
                raise self._killed("stopped")

        text = json.dumps(head).encode()
        try:
            for part in (_SIZE.pack(len(text), sum(len(one) for one in data)), text, *data):
                self._write(memoryview(part), look)
            sizes = _SIZE.unpack(self._read(_SIZE.size, look))
            return json.loads(bytes(self._read(sizes[0], look))), self._read(sizes[1], look)
        except (OSError, EOFError):
            self.close()
            raise _Ended(self._process.returncode, seen=seen) from None

    def _killed(self, why: str, used: int = 0) -> _Ended:
        self.close()
        return _Ended(self._process.returncode, why, used)

    def _write(self, left: memoryview, look: Callable[[], None]) -> None:
        while left:
            try:
                left = left[os.write(self._given, left[:_PIPE]) :]
            except BlockingIOError:
                _wait(self._given, select.POLLOUT, look)

    def _read(self, size: int, look: Callable[[], None]) -> Any:
        """A buffer of Arrow."""
        buffer = pa.allocate_buffer(size)
        left = memoryview(buffer)
        while left:
            try:
                count = os.readv(self._taken, [left])
            except BlockingIOError:
                _wait(self._taken, select.POLLIN, look)
                continue
            if not count:
                raise EOFError
            left = left[count:]
        return buffer

    def _used(self) -> int:
        """Bytes of memory."""
        try:
            with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):  # the worker has ended
            return 0

    @property
    def is_stopped(self) -> bool:
        """By a signal: it answers nothing until a signal continues it."""
        try:
            with open(f"/proc/{self._process.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] == b"T"
        except (OSError, IndexError):  # the worker has ended
            return False

    def kill(self) -> None:
        """Ends the process; the thread that asks it sees that."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process, and what this process has of it. By the thread that asks it."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._stderr.close()
        self._process.wait()


def _wait(pipe: int, event: int, look: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(pipe, event)
    while not poll.poll(LOOK * 1e3):
        look()


class Workers:
    """The workers of this process. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        # The worker that is being started; at most one at a time.
        self._starting: _Worker | None = None
        # The number of failed starts, and the error of the last one.
        self._failures = 0
        self._failure: QueryError | None = None
        self._is_registered = self._is_over = False

    def warm(self) -> None:
        """Starts the first worker, if there is none: the question that comes soon does not wait for it."""
        # A question gets the reason for the missing worker.
        with self._changed, contextlib.suppress(QueryError):
            if not (self._idle or self._busy or self._starting):
                self._start()

    def ask(self, ask: Ask, limits: Limits, deadline: float, clock: Callable[[], float] = time.monotonic) -> tuple[dict[str, Any], Any]:
        """The answer of a worker, and its data. The errors of what it does; `QueryTimeout` at `deadline`, a time of `clock`, `QueryLimit`
        where it needs more memory: both end the worker. A worker that another process stops or kills is replaced once."""
        is_again = False
        while True:
            worker = self._take(lambda: clock() >= deadline)
            head = {**ask.what, "limits": tuple(limits), "seconds": min(deadline - clock(), limits.seconds)}
            if worker.schemas is not ask.schemas:
                head["schemas"] = {name: schema.serialize().to_pybytes().hex() for name, schema in ask.schemas.items()}
            most = most_planning() if ask.plans else most_working(limits)
            try:
                answer, came = worker.ask(head, ask.data, lambda: clock() >= deadline, most)
            except _Ended as end:
                self._drop(worker)
                if self._is_over:
                    _leave()
                if end.why == "time" or clock() >= deadline:
                    if ask.plans:
                        raise QueryTimeout("the time of the query is over while it is planned", stage="plan", hint=_PLANNED) from None
                    raise QueryTimeout("the time of the query is over", stage="execution", hint=_HINT) from None
                # The library ends the process if the kernel refuses more memory.
                if end.why == "memory" or end.code in (OUT_OF_MEMORY, -signal.SIGABRT):
                    if ask.plans:
                        raise QueryLimit("memory bytes to plan it", most, max(most, end.used), hint=_PLANNED) from None
                    raise QueryLimit("memory bytes", limits.memory, most, hint=_HINT) from None
                if end.is_of_others and not is_again:
                    is_again = True
                    continue
                if end.why == "stopped":
                    raise QueryError("the process of the query was stopped by a signal, as was the one that it replaced") from None
                if end.code != 0:
                    raise QueryError(f"the process of the query has ended with exit code {end.code}", hint=_HINT) from None
                # The worker was idle for too long.
                continue
            except BaseException:
                self._drop(worker)
                worker.close()
                raise
            worker.schemas = ask.schemas
            self._give(worker)
            if "error" in answer:
                raise _error(answer)
            return answer, came

    def _take(self, is_over: Callable[[], bool]) -> _Worker:
        """A worker that waits. Another one is started where all have had their questions for some time: most are answered in less time
        than a start takes, and each start takes the processor from those that answer."""
        with self._changed:
            since, failures = time.monotonic(), self._failures
            while True:
                while self._idle:
                    worker = self._idle.pop()
                    if worker.lives and not worker.is_stopped:
                        self._busy.add(worker)
                        return worker
                    worker.close()
                if self._failure is not None and failures != self._failures:
                    # Several questions may raise it.
                    raise QueryError(str(self._failure).partition("\nhint: ")[0], hint=self._failure.hint)
                if is_over():
                    raise QueryTimeout("the time of the query is over before a process was free for it", stage="turn")
                if self._starting is None and (not self._busy or time.monotonic() - since > _IDLE_WORKER_TIMEOUT):
                    self._start()
                self._changed.wait(LOOK)

    def _start(self) -> None:
        """Starts a worker. The lock is held."""
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._end)
        try:
            worker = self._starting = _Worker(_LEAVES if self._busy else _STAYS)
        except OSError as error:
            more = hint() if error.errno == errno.EAGAIN else files_hint() if error.errno == errno.EMFILE else None
            raise QueryError(f"no process for the query could be started: {error.strerror or error}", hint=more) from None

        def begin() -> None:
            failure = worker.begin()
            with self._changed:
                self._starting = None
                if failure is not None:
                    self._failures, self._failure = self._failures + 1, failure
                self._changed.notify_all()
            if failure is None:
                self._give(worker)

        try:
            threading.Thread(target=begin, name="monarch-query-worker", daemon=True).start()
        except RuntimeError:
            self._starting = None
            worker.close()
            raise QueryError("no thread could be started that starts a process for the query", hint=hint()) from None

    def _drop(self, worker: _Worker) -> None:
        with self._changed:
            self._busy.discard(worker)
            self._changed.notify_all()

    def _give(self, worker: _Worker) -> None:
        with self._changed:
            self._busy.discard(worker)
            left = [one for one in self._idle if not one.lives]
            self._idle = [one for one in self._idle if one not in left]
            (left if worker.is_slow or len(self._idle) >= _IDLE else self._idle).append(worker)
            self._changed.notify()
        for one in left:
            one.close()

    def rest(self) -> None:
        """Ends those that wait for a question."""
        with self._changed:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def close(self) -> None:
        """Ends all of them."""
        self.rest()
        with self._changed:
            busy = [*self._busy, *([self._starting] if self._starting else [])]
        for worker in busy:
            worker.kill()

    def _end(self) -> None:
        self._is_over = True
        self.close()

    def forget(self) -> None:
        """In a fork: the workers are those of its parent."""
        self.__init__()


def _leave() -> None:
    """The program has ended, and with it the workers, which is no error of the query: the thread that asked ends with the process.

    When functions of `atexit` run, only daemon threads are left, and the thread that runs the functions.
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
    kinds: dict[str, type[QueryError]] = {"QueryRejected": QueryRejected, "PlanMismatch": PlanMismatch}
    return kinds.get(kind, QueryError)(text, hint=hint)


def most_working(limits: Limits) -> int:
    """Bytes of memory that a worker may use for an answer."""
    return _BASE + _TIMES * limits.memory


def most_planning() -> int:
    """Bytes of memory that a worker may use for a plan."""
    return _BASE + _PLANNING


def send(pipe: IO[bytes], head: dict[str, Any], data: Any) -> None:
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
