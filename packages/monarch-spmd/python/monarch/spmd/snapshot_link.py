"""The requests of a rank's program to the actor beside it, which has the snapshots, and the answers: lines of JSON in pipes.

A program waits for the imports of this module when it starts: none of asyncio, which is at the other end, in `snapshot_requests`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from monarch.spmd.errors import SPMDError

VARIABLE = "MONARCH_SPMD_SNAPSHOTS"


class Link:
    """The way to the actor beside this process. Answers are given to functions, on a thread of their own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[Mapping[str, Any]], None]] = {}
        self._count = 0
        self._read = self._write = -1

    def check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SPMDError("these snapshots belong to the process that this one was forked from", code="snapshots_unavailable")

    def send(self, request: dict[str, Any], ended: Callable[[Mapping[str, Any]], None]) -> None:
        with self._lock:
            if self._read < 0:
                self._read, self._write = os.pipe2(os.O_CLOEXEC)
                threading.Thread(target=self._listen, name="monarch-snapshots", daemon=True).start()
            self._count += 1
            number = self._count
            self._waiting[number] = ended
        line = json.dumps({**request, "id": number, "answers": f"/proc/{self._pid}/fd/{self._write}"}).encode() + b"\n"
        try:
            pipe = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(pipe, line)
            finally:
                os.close(pipe)
        except OSError as error:
            self._end(number, {"error": f"the run of this program does not answer: {error.strerror}"})

    def _listen(self) -> None:
        with open(self._read, "rb", closefd=False) as lines:
            for line in lines:
                answer: Any = json.loads(line)
                self._end(answer["id"], answer)

    def _end(self, number: int, answer: Mapping[str, Any]) -> None:
        with self._lock:
            ended = self._waiting.pop(number, None)
        if ended is not None:
            ended(answer)
