"""The requests of a rank's program to the actor beside it, which has the snapshots, and the answers.

A program waits for the imports of this module when it starts: none of asyncio, which is at the other end, in `snapshot_requests`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from monarch.extension.channel import Channel
from monarch.spmd.errors import SPMDError

VARIABLE = "MONARCH_SPMD_SNAPSHOTS"


class Link:
    """The channel to the actor beside this process. Answers are given to functions, on a thread of their own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._waiting: dict[int, Callable[[Mapping[str, Any]], None]] = {}
        self._count = 0
        self._channel: Channel | None = None

    def check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SPMDError("these snapshots belong to the process that this one was forked from", code="snapshots_unavailable")

    def send(self, request: dict[str, Any], ended: Callable[[Mapping[str, Any]], None]) -> None:
        """Sends a request. `ended` gets the answer, or an error where there is none."""
        with self._lock:
            self._count += 1
            number = self._count
            self._waiting[number] = ended
        try:
            with self._sending:
                if self._channel is None:
                    self._channel = self._connected()
                self._channel.send({**request, "call": number})
        except OSError as error:
            self._end(number, _no_answer(error))

    def _connected(self) -> Channel:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect("\0" + self._address)
        except OSError:
            connection.close()
            raise
        channel = Channel(connection, max_blob=0)
        threading.Thread(target=self._listen, args=(channel,), name="monarch-snapshots", daemon=True).start()
        return channel

    def _listen(self, channel: Channel) -> None:
        try:
            while True:
                answer = channel.take().head
                self._end(answer["call"], answer)
        except OSError as error:
            # The actor has ended, and will answer none of the requests.
            with self._sending:
                channel.close()
                self._channel = None
            with self._lock:
                left = list(self._waiting)
            for number in left:
                self._end(number, _no_answer(error))

    def _end(self, number: int, answer: Mapping[str, Any]) -> None:
        with self._lock:
            ended = self._waiting.pop(number, None)
        if ended is not None:
            ended(answer)


def _no_answer(error: OSError) -> Mapping[str, Any]:
    return {"error": f"the run of this program does not answer: {error.strerror or error}"}
