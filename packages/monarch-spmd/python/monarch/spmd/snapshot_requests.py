"""Requests of a rank's program about snapshots, which come through a pipe without a name, and their answers.

The program opens the pipe by its path below /proc, so nothing listens and no descriptor is inherited. A request is a line of JSON of at
most `PIPE_BUF` bytes, which the kernel writes as one piece. It names the pipe that the answer goes to, in which each answer is a line.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from monarch.actor import MonarchError
from monarch.spmd.errors import SPMDError

_MOST = 64 << 10

Request = Mapping[str, Any]


class Requests:
    """Reads requests on the running loop, and has each answered by `answer`; its errors go back as texts.

    An `SPMDError` goes back with its code.
    """

    def __init__(self, answer: Callable[[Request], Awaitable[dict[str, Any]]]) -> None:
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._tasks: set[asyncio.Task[None]] = set()
        self._received = b""
        self._loop.add_reader(self._read, self._take)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._read}"

    def close(self) -> None:
        if self._read >= 0:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            os.close(self._write)
            self._read = -1
        for task in self._tasks:
            task.cancel()

    def _take(self) -> None:
        try:
            self._received += os.read(self._read, _MOST)
        except BlockingIOError:
            return
        *lines, self._received = self._received.split(b"\n")
        # Data without a line end is no request of this protocol.
        self._received = self._received[-_MOST:]
        for line in lines:
            try:
                request: Any = json.loads(line)
                reply = os.open(request["answers"], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except (ValueError, KeyError, TypeError, OSError, RecursionError):  # the line is not of this protocol, or its process is gone
                continue
            task = self._loop.create_task(self._serve(request, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request, reply: int) -> None:
        try:
            try:
                answer = await self._answer(request)
            except (MonarchError, OSError, LookupError, TypeError, ValueError, ArithmeticError) as error:
                answer = {"error": str(error) or type(error).__name__}
                if isinstance(error, SPMDError):
                    answer["code"] = error.code
            os.write(reply, json.dumps({**answer, "id": request.get("id")}).encode() + b"\n")
        except OSError:  # the program is gone
            pass
        finally:
            os.close(reply)
